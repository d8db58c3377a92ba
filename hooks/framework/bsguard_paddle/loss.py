"""The loss region: what is called between the forward of the boundaries and the backward. Layers without anything to
train (losses, metrics, frozen teachers), loss functions, and by operations.py every operator.

Where one runs out of memory while inner graphs are held, those are dropped (their backward then runs in chunks) and it is
tried again. What the loss itself needs is a floor that no chunking of the model lowers.
"""

from . import again, foresee, keep
from .call import pending
from .oom import Failure, is_oom
from .rescue import shrink
from .runtime import original_call, thread


def call(layer, args, kwargs):
    """A call of a layer in the loss region. Operators are tried again below it; the layer itself only where it is
    Paddle's own loss: a user's may count or remember, and would do so twice."""
    if type(layer).__module__ != "paddle.nn.layer.loss":
        thread.loss += 1
        try:
            return original_call(layer, args, kwargs)
        finally:
            thread.loss -= 1
    noted, thread.noting = thread.noting, True
    thread.loss += 1
    try:
        result = guard(original_call, (layer, args, kwargs), {}, type(layer).__name__)
    finally:
        thread.loss -= 1
        thread.noting = noted
    term = foresee.layer_term(layer)
    if term is not None and not thread.inside:
        foresee.takes(term, args, kwargs)
    return result


def guard(function, args, kwargs, name):
    """function(*args, **kwargs), tried again with less held where it runs out of memory."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if not is_oom(error) or again.is_reported(error):
            raise
        failure = Failure(error)
    return again.again(failure, lambda: function(*args, **kwargs), name)


def holds_graphs():
    """True if some call still holds an inner graph that could be dropped, or more than it needs."""
    return keep.holds() or any(call.inner is not None and call.inputs.batch > 1 for call in pending())


def drop_one(failure, phase):
    """Drops what is held beyond need, else the newest inner graph; its backward will run in chunks. Raises the user's
    exception where it cannot. True: the first, and once something has gone through it is to be said."""
    if keep.give_back(failure, phase):
        return True
    call = [one for one in pending() if one.inner is not None and one.inputs.batch > 1][-1]
    call.drop_graph()
    try:
        shrink(call, phase, failure)
    except BaseException:
        # The user may catch it and go on: a backward through what is no longer there must say why it cannot.
        call.spoiled = "its graph was dropped for a loss that did not fit even so"
        raise
    return False
