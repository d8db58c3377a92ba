"""A call whose backward ran out of memory, as a whole once more: for what cannot be split, where memory was refused by accident.

Its forward is run again from where its random numbers began, with the inputs and flags of then; statistics and generators
stay as they are now. Only for a forward that was shown to be the same again (proof.may_be_repeated).
"""

from . import ranks, tree
from .generators import RandomState
from .runtime import is_tensor, original_call
from .state import BatchNormStatistics


def recompute(call):
    """Builds the inner graph of this call anew."""
    call.as_recorded(lambda: _recompute(call))


def _recompute(call):
    statistics, random_now = BatchNormStatistics(call.site.batch_norms()), RandomState()
    call.random_before.restore()
    try:
        args, kwargs, joints = call.inputs.whole()
        with ranks.deferring():
            outputs = call.mode.run(lambda: original_call(call.layer, args, kwargs), grad=True)
    finally:
        statistics.restore()
        random_now.restore()
    call.inputs.hand_back(joints)
    # As Call.hand_out() has met them.
    call.inner, call.joints = [leaf for leaf in tree.leaves(outputs) if is_tensor(leaf)], joints
