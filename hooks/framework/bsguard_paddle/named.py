"""BSGUARD_BOUNDARY=module:function - a network written as a function of layers, split at that function.

The function is replaced in its module by one that calls it through a layer of ours, so that everything else (proof,
chunks, backward) is what it is for any outermost layer. The layers and parameters below it are those that its first
call uses, and those that its globals, closure and `self` name; that first call itself is Paddle's own.
"""

import functools
import sys

from .runtime import runtime, thread

_state = {"path": None, "steps_waited": 0}
_PATIENCE = 2  # optimizer steps after which a function that is not there is given up


def watch(path):
    """Remembers what to look for; path: the value of BSGUARD_BOUNDARY, empty for nothing."""
    if not path:
        return
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        runtime.library.refused(path, "BSGUARD_BOUNDARY=%s is not MODULE:FUNCTION, such as train:forward" % path)
        return
    _state["path"] = (module, name)


def look():
    """Replaces the function once it is there. Called where the job has surely defined it; cheap when there is nothing."""
    if _state["path"] is None:
        return
    module_name, name = _state["path"]
    owner = _module(module_name)
    parts = name.split(".")
    for part in parts[:-1]:
        owner = getattr(owner, part, None)
    function = getattr(owner, parts[-1], None) if owner is not None else None
    if callable(function) and not isinstance(function, runtime.paddle.nn.Layer):
        _state["path"] = None
        setattr(owner, parts[-1], _through_a_layer(function))


def step_ended():
    """A function that did not appear within the first steps is said to be missing, once."""
    if _state["path"] is None:
        return
    look()
    _state["steps_waited"] += 1
    if _state["path"] is not None and _state["steps_waited"] >= _PATIENCE:
        path = ":".join(_state["path"])
        _state["path"] = None
        runtime.library.refused(path, "BSGUARD_BOUNDARY=%s: no such function in this job" % path)


def _module(name):
    module = sys.modules.get(name)
    if module is None:
        main = sys.modules.get("__main__")
        script = getattr(main, "__file__", None) or ""
        if script.replace("\\", "/").rsplit("/", 1)[-1] == name + ".py":
            module = main
    return module


def _through_a_layer(function):
    holder = []

    @functools.wraps(function)
    def bounded(*args, **kwargs):
        if thread.inside or not runtime.guarding:
            return function(*args, **kwargs)
        if not holder:
            found = thread.recording = []
            try:
                result = function(*args, **kwargs)
            finally:
                thread.recording = None
            holder.append(_layer_of(function, found, args))
            return result
        return holder[0](*args, **kwargs)

    return bounded


def _layer_of(function, called, args):
    layer_class = runtime.paddle.nn.Layer
    parameter_class = runtime.paddle.base.framework.EagerParamBase
    layers, parameters = {}, {}

    def add(value, deep=True):
        if isinstance(value, layer_class):
            layers[id(value)] = value
        elif isinstance(value, parameter_class):
            parameters[id(value)] = value
        elif deep and isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif deep and isinstance(value, dict):
            for item in value.values():
                add(item)

    for layer in called:
        add(layer)
    code = getattr(function, "__code__", None)
    if code is not None:
        for name in code.co_names:
            add(function.__globals__.get(name))
        for cell in function.__closure__ or ():
            try:
                add(cell.cell_contents)
            except ValueError:
                continue  # not filled yet
    for value in list(args[:1]) + [getattr(function, "__self__", None)]:
        for item in getattr(value, "__dict__", {}).values() if not isinstance(value, layer_class) else ():
            add(item)

    kind = type(function.__name__, (layer_class,), {"forward": lambda self, *a, **k: function(*a, **k)})
    layer = kind()
    for index, part in enumerate(layers.values()):
        layer.add_sublayer("part%d" % index, part)
    for index, part in enumerate(parameters.values()):
        layer.add_parameter("weight%d" % index, part)
    return layer
