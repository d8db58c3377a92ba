"""The loss region where it is written with tensors: `(net(x) - t).abs().mean()`, slices, interpolation, a similarity matrix.

Every eager operator passes through paddle._C_ops or a method of Tensor. While steps are armed these are replaced by
functions that try again, with an inner graph less, what ran out of memory: one operator, never more. Where a step is not
armed no graph is kept apart, so nothing could be dropped, and they are Paddle's own again. An optimizer's operators are
tried again too, with no graph less.

An operator that writes to its input, or that ranks meet in, is never tried twice; one that draws random numbers draws
the same ones.
"""

import functools

from . import again, native
from .generators import Generators
from .oom import Failure, is_oom
from .runtime import runtime, thread

_MOST_CHANGES = 16  # of Tensor's methods: each costs the interpreter its caches, and Python keeps count of them
_METHODS = ("clone", "contiguous", "_getitem_dygraph", "_getitem_from_offset")
_BINARY = "add sub mul div truediv floordiv pow mod matmul"
_COMPARISONS = "gt ge lt le eq ne"
# Ranks meet in these, or they write to what they are given without saying so by their name.
_NEVER = ("all_", "alltoall", "c_", "dist", "global_", "mp_", "p_", "partial_", "recv", "send")
_NEVER_ALONE = """
    auc barrier batch_norm broadcast coalesce_tensor data fused_batch_norm_act fused_bn_add_activation margin_cross_entropy
    print py_func reduce reduce_scatter reshard set set_value share_buffer share_data share_var sync_batch_norm
"""
_RANDOM = """
    bernoulli binomial class_center_sample dirichlet dropout flash fused_attention fused_bias_dropout fused_dot_product
    fused_dropout fused_feedforward gaussian graph_ gumbel memory_efficient multinomial nce poisson randint random randperm
    rrelu shuffle_batch standard_gamma tdm_sampler top_p truncated uniform variable_length weighted_sample
"""

_operators = {}  # name -> (Paddle's own, ours), made at the first use
_methods = {}
_state = {"watched": False, "changes": 0}


def watch():
    """Guards operators from here on. Cheap where they are guarded already."""
    if _state["watched"]:
        return
    if not _operators:
        _find()
    _state["watched"] = True
    _state["changes"] += 1
    _put(1)


def rest():
    """Gives Paddle its own operators back: no graph is held that could be dropped for one."""
    if _state["watched"] and _state["changes"] < _MOST_CHANGES:
        _state["watched"] = False
        _put(0)


def _put(which):
    """Paddle's own (0) or ours (1), but where somebody else has put a third in the place of the other since: that one stays,
    in front of whichever it calls. Ours without a graph to drop, or Paddle's own unguarded, do no harm."""
    table = vars(runtime.paddle._C_ops)
    other = 1 - which
    table.update((name, pair[which]) for name, pair in _operators.items() if table.get(name) is pair[other])
    tensor = runtime.paddle.base.core.eager.Tensor
    own = vars(tensor)
    for name, pair in _methods.items():
        if own.get(name) is pair[other]:
            setattr(tensor, name, pair[which])


def _find():
    random = tuple(_RANDOM.split())
    for name, function in vars(runtime.paddle._C_ops).items():
        if callable(function) and _may_run_twice(name):
            make = _guarded_random if name.startswith(random) else _guarded
            _operators[name] = function, make(function)
    tensor = vars(runtime.paddle.base.core.eager.Tensor)
    dunders = ["__%s%s__" % (side, name) for name in _BINARY.split() for side in ("", "r")]
    dunders += ["__%s__" % name for name in _COMPARISONS.split()]
    for name in dunders + list(_METHODS):
        if type(tensor.get(name)).__name__ == "method_descriptor":
            _methods[name] = tensor[name], _guarded(tensor[name])


def _may_run_twice(name):
    writes = name.startswith("_") or name.endswith("_") or "_grad" in name or "inplace" in name
    return not writes and name not in _NEVER_ALONE.split() and not name.startswith(_NEVER)


def _is_ours(error, kwargs):
    """True for an OOM of the loss region, or of an update."""
    if (thread.inside and not thread.loss) or not runtime.guarding:
        return False
    return is_oom(error) and not again.is_reported(error) and kwargs.get("out") is None


def _again(failure, function, name):
    if thread.updating:
        return again.again(failure, function, name, native.OPTIMIZER, drops=False)
    return again.again(failure, function, name)


def _guarded(original):
    name = original.__name__

    @functools.wraps(original)
    def guarded(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not _is_ours(error, kwargs):
                raise
            failure = Failure(error)
        return _again(failure, lambda: original(*args, **kwargs), name)

    return guarded


def _guarded_random(original):
    name = original.__name__

    @functools.wraps(original)
    def guarded(*args, **kwargs):
        if thread.inside and not thread.loss:
            return original(*args, **kwargs)
        before = Generators()
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not _is_ours(error, kwargs):
                raise
            failure = Failure(error)

        def once_more():
            before.restore()
            return original(*args, **kwargs)

        return _again(failure, once_more, name)

    return guarded
