"""The loss region: layers without anything to train, called on their own (losses, metrics, frozen teachers), and
loss functions.

Where such a call runs out of memory while inner graphs are held, those are dropped (their backward then runs in chunks)
and the call is tried again. What the loss itself needs is a floor that no chunking of the model lowers.
"""

from . import native
from .call import one_backward, pending
from .oom import Failure, is_oom
from .rescue import shrink
from .runtime import original_call


def call(layer, args, kwargs):
    """A call of a layer in the loss region."""
    return guard(original_call, (layer, args, kwargs), {})


def guard(function, args, kwargs):
    """function(*args, **kwargs), tried again with less held where it runs out of memory."""
    while True:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not is_oom(error) or not holds_graphs():
                raise
            failure = Failure(error)
        # Another thread's backward may be running through the newest of them; what it frees serves as well.
        with one_backward:
            if holds_graphs():
                drop_one(failure, native.LOSS)
        failure = None


def holds_graphs():
    """True if some call still holds an inner graph that could be dropped."""
    return any(call.inner is not None for call in pending())


def drop_one(failure, phase):
    """Drops the newest inner graph; its backward will run in chunks. Raises the user's exception where it cannot."""
    call = [one for one in pending() if one.inner is not None][-1]
    call.drop_graph()
    shrink(call, phase, failure)
