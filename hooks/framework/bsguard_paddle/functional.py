"""The loss region, where it is written with functions instead of layers: paddle.nn.functional's losses.

Each is wrapped so that an OOM in it drops an inner graph and tries again, as for a loss layer. Called once a step, so
the wrapper costs nothing that could be measured; inside a model it calls straight through.
"""

import functools

from . import foresee, loss
from .runtime import runtime, thread

_ENDINGS = ("_loss", "cross_entropy", "_with_logits", "kl_div")


def patch():
    """Wraps the loss functions of paddle.nn.functional."""
    module = runtime.paddle.nn.functional
    for name in getattr(module, "__all__", ()):
        function = getattr(module, name, None)
        if callable(function) and name.endswith(_ENDINGS):
            setattr(module, name, _guarded(function))


def _guarded(function):
    @functools.wraps(function)
    def guarded(*args, **kwargs):
        if not runtime.guarding:
            return function(*args, **kwargs)
        result = function(*args, **kwargs) if thread.inside else loss.guard(function, args, kwargs, function.__name__)
        if foresee.watches(function.__name__):
            foresee.takes(function, args, kwargs)
        return result

    return guarded
