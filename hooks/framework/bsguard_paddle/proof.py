"""May this call be cut along its batch? Shown by trial before it is done.

A few samples are run alone and among neighbours, without gradients, with dropout off and BatchNorm on its running
statistics, and everything that the trial changed is put back. If every output has one batch axis (or does not depend on
the batch at all) and the samples come out the same, the call may be cut. Where the first dimension of an input is the
batch only by coincidence (a square mask, class weights), cutting it fails the trial and other choices are tried.
"""

import contextlib
import itertools

from . import tree
from .runtime import is_tensor, original_call, runtime
from .state import LayerState, RandomState, batch_norms, normalises_by_batch

_TRIAL_ROWS = 4
_MOST_CHOICES = 16
# Relative to the largest value of the output. Two sizes of batch may be computed by different algorithms; a dependence on
# neighbours shows as a difference of the order of the values themselves.
TOLERANCE_DOUBLE = 1e-8
TOLERANCE_SINGLE = 2e-3
TOLERANCE_HALF = 3e-2


class _Value:
    """An output tensor of a trial on the host. half: it was computed in 16 bits somewhere."""

    __slots__ = ("array", "half")

    def __init__(self, tensor, half):
        sixteen = "float16" in str(tensor.dtype)
        self.array = (tensor.astype("float32") if sixteen else tensor).numpy()
        self.half = half or sixteen


CONSTANT, CONCATENATED, MEAN, SUM = "constant", "concatenated", "mean", "sum"


class Output:
    """How one output leaf is put together from chunks.

    kind: CONSTANT (the same in every chunk), CONCATENATED (along `axis`, `per_sample` entries a sample), MEAN (over the
    samples) or SUM.
    """

    __slots__ = ("axis", "kind", "per_sample", "stop_gradient")

    def __init__(self, kind, axis=None, per_sample=0):
        self.kind = kind
        self.axis = axis
        self.per_sample = per_sample
        self.stop_gradient = True

    def same_as(self, other):
        """True if both are put together the same way."""
        return (self.kind, self.axis, self.per_sample) == (other.kind, other.axis, other.per_sample)

    def weight(self, start, stop, batch):
        """The share that the chunk of samples start..stop-1 has in a reduced output."""
        return (stop - start) / batch if self.kind is MEAN else 1.0

    def rows(self, start, stop):
        """The part of the axis that belongs to samples start..stop-1."""
        return start * self.per_sample, stop * self.per_sample


class Proof:
    """What the trial showed. why: None if the call may be cut, else what stands against it."""

    def __init__(self, why=None):
        self.why = why
        self.chosen = frozenset()
        self.outputs = []
        self.reasons = []  # why a rescue is not exact, e.g. ["dropout"]
        self.random = False
        self.smallest = 1  # samples: the smallest chunk that the trial covers

    @property
    def exactness(self):
        """enum bsg_exactness of a run in chunks."""
        from . import native

        if self.why is not None:
            return native.REFUSED
        if any(reason != "dropout" for reason in self.reasons):
            return native.APPROXIMATE
        return native.EQUIVALENT if self.reasons else native.EXACT


def prove(layer, inputs, mode, smallest):
    """Tries to show that `layer` may run `inputs` in chunks of at least `smallest` samples. Returns a Proof.

    inputs: Inputs with a batch of at least 2. mode: autocast settings of the call. Never raises for a call that cannot
    be cut: any error of a trial is a reason against it.
    """
    why = _objection(layer)
    if why is not None:
        return Proof(why)
    random_before = RandomState()
    state = LayerState(layer, skip=[p for p in layer.parameters() if not p.stop_gradient])
    try:
        proof = _try_choices(layer, inputs, mode, smallest, random_before)
        if proof.why is None:
            _observe_training(layer, inputs, mode, proof, random_before, state)
    finally:
        state.restore()
        random_before.restore()
    return proof


def _objection(layer):
    """What forbids a split before any trial; None: nothing."""
    paddle = runtime.paddle
    for name, sub in layer.named_sublayers(include_self=True):
        if type(sub).__name__ == "SyncBatchNorm":
            return "SyncBatchNorm has collectives inside the forward"
        for hook in itertools.chain(sub._forward_pre_hooks.values(), sub._forward_post_hooks.values()):
            if not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("paddle."):
                return "a forward hook on %s would run once for each chunk" % (name or type(layer).__name__)
    if paddle.distributed.get_world_size() > 1:
        return "this version does not split jobs of many ranks"
    return None


def _try_choices(layer, inputs, mode, smallest, random_before):
    last = "no input carries the batch"
    for chosen in _choices(inputs.units):
        proof = Proof()
        proof.chosen = chosen
        with _without_randomness(layer):
            why = _rows_are_independent(layer, inputs, mode, proof, random_before, smallest)
        if why is None:
            return proof
        last = why if chosen == frozenset(inputs.units) else last
    return Proof(last)


def _choices(units):
    """Sets of units to cut: all, then all but a few, most first."""
    count = 0
    for size in range(len(units), 0, -1):
        for chosen in itertools.combinations(units, size):
            yield frozenset(chosen)
            count += 1
            if count >= _MOST_CHOICES:
                return


def _rows_are_independent(layer, inputs, mode, proof, random_before, smallest):
    """None if rows alone equal rows among neighbours for this choice; fills proof.outputs. Else what was seen."""
    rows = min(_TRIAL_ROWS, inputs.batch)
    sizes = [max(1, rows // 2)]
    half = mode.is_mixed()

    def trial(start, stop):
        random_before.restore()
        args, kwargs = inputs.sample(start, stop, proof.chosen)
        outputs = mode.run(lambda: original_call(layer, args, kwargs), grad=False)
        return tree.shape_of(outputs), [
            _Value(leaf, half) if is_tensor(leaf) else leaf for leaf in tree.leaves(outputs)
        ]

    try:
        shape, together = trial(0, rows)
        while sizes:
            size = sizes.pop(0)
            first_shape, first = trial(0, size)
            second_shape, second = trial(size, rows)
            if first_shape != shape or second_shape != shape:
                return "the structure of its outputs depends on the batch"
            outputs = []
            for index, values in enumerate(zip(together, first, second)):
                output, why = _compare(values, rows, size)
                if why is not None:
                    return "output %d %s" % (index, why)
                outputs.append(output)
            if proof.outputs and not all(a.same_as(b) for a, b in zip(outputs, proof.outputs)):
                return "its outputs have no fixed batch axis"
            proof.outputs = outputs
            proof.smallest = size
            # Chunks of one sample have traps of their own (a squeezed axis); uneven ones tell a mean from a sum of parts.
            reduced = any(output.kind in (MEAN, SUM) for output in outputs)
            if size > 1 and (smallest < 2 or reduced):
                sizes.append(1)
    except Exception as error:  # a model that refuses a cut input is an answer too
        return "the trial failed (%s: %s)" % (type(error).__name__, (str(error).strip().splitlines() or [""])[-1][:120])
    if all(output.kind is CONSTANT for output in proof.outputs):
        return "none of its outputs depends on the batch"
    return None


def _compare(values, rows, size):
    """(Output, None) where the rows agree, (None, why) where they do not."""
    if not all(isinstance(value, _Value) for value in values):
        together, first, second = values
        same = type(together) is type(first) is type(second) and bool(together == first == second)
        return (Output(CONSTANT), None) if same else (None, "is no tensor and depends on the batch")
    together, first, second = (value.array for value in values)
    half = values[0].half
    if len(together.shape) != len(first.shape) or len(first.shape) != len(second.shape):
        return None, "changes its number of dimensions with the batch"
    axes = [i for i, (a, b) in enumerate(zip(together.shape, first.shape)) if a != b]
    if not axes:
        if _close(together, first, half) and _close(together, second, half):
            return Output(CONSTANT), None
        if together.dtype.kind == "f":
            share = size / rows
            if _close(together, (first * share + second * (1.0 - share)).astype(together.dtype), half):
                return Output(MEAN), None
            if _close(together, first + second, half):
                return Output(SUM), None
        return None, "has no batch axis, and is neither a mean nor a sum over the samples"
    axis = axes[0]
    per_sample, rest = divmod(together.shape[axis], rows)
    cut = per_sample * size
    head = together[(slice(None),) * axis + (slice(0, cut),)]
    tail = together[(slice(None),) * axis + (slice(cut, None),)]
    if rest or head.shape != first.shape or tail.shape != second.shape:
        return None, "has no single axis that grows with the batch"
    if not (_close(head, first, half) and _close(tail, second, half)):
        return None, "depends on the other samples of the batch"
    return Output(CONCATENATED, axis, per_sample), None


def _close(a, b, half):
    import numpy

    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fc":
        return bool((a == b).all())
    finite = numpy.isfinite(a)
    if not numpy.array_equal(finite, numpy.isfinite(b)):
        return False
    if not finite.any():
        return True
    bound = TOLERANCE_HALF if half else TOLERANCE_DOUBLE if a.dtype.itemsize >= 8 else TOLERANCE_SINGLE
    scale = float(numpy.abs(a[finite]).max())
    return float(numpy.abs(a[finite] - b[finite]).max()) <= bound * max(scale, 1e-30)


def _observe_training(layer, inputs, mode, proof, random_before, state):
    """One small forward as in training: what is random, what normalises by the batch, what else it changes."""
    rows = min(2, inputs.batch)
    random_before.restore()
    before = RandomState().fingerprint()
    args, kwargs = inputs.sample(0, rows, proof.chosen)
    written = _Written((args, kwargs))
    try:
        outputs = mode.run(lambda: original_call(layer, args, kwargs), grad=True)
    except Exception as error:
        proof.why = "the trial failed (%s: %s)" % (
            type(error).__name__,
            (str(error).strip().splitlines() or [""])[-1][:120],
        )
        return
    for output, leaf in zip(proof.outputs, tree.leaves(outputs)):
        output.stop_gradient = not is_tensor(leaf) or leaf.stop_gradient
    if written.changed((args, kwargs)):
        proof.why = "its forward writes to its inputs"
        return
    outputs = args = kwargs = written = None
    proof.random = RandomState().fingerprint() != before
    if proof.random:
        proof.reasons.append(
            "dropout" if any(_draws(sub) for sub in layer.sublayers(include_self=True)) else "randomness"
        )
    if any(output.kind in (MEAN, SUM) and not output.stop_gradient for output in proof.outputs):
        # A mean over samples or one over valid elements: four samples cannot tell them apart for all others.
        proof.reasons.append("loss inside the model")
    norms = batch_norms(layer)
    if any(normalises_by_batch(norm) for norm in norms):
        proof.reasons.append("batch_norm")
    statistics = {id(t) for norm in norms for t in (norm._mean, norm._variance)}
    changed = [name for name in state.restore() if name not in _names_of(layer, statistics)]
    if changed:
        proof.why = "its forward changes %s" % ", ".join(changed[:3])


class _Written:
    """Notices that a forward wrote to its arguments: to a tensor in place, or to a container."""

    def __init__(self, arguments):
        self._leaves = tree.leaves(arguments)
        self._shape = tree.shape_of(arguments)
        self._versions = [leaf.inplace_version for leaf in self._leaves if is_tensor(leaf)]

    def changed(self, arguments):
        """True if `arguments`, the same objects, are not what they were."""
        now = tree.leaves(arguments)
        return (
            tree.shape_of(arguments) != self._shape
            or any(a is not b for a, b in zip(now, self._leaves))
            or [leaf.inplace_version for leaf in self._leaves if is_tensor(leaf)] != self._versions
        )


def _names_of(layer, tensors):
    names = set()
    for prefix, sub in layer.named_sublayers(include_self=True):
        for table in (sub._buffers, sub._parameters):
            for name, tensor in table.items():
                if id(tensor) in tensors:
                    names.add(prefix + "." + name if prefix else name)
    return names


def _draws(sub):
    """True for a layer that drops at random while training."""
    if not sub.training:
        return False
    if "Drop" in type(sub).__name__:
        return True
    rate = getattr(sub, "dropout", None)
    return isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0


@contextlib.contextmanager
def _without_randomness(layer):
    """Dropout off and BatchNorm on its running statistics, for the time of a trial."""
    paddle = runtime.paddle
    base = paddle.nn.layer.norm._BatchNormBase
    kinds = (base, paddle.nn.layer.rnn.RNNBase)
    changed = [
        sub
        for sub in layer.sublayers(include_self=True)
        if sub.training and (isinstance(sub, kinds) or "Drop" in type(sub).__name__)
    ]
    modules = (paddle.nn.functional, paddle.nn.functional.common)
    names = ("dropout", "dropout2d", "dropout3d", "alpha_dropout")
    kept = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    for sub in changed:
        sub.training = False
    try:
        for module, name, _ in kept:
            setattr(module, name, _pass_through)
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
        for sub in changed:
            sub.training = True


def _pass_through(x, *_, **__):
    return x
