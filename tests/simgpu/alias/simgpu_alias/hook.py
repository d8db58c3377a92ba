"""A post-import hook that composes with others for the same module, whichever was installed first.

Each finder asks those behind it in ``sys.meta_path`` for the spec, and wraps whatever loader it is given. So two hooks nest,
and neither hides the other. Depends on the standard library alone.
"""

import sys

__all__ = ["install"]


def install(name, before, after):
    """Has `after(module)` called once `name` was imported.

    before(spec) is called just before the module runs; if it returns False, `after` is not called. Exceptions of both are
    said in one line and never reach the import.
    """
    sys.meta_path.insert(0, _Finder(name, before, after))


class _Finder:
    def __init__(self, name, before, after):
        self.name, self.before, self.after = name, before, after

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = self._ask_the_others(name, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(spec)
        return spec

    def _ask_the_others(self, name, path, target):
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in behind:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None

    def _wrap(self, spec):
        run = spec.loader.exec_module

        def exec_module(module):
            wanted = self._guarded(self.before, spec)
            run(module)
            if wanted is not False:
                self._guarded(self.after, module)

        # On the loader itself, so that everything else that it can do stays as it is.
        spec.loader.exec_module = exec_module

    def _guarded(self, function, argument):
        try:
            return function(argument)
        except Exception as error:
            sys.stderr.write(f"simgpu: the alias for gpu is off: {type(error).__name__}: {error}\n")
            return False
