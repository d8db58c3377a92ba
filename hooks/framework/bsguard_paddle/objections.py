"""What forbids a split before any trial: hooks that would run once for each chunk, layers whose forward talks to others."""

import itertools

from . import collectives, hooks
from .runtime import runtime

# Layers that talk to other ranks inside their forward: in chunks they would talk more often than the others expect. True:
# also in a job of one rank, where it has a layer that does without (BatchNorm) which bsguard may split.
_WITH_COLLECTIVES = {
    "SyncBatchNorm": True,
    "ColumnParallelLinear": False,
    "RowParallelLinear": False,
    "VocabParallelEmbedding": False,
    "ParallelCrossEntropy": False,
    "ColumnSequenceParallelLinear": False,
    "RowSequenceParallelLinear": False,
    "PipelineLayer": False,
    "PipelineParallel": False,
    "TensorParallel": False,
    "SegmentParallel": False,
    "MoELayer": True,  # its routing looks at the whole batch
}


def objection(layer, mode):
    """What forbids a split before any trial; None: nothing."""
    if mode.hooked:
        return "saved_tensors_hooks are entered in the forward: a second forward, in the backward, would be outside of them"
    alone = runtime.paddle.distributed.get_world_size() < 2
    for name, sub in layer.named_sublayers(include_self=True):
        kind = next((one.__name__ for one in type(sub).__mro__ if one.__name__ in _WITH_COLLECTIVES), None)
        if kind is not None and (_WITH_COLLECTIVES[kind] or not alone):
            return "%s has collectives inside the forward%s" % (kind, ", also with one rank" if alone else "")
        for hook in itertools.chain(sub._forward_pre_hooks.values(), sub._forward_post_hooks.values()):
            if not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("paddle."):
                return "a forward hook on %s would run once for each chunk" % (name or type(layer).__name__)
        if any(p is not None and hooks.has_engine_hook(p) for p in sub._parameters.values()):
            return "a hook of the engine on a weight of %s would run once for each chunk" % (
                name or type(layer).__name__
            )
    return collectives.objection(layer)
