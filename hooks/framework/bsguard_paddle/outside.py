"""What a forward may keep outside of its layer's own attributes: globals, closures, class attributes, nested containers,
objects, arrays.

It is found by a walk from the layers: their classes' functions, the names that these use, what those names hold. The walk
stops at modules that are installed rather than written for the job, and after some thousand objects. Used around a trial
forward only: restore() puts back what can be put back, and names what had changed. What cannot be known from a look at
names (a C extension's state, a file) is not found. Depends on Paddle through runtime alone.
"""

import collections
import functools
import os
import random
import sys
import sysconfig
import types

from .runtime import is_tensor, runtime

_MOST = 4000  # objects looked at
_SIMPLE = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS = (
    list,
    dict,
    set,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
)
_LARGEST_ARRAY = 1 << 20  # bytes; of larger ones only a few entries are compared
_OWN_OF_LAYERS = frozenset(("_parameters", "_buffers", "_sub_layers", "_full_name", "_helper", "_op_recorder"))
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Outside:
    """A snapshot, see above."""

    def __init__(self, layer):
        self._spaces = []  # (name, object that looks up by key, [(key, value)])
        self._containers = []  # (name, container, copy)
        self._tensors = []  # (name, tensor, version, copy on the host)
        self._arrays = []  # (name, array, copy)
        self._generators = []  # (name, generator, state)
        self.static = False  # something below was made static: its programs keep whether gradients were recorded
        self.iterators = []  # names of iterators: what they give next cannot be put back
        self._seen = {}
        self._queue = collections.deque()
        skipped = set()
        for sub in layer.sublayers(include_self=True):
            skipped.update(id(t) for t in list(sub._parameters.values()) + list(sub._buffers.values()))
            skipped.add(id(sub))
        self._layers = skipped
        for prefix, sub in layer.named_sublayers(include_self=True):
            name = prefix or type(sub).__name__
            if not _is_installed(_module_of(type(sub))):
                self._class(type(sub), type(sub).__name__)
            for key, value in vars(sub).items():
                if key not in _OWN_OF_LAYERS:
                    self._put(value, name + "." + key)
        while self._queue and len(self._seen) < _MOST:
            self._look(*self._queue.popleft())

    def _put(self, value, name):
        if isinstance(value, _SIMPLE) or id(value) in self._seen or id(value) in self._layers:
            return
        self._seen[id(value)] = value
        self._queue.append((value, name))

    def _look(self, value, name):
        if type(value).__name__.endswith("StaticFunction"):
            self.static = True
        elif is_tensor(value):
            small = value.stop_gradient and value._is_initialized() and value.size * 8 <= _LARGEST_ARRAY
            copy = value.numpy().copy() if small and "float16" not in str(value.dtype) else None
            self._tensors.append((name, value, value.inplace_version, copy))
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._put(value.__self__, name)
            self._put(value.__func__, name)
        elif type(value) in _CONTAINERS:
            self._containers.append((name, value, list(value.items()) if isinstance(value, dict) else list(value)))
            items = value.values() if isinstance(value, dict) else value
            for index, item in enumerate(items):
                self._put(item, "%s[%d]" % (name, index))
        elif isinstance(value, tuple):
            for item in value:
                self._put(item, name)
        elif isinstance(value, (types.ModuleType, type)):
            if isinstance(value, type) and not _is_installed(_module_of(value)):
                self._class(value, value.__name__)
        elif isinstance(value, random.Random):
            self._generators.append((name, value, value.getstate()))
        elif _module_of(type(value)).partition(".")[0] == "numpy":
            self._numpy(value, name)
        elif hasattr(type(value), "__next__") and not hasattr(value, "write"):
            self.iterators.append(name)
        elif not _is_installed(_module_of(type(value))):
            self._class(type(value), type(value).__name__)
            fields = getattr(value, "__dict__", None)
            if isinstance(fields, dict):
                self._space(name, value, [key for key in fields if key not in _OWN_OF_LAYERS])

    def _numpy(self, value, name):
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
            part = value if value.nbytes <= _LARGEST_ARRAY else value.reshape(-1)[:64]
            self._arrays.append((name, part, part.copy()))
        elif isinstance(value, numpy.random.RandomState):
            self._generators.append((name, value, value.get_state()))
        elif isinstance(value, numpy.random.Generator):
            self._generators.append((name, value, value.bit_generator.state))

    def _class(self, kind, name):
        for one in kind.__mro__:
            if _is_installed(_module_of(one)) or id(one) in self._seen:
                continue
            self._seen[id(one)] = one
            self._space(name, one, [key for key in vars(one) if not key.startswith("__")])

    def _space(self, name, owner, keys):
        held = vars(owner)
        entries = [(key, held[key]) for key in keys if key in held]
        self._spaces.append((name, owner, entries, set(held)))
        for key, value in entries:
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            value = value.fget if isinstance(value, property) else value
            self._put(value, "%s.%s" % (name, key))

    def _function(self, function, name):
        if _is_installed(function.__module__ or "builtins"):
            return
        for cell, variable in zip(function.__closure__ or (), function.__code__.co_freevars):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            self._spaces.append((None, cell, [(variable, value)], None))
            self._put(value, variable)
        for default in (function.__defaults__ or ()) + tuple((function.__kwdefaults__ or {}).values()):
            self._put(default, name)
        names = set()
        _names_in(function.__code__, names)
        table = function.__globals__
        entries = [(key, table[key]) for key in sorted(names) if key in table]
        self._spaces.append((None, table, entries, None))
        for key, value in entries:
            if isinstance(value, types.ModuleType) and not _is_installed(value.__name__):
                entries = [(one, vars(value)[one]) for one in sorted(names) if one in vars(value)]
                self._spaces.append((key, value, entries, None))
                for one, held in entries:
                    self._put(held, "%s.%s" % (key, one))
            else:
                self._put(value, key)
        if function.__dict__:
            self._space(name, function, list(function.__dict__))

    def restore(self):
        """Puts back what the forward changed; returns the names of it, e.g. ["FEATURES", "Meter.count"]."""
        changed = []
        for name, container, content in self._containers:
            if isinstance(container, set):
                differs = container != set(content)  # filled anew, it may give the same in another order
            else:
                now = list(container.items()) if isinstance(container, dict) else list(container)
                differs = _differs(now, content)
            if differs:
                changed.append(name)
                container.clear()
                if isinstance(container, (dict, set)):
                    container.update(content)
                else:
                    container.extend(content)
        for name, owner, entries, keys in self._spaces:
            for key, value in entries:
                if not _same(_read(owner, key), value):
                    changed.append(key if name is None else "%s.%s" % (name, key))
                    _write(owner, key, value)
            for key in (set(vars(owner)) - keys) if keys is not None else ():
                changed.append("%s.%s" % (name, key))
                delattr(owner, key)
        numpy = sys.modules["numpy"]
        for name, array, copy in self._arrays:
            if not numpy.array_equal(array, copy, equal_nan=copy.dtype.kind in "fc"):
                changed.append(name)
                array[...] = copy
        for name, tensor, version, copy in self._tensors:
            moved = tensor.inplace_version != version
            if copy is not None and not numpy.array_equal(tensor.numpy(), copy, equal_nan=copy.dtype.kind in "fc"):
                moved = True
                tensor.set_value(copy)
            if moved:
                changed.append(name)
        for name, generator, state in self._generators:
            if isinstance(generator, random.Random):
                if generator.getstate() != state:
                    changed.append(name)
                    generator.setstate(state)
            elif isinstance(generator, numpy.random.RandomState):
                if str(generator.get_state()) != str(state):
                    changed.append(name)
                    generator.set_state(state)
            elif generator.bit_generator.state != state:
                changed.append(name)
                generator.bit_generator.state = state
        return changed


def _names_in(code, names):
    names.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _names_in(constant, names)


def _module_of(kind):
    """`kind.__module__`, which a metaclass may hide."""
    name = getattr(kind, "__module__", None)
    return name if isinstance(name, str) else "builtins"


def _is_installed(module_name):
    """True for a module that came with Python or from a package: its state is not the job's."""
    top = (module_name or "").partition(".")[0]
    if top in ("builtins", "paddle", "bsguard_paddle", "numpy"):
        return True
    if top == "__main__":
        return False
    path = getattr(sys.modules.get(module_name), "__file__", None)
    if path is None:
        return top in sys.builtin_module_names
    return path.startswith(_installed_folders(tuple(sys.path)))


@functools.lru_cache(maxsize=4)
def _installed_folders(search):
    """Where packages are installed: the standard places, a user's or a system's, and folders made by pip --target."""
    found = list(_STANDARD)
    for folder in search:
        try:
            names = os.listdir(folder) if folder else []
        except OSError:
            continue  # an archive, or not there
        standard = os.path.basename(folder) in ("site-packages", "dist-packages")
        if standard or any(name.endswith(".dist-info") for name in names):
            found.append(folder.rstrip(os.sep) + os.sep)
    return tuple(found)


def _read(owner, key):
    if isinstance(owner, dict):
        return owner.get(key, runtime)
    if isinstance(owner, types.CellType):
        try:
            return owner.cell_contents
        except ValueError:
            return runtime
    return vars(owner).get(key, runtime)


def _write(owner, key, value):
    if isinstance(owner, dict):
        owner[key] = value
    elif isinstance(owner, types.CellType):
        owner.cell_contents = value
    else:
        setattr(owner, key, value)


def _same(now, value):
    return now is value or (isinstance(now, _SIMPLE) and type(now) is type(value) and (now == value or now != now))


def _differs(now, content):
    if len(now) != len(content):
        return True
    for a, b in zip(now, content):
        pair = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == 2
        if not (_same(a[0], b[0]) and _same(a[1], b[1]) if pair else _same(a, b)):
            return True
    return False
