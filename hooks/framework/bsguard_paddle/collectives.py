"""Collectives inside a forward: a layer that has them is not split, since the other ranks would wait for calls that never
come, or come too often.

They are recognised before anything is split, on every rank: by the class of a layer, and by what its forward does as it
runs as a whole. In a trial of the split proof, which one rank runs alone, they are an error before they begin.
"""

import functools
import sys

from .runtime import runtime, thread

# Packages whose layers exchange activations, weights or gradients by themselves.
_PACKAGES = ("paddle.distributed.", "paddle.incubate.distributed.")
_HARMLESS = ("paddle.distributed.parallel",)  # DataParallel
_OPERATORS = (
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "broadcast",
    "broadcast_",
    "c_allreduce_sum",
    "c_allreduce_sum_",
    "c_concat",
    "c_embedding",
    "c_identity",
    "c_identity_",
    "c_scatter",
    "c_softmax_with_cross_entropy",
    "c_softmax_with_multi_label_cross_entropy",
    "c_split",
    "global_gather",
    "global_scatter",
    "mp_allreduce_sum",
    "mp_allreduce_sum_",
    "p_recv",
    "p_send",
    "partial_allgather",
    "partial_allgather_",
    "partial_recv",
    "partial_send",
    "recv_v2",
    "reduce_scatter",
    "send_v2",
    "sync_batch_norm_",
)
_PIPELINE = "the job is a pipeline of %d stages, which exchange activations and gradients between its layers"
_NO_COLLECTIVES = frozenset(("name", "rank", "size", "eager_connect", "eager_connect_ring_exchange"))


def patch():
    """Puts a look-out in front of everything that a forward can exchange data by."""
    paddle = runtime.paddle
    group = getattr(paddle.base.core, "ProcessGroup", None)
    for name in dir(group) if group is not None else ():
        if not name.startswith("_") and name not in _NO_COLLECTIVES:
            setattr(group, name, _watched(getattr(group, name), name))
    for module in (paddle._C_ops, paddle._legacy_C_ops):
        for name in _OPERATORS:
            if callable(getattr(module, name, None)):
                setattr(module, name, _watched(getattr(module, name), name))


def _watched(original, name):
    @functools.wraps(original)
    def collective(*args, **kwargs):
        if thread.trial:
            raise RuntimeError("its forward runs a collective, %s" % name)
        if thread.inside:
            thread.collective = name
        return original(*args, **kwargs)

    return collective


def pipeline():
    """Why nothing is split in a job whose ranks are the stages of a pipeline; None for any other.

    Its schedule calls the layers of a stage one by one, so that none of them tells of it.
    """
    fleet = sys.modules.get("paddle.distributed.fleet")
    try:
        stages = fleet.get_hybrid_communicate_group().get_pipe_parallel_world_size()
    except AttributeError:  # nobody has initialised it
        return None
    return _PIPELINE % stages if stages > 1 else None


def objection(layer):
    """Why a layer of a job of many ranks is not to be split, by what it is made of; None: nothing is known against it."""
    if runtime.paddle.distributed.get_world_size() < 2:
        return None
    for name, sub in layer.named_sublayers(include_self=True):
        kind = type(sub)
        said = "%s%s" % (kind.__name__, " (%s)" % name if name else "")
        if kind.__name__ == "SyncBatchNorm":
            return "%s exchanges statistics with other ranks inside the forward" % said
        for base in kind.__mro__:
            if (base.__module__ + ".").startswith(_PACKAGES) and not base.__module__.startswith(_HARMLESS):
                return "%s exchanges data with other ranks inside the forward or the backward" % said
        if getattr(sub, "_sparse", False):
            return "%s has sparse gradients, which are not exchanged between ranks in chunks" % said
    return None


def seen():
    """The name of a collective that a forward ran since the last call of this, None for none."""
    name, thread.collective = thread.collective, None
    return name
