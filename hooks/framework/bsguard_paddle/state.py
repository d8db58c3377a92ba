"""What a forward changes besides its outputs, so that running it again can be undone: autocast and gradient mode, BatchNorm
statistics, and any other buffer or attribute of the layers; for random generators see generators.py.

All functions take Paddle from `runtime`. Snapshots hold small copies only; buffers of unknown size go to host memory.
"""

import collections
import sys

from . import evidence
from .runtime import paddle_of, thread

_SIMPLE = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS = (list, dict, set, collections.deque)
# Attributes that Paddle itself keeps on every Layer and that say nothing of the model's state.
_OWN_ATTRIBUTES = frozenset(("_parameters", "_buffers", "_sub_layers", "training", "_built", "_op_recorder", "_helper"))
_NAMES = frozenset(("_full_name", "_dtype"))
_TABLES = ("_buffers", "_parameters", "_sub_layers")
# Changes together with a buffer, which is named itself.
_SHADOWS = frozenset(("_non_persistable_buffer_names_set",))


def patch():
    """Notes when the user's hooks on saved tensors are entered: a second forward would be outside of them."""
    kind = getattr(paddle_of().autograd, "saved_tensors_hooks", None)
    if kind is None:
        return
    enter, leave = kind.__enter__, kind.__exit__

    def __enter__(self):
        thread.saved_tensors_hooks = self
        return enter(self)

    def __exit__(self, *arguments):
        thread.saved_tensors_hooks = None
        return leave(self, *arguments)

    kind.__enter__, kind.__exit__ = __enter__, __exit__


class Mode:
    """Autocast settings of the tracer at a forward, to run the same forward again elsewhere."""

    _ATTRIBUTES = ("_amp_level", "_amp_dtype", "_use_promote", "_has_grad", "_train_mode")

    def __init__(self):
        tracer = paddle_of().base.framework._dygraph_tracer()
        self._take(tracer)
        evidence.forward_began(getattr(tracer, "_amp_level", None))

    @classmethod
    def now(cls):
        """The settings of the present moment, where no forward of a network begins."""
        mode = cls.__new__(cls)
        mode._take(paddle_of().base.framework._dygraph_tracer())
        return mode

    def _take(self, tracer):
        self._values = self._read(tracer)
        # Which operators are cast is asked only where any is: it takes longer than all else.
        self._operators = tracer._get_amp_op_list() if self.is_mixed() else None
        self.hooked = thread.saved_tensors_hooks is not None  # the user's hooks on saved tensors were entered

    @classmethod
    def _read(cls, tracer):
        return {name: getattr(tracer, name) for name in cls._ATTRIBUTES if hasattr(tracer, name)}

    @staticmethod
    def _write(tracer, values):
        for name, value in values.items():
            setattr(tracer, name, value)

    def restore(self):
        """Sets the tracer to these: an exception may have left it otherwise."""
        tracer = paddle_of().base.framework._dygraph_tracer()
        self._write(tracer, self._values)
        if self._operators is not None:
            tracer._set_amp_op_list(*self._operators)

    def records(self):
        """True if gradients were recorded."""
        return bool(self._values["_has_grad"])

    def is_mixed(self):
        """True under automatic mixed precision."""
        off = paddle_of().base.core.AmpLevel.O0
        return self._values.get("_amp_level", off) != off

    def run(self, function, grad=True):
        """function() under these settings, with gradients recorded or not; the present settings come back."""
        tracer = paddle_of().base.framework._dygraph_tracer()
        before = self._read(tracer)
        operators = tracer._get_amp_op_list() if self._operators is not None else None
        values = self._values if grad is None else {**self._values, "_has_grad": grad}
        if before == values and operators == self._operators:
            return function()
        self._write(tracer, values)
        if operators is not None:
            tracer._set_amp_op_list(*self._operators)
        try:
            return function()
        finally:
            self._write(tracer, before)
            if operators is not None:
                tracer._set_amp_op_list(*operators)


def without_autocast(function, *args, grad=None):
    """function(*args) with automatic mixed precision off, and with gradients recorded as said (None: as they are)."""
    tracer = paddle_of().base.framework._dygraph_tracer()
    level, recorded = tracer._amp_level, tracer._has_grad
    tracer._amp_level = paddle_of().base.core.AmpLevel.O0
    if grad is not None:
        tracer._has_grad = grad
    try:
        return function(*args)
    finally:
        tracer._amp_level = level
        tracer._has_grad = recorded


def batch_norms(layer):
    """The sublayers that normalise by the statistics of the batch, when in training mode."""
    kinds = batch_norm_kinds()
    return [sub for sub in layer.sublayers(include_self=True) if isinstance(sub, kinds)]


def batch_norm_kinds():
    """The classes of such layers. paddle.nn.BatchNorm, which the suites are built on, has no base in common with the rest."""
    norm = paddle_of().nn.layer.norm
    return norm._BatchNormBase, norm.BatchNorm


def layer_form(layer):
    """What of a layer may decide what its forward computes, beside numbers and weights: comparable and hashable.

    The layers below it, which of them train and have hooks, which parameters take a gradient, flags and texts.
    """
    parts = []
    for sub in layer.sublayers(include_self=True):
        flags = tuple(
            (name, value) for name, value in vars(sub).items() if type(value) in (bool, str) and name not in _NAMES
        )
        hooks = (len(sub._forward_pre_hooks), len(sub._forward_post_hooks))
        frozen = tuple(p is not None and p.stop_gradient for p in sub._parameters.values())
        parts.append((id(sub), flags, hooks, frozen))
    return tuple(parts)


def normalises_by_batch(norm):
    """True if this BatchNorm would use, and update by, the statistics of the present batch."""
    return bool(norm.training) and not norm._use_global_stats


class BatchNormStatistics:
    """Running means and variances of some BatchNorm layers, as they were when this was made."""

    def __init__(self, norms):
        self._saved = [
            (norm, norm._mean.clone(), norm._variance.clone()) for norm in norms if normalises_by_batch(norm)
        ]

    def __bool__(self):
        return bool(self._saved)

    def restore(self):
        """Puts the statistics back."""
        for norm, mean, variance in self._saved:
            _write(norm._mean, mean)
            _write(norm._variance, variance)

    def take(self):
        """The present statistics, to be given to merge()."""
        return [(norm._mean.clone(), norm._variance.clone()) for norm, _, _ in self._saved]

    def merge(self, taken, weights):
        """Sets the statistics that one pass over the whole batch would have left.

        taken: for each chunk, the statistics after it ran alone on top of this snapshot. weights: the chunk's share of
        the batch. Means are averaged; the variance gains that of the means (law of total variance).
        """
        for index, (norm, mean, variance) in enumerate(self._saved):
            momentum = float(norm._momentum)
            gain = 1.0 - momentum
            if gain <= 0.0:
                continue
            total_mean = total_square = total_variance = None
            for chunk, weight in zip(taken, weights):
                chunk_mean = (chunk[index][0] - mean * momentum) / gain
                chunk_variance = (chunk[index][1] - variance * momentum) / gain
                parts = (chunk_mean * weight, chunk_mean * chunk_mean * weight, chunk_variance * weight)
                if total_mean is None:
                    total_mean, total_square, total_variance = parts
                else:
                    total_mean = total_mean + parts[0]
                    total_square = total_square + parts[1]
                    total_variance = total_variance + parts[2]
            whole = total_variance + total_square - total_mean * total_mean
            _write(norm._mean, mean * momentum + total_mean * gain)
            _write(norm._variance, variance * momentum + whole * gain)


def _write(tensor, value):
    # copy_ keeps the tensor and its autograd metadata; the statistics never need a gradient.
    with paddle_of().no_grad():
        tensor.copy_(value.astype(tensor.dtype), True)


class LayerState:
    """Every attribute and buffer below a layer but trained parameters, as they were when this was made.

    Used around a trial forward only: buffers are copied to the host.
    """

    def __init__(self, layer, skip=()):
        skipped = {id(tensor) for tensor in skip}
        self._attributes = []
        self._tensors = []
        seen = set()
        for prefix, sub in layer.named_sublayers(include_self=True):
            kept = {name: _copy_of(value) for name, value in vars(sub).items() if name not in _OWN_ATTRIBUTES}
            tables = [(vars(sub)[name], dict(vars(sub)[name])) for name in _TABLES]
            self._attributes.append((prefix, sub, kept, tables))
            for table in (sub._buffers, sub._parameters):
                for name, tensor in table.items():
                    if tensor is None or id(tensor) in skipped or id(tensor) in seen or _is_workspace(sub, name):
                        continue
                    seen.add(id(tensor))
                    if tensor.stop_gradient and tensor._is_initialized():
                        self._tensors.append((_join(prefix, name), tensor, tensor.numpy().copy()))

    def replaced(self):
        """[(label, layer, name, value, value before)] of the attributes that are other objects now, None before if new."""
        found = []
        for prefix, sub, kept, _ in self._attributes:
            for name, value in vars(sub).items():
                before = kept.get(name, (None, None))[0]
                if name not in _OWN_ATTRIBUTES and value is not before:
                    found.append((_join(prefix, name), sub, name, value, before))
        return found

    def restore(self):
        """Puts everything back; returns the names of what had changed, e.g. ["queue", "encoder.calls"]."""
        changed = []
        for prefix, sub, kept, tables in self._attributes:
            now = vars(sub)
            for table, content in tables:
                differing = [key for key in table.keys() | content.keys() if table.get(key) is not content.get(key)]
                changed.extend(_join(prefix, key) for key in sorted(differing) if key not in _computed_before(sub))
                if differing:
                    table.clear()
                    table.update(content)
            for name in [name for name in now if name not in kept and name not in _OWN_ATTRIBUTES]:
                changed.append(_join(prefix, name))
                del now[name]
            for name, (value, content) in kept.items():
                if name not in _SHADOWS and (name not in now or not _same(now[name], value, content)):
                    noted = _is_of_paddle(sub) and name.startswith("_") and isinstance(now.get(name), _SIMPLE)
                    if not noted and name not in _computed_before(sub):
                        changed.append(_join(prefix, name))
                if content is not None:
                    _refill(value, content)
                now[name] = value
        numpy = sys.modules["numpy"]
        for name, tensor, value in self._tensors:
            if not numpy.array_equal(tensor.numpy(), value, equal_nan=value.dtype.kind == "f"):
                changed.append(name)
                tensor.set_value(value)
        return changed


def _computed_before(layer):
    """Attributes that a hook of Paddle's computes anew before each forward (weight_norm): no state of their own."""
    hooks = layer._forward_pre_hooks.values()
    return {getattr(hook, "name", None) for hook in hooks if type(hook).__module__.startswith("paddle.")}


def _is_workspace(layer, name):
    """True for memory that a recurrent layer of Paddle's keeps between calls and that holds nothing of the model's: each
    forward in training takes it anew, each one in evaluation lets go of it."""
    return name == "_dropout_state" and isinstance(layer, paddle_of().nn.layer.rnn.RNNBase)


def _is_of_paddle(layer):
    """True for a layer that Paddle ships: what it notes of its first call (a data format) is no state of the model."""
    return type(layer).__module__.startswith("paddle.nn.")


def _join(prefix, name):
    return prefix + "." + name if prefix else name


def _copy_of(value):
    """(value, shallow copy of its content where it is a plain container)."""
    if type(value) in _CONTAINERS:
        return value, type(value)(value)
    return value, None


def _same(now, value, content):
    if now is not value:
        return isinstance(now, _SIMPLE) and type(now) is type(value) and now == value
    if content is None:
        return True
    if len(now) != len(content):
        return False
    if isinstance(now, dict):
        return all(key in now and now[key] is content[key] for key in content)
    if isinstance(now, set):
        return all(item in now for item in content)
    return all(a is b for a, b in zip(now, content))


def _refill(value, content):
    if isinstance(value, (dict, set)):
        value.clear()
        value.update(content)
    elif isinstance(value, list):
        value[:] = content
    else:
        value.clear()
        value.extend(content)
