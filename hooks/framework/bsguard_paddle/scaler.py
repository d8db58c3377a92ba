"""paddle.amp.GradScaler that runs out of memory: gradients are divided by the scale once, and the scale moves once.

What step() and minimize() do beside is the optimizer's (resume.py). On a card the operator that divides takes all memory
that it needs before it writes, so that it may be tried again; where it ran on the host, what could not be copied back is
brought home (inplace.py). Both tell themselves.
"""

import functools

from . import again, inplace, native
from .oom import Failure, is_oom
from .runtime import runtime, thread


def patch():
    """Wraps the two parts of the scaler that take memory, and the operators that the first is made of; what a Paddle has
    not is left out."""
    paddle = runtime.paddle
    kind = getattr(getattr(paddle.amp, "grad_scaler", None), "AmpScaler", None)
    legacy = getattr(paddle, "_legacy_C_ops", None)
    for owner, name, wrap in (
        (kind, "_unscale", _unscaling),
        (kind, "_update", _updating),
        (legacy, "check_finite_and_unscale", _dividing),
        (paddle._C_ops, "bitwise_or", _once_more),
    ):
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wrap(original))


def _unscaling(original):
    @functools.wraps(original)
    def _unscale(self, optimizer):
        before = runtime.library.set_phase(native.OPTIMIZER)
        thread.updating += 1
        try:
            return original(self, optimizer)
        finally:
            thread.updating -= 1
            runtime.library.set_phase(before)

    return _unscale


def _is_ours(error):
    return runtime.guarding and is_oom(error) and not again.is_reported(error)


def _dividing(original):
    @functools.wraps(original)
    def check_finite_and_unscale(gradients, scale, outputs, infinite, *rest):
        try:
            return original(gradients, scale, outputs, infinite, *rest)
        except Exception as error:
            if not thread.updating or not _is_ours(error):
                raise
            failure = Failure(error)
        if inplace.bring_home([*outputs, infinite]):
            return outputs, infinite

        def once_more():
            return original(gradients, scale, outputs, infinite, *rest)

        return again.again(failure, once_more, "the unscaling of gradients", native.OPTIMIZER, drops=False)

    return check_finite_and_unscale


def _once_more(original):
    @functools.wraps(original)
    def operator(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not thread.updating or not _is_ours(error):
                raise
            failure = Failure(error)
        return again.again(
            failure, lambda: original(*args, **kwargs), "the unscaling of gradients", native.OPTIMIZER, drops=False
        )

    return operator


def _updating(original):
    @functools.wraps(original)
    def _update(self):
        kept = [(name, vars(self)[name]) for name in ("_incr_count", "_decr_count", "_scale") if name in vars(self)]
        try:
            return original(self)
        except Exception as error:
            if not _is_ours(error):
                raise
            failure = Failure(error)

        def once_more():
            for name, value in kept:
                setattr(self, name, value)
            return original(self)

        return again.again(failure, once_more, "the update of the loss scale", native.OPTIMIZER, drops=False)

    return _update
