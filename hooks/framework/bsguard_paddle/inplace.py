"""Operators of an update that write to what they are given: an optimizer's kernels, clipping, the loss scaler's.

None of them is tried again, since what ran out of memory may have written before. But where Paddle has no kernel for a
device, it computes on the host and copies the results back one after another; if a copy does not fit, every result is
there, the rest of them on the host. Those are brought home, and the operator is done. A kernel of the device leaves
nothing on the host, and is left as it failed.

The operators are counted as they begin, too: what ran out of memory before any did has changed nothing.
"""

import functools

from . import native
from .neighbours import Tries
from .oom import Failure, is_oom
from .runtime import reclaim, runtime, thread

# An optimizer's own, whose results are not looked at: who called them finishes them (resume.py).
_KERNELS = """
    adadelta_ adagrad_ adam_ adamax_ adamw_ asgd_ dgc_momentum decayed_adagrad ftrl lamb_ momentum_ merged_adam_
    merged_momentum_ nadam_ radam_ rmsprop_ rprop_ sgd_ sparse_momentum
"""
_SIMPLE = "add_ clip_ divide_ multiply_ scale_ subtract_"  # each gives its first argument back


def patch():
    """Wraps these operators; they are Paddle's own but in an update."""
    operators = runtime.paddle._C_ops
    for names, simple in ((_KERNELS, False), (_SIMPLE, True)):
        for name in names.split():
            original = getattr(operators, name, None)
            if callable(original):
                setattr(operators, name, _counted(original, simple))


def begun():
    """How many of them this thread has begun so far."""
    return thread.writes


def _counted(original, simple):
    @functools.wraps(original)
    def counted(*args, **kwargs):
        if not thread.updating:
            return original(*args, **kwargs)
        thread.writes += 1
        if not simple:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not runtime.guarding or not is_oom(error):
                raise
            failure = Failure(error)
        if not bring_home(args[:1]):
            failure.throw()
        return args[0]

    return counted


def bring_home(tensors):
    """Moves to the device what an operator computed on the host and could not copy back. False, and nothing is done, where
    it was not that. Raises the OOM where there is no room even after waiting."""
    core = runtime.paddle.base.core
    place = runtime.paddle.base.framework._current_expected_place()
    away = [tensor for tensor in tensors if tensor._is_initialized() and tensor.place.is_cpu_place()]
    # A scalar may live on the host: Adam's powers do. A custom device has kernels of its own for none of these.
    custom = isinstance(place, core.CustomPlace)
    if isinstance(place, core.CPUPlace) or not (away and (custom or any(tensor.size > 1 for tensor in away))):
        return False
    tries = Tries(native.OPTIMIZER, "the results of an update, computed on the host, find no room on the device")
    reclaim()
    while away:
        try:
            _move(away[-1], place)
            away.pop()
            continue
        except Exception as error:
            if not is_oom(error):
                raise
            failure = Failure(error)
        tries.note(failure)
        tries.wait()
    tries.went_through("an update")
    return True


def _move(tensor, place):
    with runtime.paddle.no_grad():
        moved = tensor._copy_to(place, True)
    tensor.value().get_tensor()._share_data_with(moved.value().get_tensor())
