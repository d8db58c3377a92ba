# Run by every Python below scripts/simgpu, also by ones without Paddle and by old ones: whatever happens here, the
# program must start as it would have. The work is in simgpu_alias; without SIMGPU_PLUGINS there is none.
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_rest = []
for _index, _entry in enumerate(sys.path):
    if os.path.abspath(_entry) == _folder:
        _rest = sys.path[_index + 1 :]
        break

try:
    if os.environ.get("SIMGPU_PLUGINS") and sys.version_info >= (3, 8):
        import simgpu_alias

        simgpu_alias.activate(os.environ["SIMGPU_PLUGINS"])
except Exception as _error:
    sys.stderr.write("simgpu: the alias for gpu is off: %s: %s\n" % (type(_error).__name__, _error))

# The folder has done its service; the user's own sitecustomize, further down, must not be hidden by this one.
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _folder]
if sys.version_info >= (3, 8):
    import importlib.machinery as _machinery
    import importlib.util as _util

    _spec = _machinery.PathFinder.find_spec("sitecustomize", _rest)
    if _spec is not None and _spec.loader is not None:
        _module = _util.module_from_spec(_spec)
        sys.modules["sitecustomize"] = _module
        # What it raises is its own: Python reports it as it would without us.
        _spec.loader.exec_module(_module)
