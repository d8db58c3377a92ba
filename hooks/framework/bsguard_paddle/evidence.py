"""What only Paddle can say, for reports: memory by its own count, whose state it is, what keeps tensors, versions.

Told at the end of each step (two numbers), and where an OOM was caught. Decides nothing, changes nothing, never raises.
No contents of tensors and no environment variables but FLAGS_*: a report may be sent to somebody.
"""

import gc
import math
import os
import sys
import traceback
import weakref

from .gradients import grad_of
from .runtime import device_of, is_tensor, runtime

_UNKNOWN = (1 << 64) - 1
_FRAMES = 24
_CONTAINERS = 8
_FEWEST = 4  # tensors in a container that is worth a word
_MOST_CENSUSES = 3  # it walks through all objects; a loop may catch the error and go on for ever
_COUNTED_STEPS = 3  # the state of the optimizer is counted at the first steps, and again when memory runs out

_optimizers = []  # weak references
_steps = 0
_censuses = 0
_amp = None  # the highest level that a forward was seen at


def _statistic(kind, which, device):
    try:
        core = runtime.paddle.base.core
        return int(getattr(core, "device_memory_stat_%s_value" % which)(kind, device))
    except Exception:
        return 0


def tell(device, state=False, stack=None):
    """Tells the library what the framework has in use on a device. state: count weights, gradients and moments too."""
    allocated = _statistic("Allocated", "current", device)
    peak = _statistic("Allocated", "peak", device)
    counted = _state() if state else (_UNKNOWN,) * 3
    if not peak:  # a Paddle that keeps no count on this device
        figures = (_UNKNOWN,) * 4
    else:
        figures = (
            allocated,
            _statistic("Reserved", "current", device) or _UNKNOWN,
            peak,
            _statistic("Reserved", "peak", device) or _UNKNOWN,
        )
    runtime.library.framework(device, *figures, *counted, stack)
    if state:
        runtime.library.note("amp", "not known" if _amp is None else "off" if _amp == "O0" else _amp)


def step_ended(optimizer, device):
    """A step of this optimizer ended."""
    global _steps
    try:
        if all(reference() is not optimizer for reference in _optimizers):
            _optimizers.append(weakref.ref(optimizer))
        _steps += 1
        if _steps == 1:
            describe()
        tell(device, state=_steps <= _COUNTED_STEPS)
    except Exception:
        pass


def caught(error):
    """An OOM was caught: the stack that it came from, and how things are before anything is let go of."""
    try:
        if runtime.library is not None:
            tell(runtime.device, state=True, stack=stack_of(error))
    except Exception:
        pass


def stack_of(error):
    """Frames of the exception, innermost first, a line each; those of bsguard and of Paddle's inside left out."""
    own = os.path.dirname(os.path.abspath(__file__))
    frames = [
        '  File "%s", line %d in %s' % (frame.filename, frame.lineno, frame.name)
        for frame in traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
        if not frame.filename.startswith(own)
    ]
    return "\n".join(reversed(frames[-_FRAMES:]))


def _bytes(tensor):
    # Its `size` takes 10 microseconds, and here it is asked of each weight, gradient and moment.
    return math.prod(tensor.shape) * tensor.element_size() if tensor._is_initialized() else 0


def _on_device(value):
    return is_tensor(value) and device_of(value) >= 0


def _state():
    """(bytes of weights, of their gradients, of what optimizers keep for them)."""
    weights, gradients, moments = {}, 0, {}
    for reference in _optimizers or _found_optimizers():
        optimizer = reference()
        if optimizer is None:
            continue
        for entry in optimizer._parameter_list or []:
            for parameter in entry["params"] if isinstance(entry, dict) else [entry]:
                if id(parameter) not in weights and _on_device(parameter):
                    weights[id(parameter)] = _bytes(parameter)
                    gradient = grad_of(parameter)
                    if gradient is not None and _on_device(gradient):
                        gradients += _bytes(gradient)
        masters = getattr(optimizer, "_master_weights", None) or {}
        for kept in [*(optimizer._accumulators or {}).values(), masters]:
            for tensor in kept.values():
                if _on_device(tensor):
                    moments[id(tensor)] = _bytes(tensor)
    if not weights:
        return (_UNKNOWN,) * 3
    return sum(weights.values()), gradients, sum(moments.values())


def _found_optimizers():
    """Before the first step has ended."""
    kind = runtime.paddle.optimizer.Optimizer
    return [weakref.ref(each) for each in gc.get_objects() if isinstance(each, kind)]


# ---- what keeps tensors from step to step ----


def census(device):
    """Tells the library which containers of the program hold tensors of the device: lists, dicts and their like."""
    global _censuses
    _censuses += 1
    if _censuses > _MOST_CENSUSES:
        return
    try:
        runtime.library.held(device, None, 0, 0, 0)
        for container, tensors in _largest():
            graphs = sum(1 for each in tensors if not each.stop_gradient and not each.is_leaf)
            what = _name(container)
            runtime.library.held(device, what, len(tensors), graphs, sum(map(_bytes, tensors)))
    except Exception:
        pass


def _largest():
    """(container, its tensors), those with most bytes or, of graphs, most tensors first."""
    ours = {
        id(vars(each)) for each in list(sys.modules.values()) if getattr(each, "__name__", "").startswith("bsguard")
    }
    state = _ids_of_state()
    found = []
    for each in _containers():
        if len(each) < _FEWEST or id(each) in ours:
            continue
        tensors = []
        for value in list(each.values() if isinstance(each, dict) else each):
            # A step's outputs are often kept as a pair, or a small dict.
            inner = value if isinstance(value, (list, tuple)) and len(value) <= 4 else (value,)
            tensors += [one for one in inner if _on_device(one) and id(one) not in state]
        if len(tensors) >= _FEWEST:
            found.append((each, tensors))
    found.sort(key=lambda pair: (sum(map(_bytes, pair[1])), len(pair[1])), reverse=True)
    with_graphs = [p for p in found if any(not one.stop_gradient and not one.is_leaf for one in p[1])]
    ordered = with_graphs[:2] + [p for p in found if p not in with_graphs[:2]] if _mostly(with_graphs) else found
    return ordered[:_CONTAINERS]


def _is_container(value):
    return isinstance(value, (list, dict, set)) or type(value).__name__ == "deque"


def _containers():
    """Lists, dicts and their like. The collector does not know a dict whose values it does not know, as tensors are: those
    are found by who holds them."""
    layer = runtime.paddle.nn.Layer
    for each in gc.get_objects():
        if _is_container(each):
            yield each
            inner = each.values() if isinstance(each, dict) else ()
        elif isinstance(each, layer) or type(each).__module__ == "__main__":
            inner = getattr(each, "__dict__", {}).values()
        else:
            continue
        for value in list(inner):
            if type(value) is dict and not gc.is_tracked(value):
                yield value


def _mostly(pairs):
    return sum(len(tensors) for _, tensors in pairs) >= _FEWEST


def _ids_of_state():
    """Weights, their gradients and the optimizer's state are known by other names."""
    known = set()
    for reference in _optimizers or _found_optimizers():
        optimizer = reference()
        if optimizer is None:
            continue
        for entry in optimizer._parameter_list or []:
            known.update(id(one) for one in (entry["params"] if isinstance(entry, dict) else [entry]))
        for kept in [*(optimizer._accumulators or {}).values(), getattr(optimizer, "_master_weights", None) or {}]:
            known.update(id(one) for one in kept.values())
    return known


def _name(container):
    """`list losses in train.py`: by the variable or attribute that holds it, where one is found."""
    kind = type(container).__name__
    for holder in gc.get_referrers(container):
        if not isinstance(holder, dict):
            continue
        for key, value in list(holder.items()):
            if value is not container or not isinstance(key, str):
                continue
            module = holder.get("__name__") if "__builtins__" in holder or "__spec__" in holder else None
            if module:
                file = os.path.basename(holder.get("__file__") or module)
                return "%s %s in %s" % (kind, key, file)
            for owner in gc.get_referrers(holder):
                if getattr(owner, "__dict__", None) is holder:
                    return "%s %s.%s" % (kind, type(owner).__name__, key)
            return "%s %s" % (kind, key)
    own = os.path.dirname(os.path.abspath(__file__))
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_filename.startswith(own):
                frame = frame.f_back
                continue
            for key, value in list(frame.f_locals.items()):
                if value is container:
                    return "%s %s in %s" % (kind, key, frame.f_code.co_name)
            frame = frame.f_back
    return "%s of %d" % (kind, len(container))


# ---- versions and settings ----


def describe():
    """Tells versions, AMP and the flags that matter, once."""
    paddle = runtime.paddle
    note = runtime.library.note
    note("python", sys.version.split()[0])
    note("paddle", paddle.__version__)
    for name in ("cuda", "cudnn"):
        try:
            note(name, str(getattr(paddle.version, name)()))
        except Exception:
            pass
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        note("numpy", numpy.__version__)
    names = sorted(name for name in os.environ if name.startswith("FLAGS_"))
    names += [
        "FLAGS_allocator_strategy",
        "FLAGS_fraction_of_gpu_memory_to_use",
        "FLAGS_gpu_memory_limit_mb",
        "FLAGS_use_virtual_memory_auto_growth",
    ]
    flags = []
    for name in dict.fromkeys(names):
        try:
            flags.append("%s=%s" % (name, paddle.get_flags(name)[name]))
        except Exception:
            if name in os.environ:
                flags.append("%s=%s (environment)" % (name, os.environ[name]))
    note("flags", " ".join(flags) or "none")
    known = set(getattr(sys, "stdlib_module_names", ()))  # from Python 3.10 on
    tops = {name.split(".")[0] for name in list(sys.modules)} - known
    note("modules", " ".join(sorted(name for name in tops if not name.startswith("_"))))


def forward_began(level):
    """A forward of the user's begins at this level of automatic mixed precision: outside of it nobody can tell."""
    global _amp
    name = str(level).split(".")[-1]
    if _amp in (None, "O0"):
        _amp = name
