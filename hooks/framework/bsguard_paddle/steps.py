"""Where a training step ends: the optimizer's step."""

import threading

from . import arming, boundary, evidence, native
from .call import stepped_on
from .runtime import note_phase, runtime, thread


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def patch():
    """Wraps step() of every optimizer class that Paddle ships, and minimize(), which steps by itself."""
    for kind in optimizers():
        for name in ("step", "minimize"):
            if name in vars(kind):
                setattr(kind, name, _counted(vars(kind)[name]))


def optimizers():
    """Every optimizer class that Paddle ships."""
    found, queue = [], [runtime.paddle.optimizer.Optimizer]
    while queue:
        one = queue.pop()
        if one not in found:
            found.append(one)
            queue.extend(one.__subclasses__())
    return found


def running():
    """True in an optimizer's step of this thread."""
    return _depth.value > 0


def _counted(original):
    def step(self, *args, **kwargs):
        if _depth.value or not runtime.paddle.in_dynamic_mode():
            return original(self, *args, **kwargs)
        before = runtime.library.set_phase(native.OPTIMIZER)
        _depth.value += 1
        thread.updating += 1
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            note_phase(error, native.OPTIMIZER)
            runtime.library.set_phase(before)
            raise
        finally:
            _depth.value -= 1
            thread.updating -= 1
        _ended(self)
        return result

    step.__name__ = original.__name__
    step.__doc__ = original.__doc__
    step.__wrapped__ = original
    return step


def parameters_of(optimizer):
    """The parameters that an optimizer updates, groups or not."""
    found = []
    for entry in optimizer._parameter_list or []:
        found.extend(entry["params"] if isinstance(entry, dict) else [entry])
    return found


def _ended(optimizer):
    stepped_on(parameters_of(optimizer))
    boundary.step_ended()
    peak = arming.step_ended(runtime.device)
    evidence.step_ended(optimizer, runtime.device)
    runtime.library.step(runtime.device, peak)
    runtime.library.set_phase(native.OTHER)
