"""Places outside of a step that may run out of memory: copies to the device, values read from it, new parameters, a save,
metrics. There is nothing to split: caches are given back and the same is tried once more, in one line.

Only what may be done twice is: a copy is made anew, a file is written from its beginning, an initial value is drawn from
the same random state. Below a boundary these are Paddle's own: it is the boundary that is tried again there.
"""

import functools

from . import again, native, steps
from .generators import RandomState
from .oom import Failure, is_oom
from .runtime import runtime, thread


def patch():
    """Wraps these places where they can be called from anywhere."""
    paddle = runtime.paddle
    tensor = paddle.base.core.eager.Tensor
    to_tensor = _retried(paddle.to_tensor, "to_tensor", native.DATA)
    for owner in (paddle, paddle.tensor, paddle.tensor.creation):
        if hasattr(owner, "to_tensor"):
            owner.to_tensor = to_tensor
    for name, what in (("_copy_to", "a copy to another device"), ("numpy", "numpy()"), ("set_value", "set_value")):
        setattr(tensor, name, _retried(getattr(tensor, name), what, native.DATA))
    paddle.metric.accuracy = _retried(paddle.metric.accuracy, "accuracy", native.OTHER)
    paddle.metric.Accuracy.compute = _retried(paddle.metric.Accuracy.compute, "Accuracy.compute", native.OTHER)
    save = _saving(paddle.save)
    for owner in (paddle, paddle.framework, paddle.framework.io):
        if hasattr(owner, "save"):
            owner.save = save
    initializer = paddle.nn.initializer.Initializer
    initializer.__call__ = _initialising(initializer.__call__)


def _is_ours(error):
    """False also in an optimizer's step, which is resumed as a whole."""
    if thread.inside or steps.running() or not runtime.guarding:
        return False
    return is_oom(error) and not again.is_reported(error)


def _retried(original, what, phase):
    @functools.wraps(original)
    def retried(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not _is_ours(error):
                raise
            failure = Failure(error)
        return again.again(failure, lambda: original(*args, **kwargs), what, phase)

    return retried


def _initialising(original):
    @functools.wraps(original)
    def initialise(self, *args, **kwargs):
        if thread.inside or not runtime.guarding or not runtime.paddle.in_dynamic_mode():
            return original(self, *args, **kwargs)
        before = RandomState()
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            if not _is_ours(error):
                raise
            failure = Failure(error)

        def once_more():
            before.restore()
            return original(self, *args, **kwargs)

        return again.again(failure, once_more, "a new parameter", native.INIT)

    return initialise


def _saving(original):
    @functools.wraps(original)
    def save(obj, path, *args, **kwargs):
        before = runtime.library.set_phase(native.SAVE)
        start = path.tell() if hasattr(path, "tell") and hasattr(path, "truncate") else None
        try:
            try:
                return original(obj, path, *args, **kwargs)
            except Exception as error:
                if not _is_ours(error) or (start is None and not isinstance(path, str)):
                    raise
                failure = Failure(error)

            def once_more():
                if start is not None:
                    path.seek(start)
                    path.truncate()
                return original(obj, path, *args, **kwargs)

            return again.again(failure, once_more, "paddle.save", native.SAVE)
        finally:
            runtime.library.set_phase(before)

    return save
