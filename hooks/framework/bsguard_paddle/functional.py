"""The loss region, where it is written with functions instead of layers: paddle.nn.functional's losses.

Each is wrapped so that an OOM in it drops an inner graph and tries again, as for a loss layer. Called once a step, so
the wrapper costs nothing that could be measured; inside a model it calls straight through.
"""

import functools

from . import loss
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
        if thread.inside or not runtime.guarding:
            return function(*args, **kwargs)
        return loss.guard(function, args, kwargs, function.__name__)

    return guarded
