# Loaded by every Python that starts with this folder first on PYTHONPATH, which the constructor of libbsguard.so sees to.
#
# It arms the post-import hook for paddle, gets out of sight again, and hands over to the sitecustomize that would have
# run without us. It never raises, imports nothing heavy, and parses under any Python: a Python that is too old for the
# adapter is simply left alone.
import os
import sys


def _main():
    here = os.path.dirname(os.path.abspath(__file__))

    def ours(entry):
        try:
            return os.path.abspath(entry) == here
        except Exception:
            return False

    # Children get the folder from the preload again; nobody else should see it.
    sys.path[:] = [entry for entry in sys.path if not ours(entry)]
    value = os.environ.get("PYTHONPATH")
    if value is not None:
        kept = os.pathsep.join(entry for entry in value.split(os.pathsep) if entry and not ours(entry))
        if kept:
            os.environ["PYTHONPATH"] = kept
        else:
            del os.environ["PYTHONPATH"]

    if sys.version_info >= (3, 7) and os.environ.get("BSGUARD", "1").strip() != "0":
        package_parent = os.path.dirname(here)
        sys.path.insert(0, package_parent)
        try:
            from bsguard_paddle import post_import
        finally:
            sys.path.remove(package_parent)
        post_import.arm()


def _next_sitecustomize():
    """Runs the sitecustomize that we stood in front of, as if it had been found first."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if "sitecustomize" not in sys.modules and this is not None:
            sys.modules["sitecustomize"] = this


try:
    _main()
except Exception:
    try:
        sys.stderr.write(
            "bsguard: the framework half could not be loaded (%s); the job runs unguarded\n" % (sys.exc_info()[1],)
        )
    except Exception:
        pass
_next_sitecustomize()
