"""What a backward reaches from more than one side of a cut: from the user's tensors, from a call, and from where a call
hands a gradient on to what made its inputs. Paddle adds such gradients up before it goes on; with a cut each comes by itself.

For sums that is the same. Who is told of a gradient must be told of the whole: hooks of parameters are set aside, and a
call is not cut off from tensors with a hook. Nor from a PyLayer: a second run through one ends in a segmentation fault,
retained graph or not (Paddle 2.6 and 3.3).
"""

from . import hooks
from .graph import Reach, holds_kind, walk

_TOLD = "its input is made from a tensor with a gradient hook, which must see the whole gradient at once"
_PYLAYER = "its input is made by a PyLayer, whose backward cannot run for each side of a cut"


def objection(inputs):
    """What stands against cutting a call of these tensors off from what made them; None: nothing does."""
    given = [tensor for tensor in inputs if not tensor.stop_gradient]
    if any(hooks.is_watched(tensor) for tensor in given):
        return _TOLD
    made = [tensor for tensor in given if not tensor.is_leaf]
    if not made:
        return None
    if holds_kind(made, "PyLayer"):
        return _PYLAYER
    watched = hooks.watched_nodes()
    ids = {id(node) for node in watched}
    return _TOLD if watched and any(id(node) in ids for node in walk(made)) else None


def told_twice(calls, reach):
    """Parameters with hooks that a backward reaches from more than one side. reach: of the user's tensors; calls: those that
    are pending."""
    parameters = hooks.hooked()
    if not parameters:
        return []
    within = [{id(parameter) for parameter in call.parameters} for call in calls]
    reaches = [reach]
    for call in calls:
        given = [] if call.consumed else [tensor for tensor in call.inputs.tensors if not tensor.stop_gradient]
        if given:
            reaches.append(Reach(given))
    sides = [sum(p in one for one in reaches) + sum(id(p) in ids for ids in within) for p in parameters]
    return [parameter for parameter, count in zip(parameters, sides) if count > 1]
