"""Calls the adapter as soon as `paddle` has been imported, whoever else waits for that.

A finder on sys.meta_path that asks the finders behind it for the real spec and puts one call behind the loader's
exec_module. It neither hides other such finders nor is hidden by one that does the same. Depends on the standard
library alone, and on as little of it as it can: it runs at the start of every Python under the preload.
"""

import sys

_TARGET = "paddle"


def arm():
    """Waits for `import paddle`; nothing else of the process changes."""
    if _TARGET not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Steps aside for every name but one, and for that one too once it is found."""

    def __init__(self):
        self._busy = False

    def find_spec(self, name, path=None, target=None):
        """The spec that the other finders give, with the adapter's installation behind its loader."""
        if name != _TARGET or self._busy:
            return None
        self._busy = True
        try:
            spec = None
            finders = list(sys.meta_path)
            # Only those behind us: who stands in front has asked us, and would wrap the same loader twice.
            for finder in finders[finders.index(self) + 1 :] if self in finders else finders:
                if not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        finally:
            self._busy = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _disarm(self)
            _install(module)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            return spec  # a loader that cannot be wrapped: the job runs unguarded
        return spec


def _disarm(finder):
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def _install(paddle):
    try:
        from bsguard_paddle import adapter
    except ImportError:
        package_parent = __file__.rsplit("/", 2)[0]
        sys.path.insert(0, package_parent)
        try:
            from bsguard_paddle import adapter
        finally:
            sys.path.remove(package_parent)
    adapter.install(paddle)
