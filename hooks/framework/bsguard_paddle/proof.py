"""May this call be cut along its batch? Shown by trial before it is done.

A few samples are run alone and among neighbours, without gradients, with dropout off and BatchNorm on its running
statistics, and everything that the trial changed is put back. If every output has one batch axis (or does not depend on
the batch at all) and the samples come out the same, the call may be cut. Where the first dimension of an input is the
batch only by coincidence (a square mask, class weights), cutting it fails the trial and other choices are tried.
"""

import contextlib
import itertools
import sys

from . import aside, collectives, gradients, ranks, sums, tree
from .graph import node_of
from .noise import Noise
from .oom import Failure, is_oom
from .outputs import (
    CONCATENATED,
    CONSTANT,
    MEAN,
    SUM,
    TOLERANCE_DOUBLE,
    TOLERANCE_HALF,
    TOLERANCE_SINGLE,
    Value,
    close,
    compare,
)
from .outside import Outside
from .runtime import is_tensor, original_call, reclaim, runtime, thread
from .state import LayerState, RandomState, batch_norm_kinds, batch_norms, normalises_by_batch

_TRIAL_ROWS = 4
_MOST_CHOICES = 16
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
_OF_THE_SAMPLES = ("dropout", "noise")  # each sample draws its own: the same in distribution
_NO_MEMORY = "a trial with two samples did not fit the memory"


class Proof:
    """What the trial showed. why: None if the call may be cut, else what stands against it."""

    CONSTANT, CONCATENATED, MEAN, SUM = CONSTANT, CONCATENATED, MEAN, SUM

    def __init__(self, why=None):
        self.why = why
        self.chosen = frozenset()
        self.outputs = []
        self.reasons = []  # why a rescue is not exact, e.g. ["dropout"]
        self.random = False
        self.draws = False  # it draws noise, beside dropout
        self.own_noise = True  # whatever is random is drawn for each sample on its own
        self.static = False  # parts of it are static programs: those made without gradients would never give any
        self.smallest = 1  # samples: the smallest chunk that the trial covers
        self.asides = []  # aside.Aside: what its forward sets anew

    @property
    def fits(self):
        """False if there was no memory for a trial: it says nothing of the call, and there may be at another time."""
        return self.why is not _NO_MEMORY

    @property
    def exactness(self):
        """enum bsg_exactness of a run in chunks."""
        from . import native

        if self.why is not None:
            return native.REFUSED
        if any(reason not in _OF_THE_SAMPLES for reason in self.reasons):
            return native.APPROXIMATE
        return native.EQUIVALENT if self.reasons else native.EXACT


def prove(layer, inputs, mode, smallest):
    """Tries to show that `layer` may run `inputs` in chunks of at least `smallest` samples. Returns a Proof.

    inputs: Inputs with a batch of at least 2. mode: autocast settings of the call. Never raises for a call that cannot
    be cut: any error of a trial is a reason against it.
    """
    why = _objection(layer, mode)
    if why is not None:
        return Proof(why)
    outside = Outside(layer)
    if outside.iterators:
        return Proof("its forward draws from an iterator, %s, that cannot be set back" % outside.iterators[0])
    random_before = RandomState()
    state = LayerState(layer, skip=[p for p in layer.parameters() if not p.stop_gradient])
    try:
        proof = _try_choices(layer, inputs, mode, smallest, random_before, outside.static)
        if proof.why is None:
            _observe_training(layer, inputs, mode, proof, random_before, state)
        if proof.why is None and mode.records():  # without, nobody asks for gradients, and recurrent layers have none
            _observe_gradients(layer, inputs, mode, proof, random_before)
        if proof.why is None:
            _note_reductions(proof)
    finally:
        state.restore()
        random_before.restore()
        changed = outside.restore()
    if changed and not (proof.why or "").startswith("its forward changes"):
        proof.why = "its forward changes %s" % ", ".join(changed[:3])
    return proof


def _run(layer, args, kwargs, mode, grad):
    """One forward of a trial: what it prints is not shown, and a backward inside it is an error."""
    thread.trial += 1
    try:
        with _Quiet(), ranks.deferring():
            return mode.run(lambda: original_call(layer, args, kwargs), grad=grad)
    finally:
        thread.trial -= 1


class _Quiet:
    """Swallows what this thread prints while entered; the job's other threads are heard."""

    def __enter__(self):
        self._shown = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (_Unheard(stream) for stream in self._shown)

    def __exit__(self, *_):
        for name, stream in zip(("stdout", "stderr"), self._shown):
            if isinstance(getattr(sys, name), _Unheard):
                setattr(sys, name, stream)


class _Unheard:
    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        return len(text) if thread.trial else self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _objection(layer, mode):
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
        if any(p is not None and gradients.has_engine_hook(p) for p in sub._parameters.values()):
            return "a hook of the engine on a weight of %s would run once for each chunk" % (
                name or type(layer).__name__
            )
    return collectives.objection(layer)


def _try_choices(layer, inputs, mode, smallest, random_before, static):
    last = "no input carries the batch"
    for chosen in _choices(inputs.units):
        for rows in (_TRIAL_ROWS, 2):
            proof = Proof()
            proof.chosen = chosen
            proof.static = static
            with _without_randomness(layer) as noise:
                why = _rows_are_independent(layer, inputs, mode, proof, random_before, smallest, rows, noise)
            if why is not _NO_MEMORY:
                break
            reclaim()
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


def _rows_are_independent(layer, inputs, mode, proof, random_before, smallest, rows, noise):
    """None if rows alone equal rows among neighbours for this choice; fills proof.outputs. Else what was seen."""
    rows = min(rows, inputs.batch)
    sizes = [max(1, rows // 2)]
    half = mode.is_mixed()

    untouched = None

    def trial(start, stop):
        nonlocal untouched
        random_before.restore()
        untouched = untouched or RandomState().fingerprint()
        noise.begin()
        args, kwargs = inputs.sample(start, stop, proof.chosen, rows)
        outputs = _run(layer, args, kwargs, mode, mode.records() or proof.static)
        return tree.shape_of(outputs), [Value(leaf, half) if is_tensor(leaf) else leaf for leaf in tree.leaves(outputs)]

    def compared(size):
        """(outputs, why) of the cut after `size` samples, against all of them together."""
        first_shape, first = trial(0, size)
        proof.own_noise &= [count * size for count in drawn] == [count * rows for count in noise.drawn]
        second_shape, second = trial(size, rows)
        if first_shape != shape or second_shape != shape:
            return None, "the structure of its outputs depends on the batch"
        outputs = []
        for index, values in enumerate(zip(together, first, second)):
            output, why = compare(values, rows, size)
            if why is not None:
                drawing = "" if proof.own_noise else ", or on random numbers that its forward draws"
                return None, "output %d %s%s" % (index, why, drawing)
            outputs.append(output)
        return outputs, None

    try:
        shape, together = trial(0, rows)
        proof.own_noise = RandomState().fingerprint() == untouched
        drawn = noise.begin()
        proof.draws = bool(drawn)
        while sizes:
            size = sizes.pop(0)
            outputs, why = compared(size)
            if why is not None:
                return why
            for output, before in zip(outputs, proof.outputs):
                if not output.same_as(before):
                    if not (output.near and before.near):
                        return "its outputs have no fixed batch axis"
                    output.kind, output.between = MEAN, True
                output.between = output.between or before.between
            proof.outputs = outputs
            # Chunks of one sample have traps of their own (a squeezed axis); uneven ones tell a mean from a sum of parts.
            reduced = any(output.kind in (MEAN, SUM) for output in outputs)
            if size == rows // 2 > 1 and (smallest < 2 or reduced):
                sizes += [1, rows - 1]  # the first sample alone, and the last
            proof.smallest = 1 if size > rows // 2 else size
    except Exception as error:  # a model that refuses a cut input is an answer too
        return _failed(error)
    if proof.smallest > 1 and smallest > 1:
        # Nobody asks for single samples yet. Once somebody does, there may be no memory for a trial.
        proof.smallest = _single_too(compared, proof, rows)
    if proof.smallest > 1 and rows > 2:
        # Samples that belong together by their place (pairs) agree in every even cut: one that is not shows them.
        try:
            _, shifted = trial(1, rows)
        except Exception as error:
            return _failed(error)
        for index, (output, a, b) in enumerate(zip(proof.outputs, together, shifted)):
            if output.kind is CONCATENATED:
                rest = a.array[(slice(None),) * output.axis + (slice(output.per_sample, None),)]
                if not close(rest, b.array, a.half):
                    return "output %d depends on the place of a sample in the batch" % index
    if all(output.kind is CONSTANT for output in proof.outputs):
        return "none of its outputs depends on the batch"
    return None


def _single_too(compared, proof, rows):
    """1 if single samples come out like the rest of a proof for larger chunks, else that proof's own smallest chunk."""
    own_noise = proof.own_noise
    try:
        for size in (1, rows - 1):
            outputs, why = compared(size)
            if why is not None or not all(one.same_as(before) for one, before in zip(outputs, proof.outputs)):
                break
        else:
            return 1
    except Exception as error:
        if is_oom(error):
            Failure(error)  # lets go of what the traceback holds
    proof.own_noise = own_noise
    return proof.smallest


def _observe_training(layer, inputs, mode, proof, random_before, state):
    """One small forward as in training: what is random, what normalises by the batch, what else it changes."""
    rows = min(2, inputs.batch)
    random_before.restore()
    before = RandomState().fingerprint()
    args, kwargs = inputs.sample(0, rows, proof.chosen, rows)
    written = _Written((args, kwargs))
    try:
        outputs = _run(layer, args, kwargs, mode, True)
    except Exception as error:
        proof.why = _failed(error)
        return
    for output, leaf in zip(proof.outputs, tree.leaves(outputs)):
        output.stop_gradient = not is_tensor(leaf) or leaf.stop_gradient
        if type(leaf) is runtime.paddle.Tensor and getattr(leaf, "__dict__", None):
            proof.why = "its forward notes %s on an output" % sorted(vars(leaf))[0]
    if written.changed((args, kwargs)):
        proof.why = "its forward writes to its inputs"
        return
    outputs = written = None
    proof.random = RandomState().fingerprint() != before
    args = kwargs = None
    proof.asides = _set_anew(layer, inputs, mode, proof, random_before, state)
    if any(one.path is None for one in proof.asides):
        proof.reasons.append("%s of the last chunk" % next(one.label for one in proof.asides if one.path is None))
    if proof.random:
        proof.reasons.append(_what_is_random(layer, proof))
    norms = batch_norms(layer)
    if any(normalises_by_batch(norm) for norm in norms):
        proof.reasons.append("batch_norm")
    statistics = {id(t) for norm in norms for t in (norm._mean, norm._variance)}
    expected = _names_of(layer, statistics) | {one.label for one in proof.asides}
    changed = [name for name in state.restore() if name not in expected]
    if changed:
        proof.why = "its forward changes %s" % ", ".join(changed[:3])


def _set_anew(layer, inputs, mode, proof, random_before, state):
    """The attributes that the forward before this has set, and that a second one sets to the same."""
    found = [
        aside.Aside(label, sub, name, value)
        for label, sub, name, value, before in state.replaced()
        if aside.may_be(value, before)
    ]
    if not found:
        return []
    random_before.restore()
    rows = min(2, inputs.batch)
    arguments = inputs.sample(0, rows, proof.chosen, rows)
    try:
        reclaim()
        _run(layer, *arguments, mode, proof.static)
        return [one for one in found if one.is_same(arguments)]
    except Exception:
        return []
    finally:
        for one in found:
            one.value = None


def _observe_gradients(layer, inputs, mode, proof, random_before):
    """A small backward of samples together and apart; fills proof.why where the gradients do not add up."""
    forward = _WithGraph(layer, inputs, mode, proof, random_before)
    rows = forward.rows
    half = mode.is_mixed() or any("float16" in str(p.dtype) for p in layer.parameters())
    single = any("float64" not in str(p.dtype) for p in layer.parameters())
    bound = TOLERANCE_HALF if half else TOLERANCE_SINGLE if single else TOLERANCE_DOUBLE
    try:
        with _without_randomness(layer):
            proof.why = sums.check(layer, inputs, proof, forward, min(proof.smallest, rows // 2), rows, bound)
    except Exception as error:
        proof.why = _failed(error)


def _note_reductions(proof):
    # A mean over samples or one over valid elements: four samples cannot tell them apart for all others.
    if any(one.between or (one.kind in (MEAN, SUM) and not one.stop_gradient) for one in proof.outputs):
        proof.reasons.append("loss inside the model")
    for index, one in enumerate(proof.outputs):
        if one.mixes:
            proof.reasons.append("output %d may set samples against each other" % index)
        elif one.kind in (MEAN, SUM) and one.stop_gradient and not one.between:
            proof.reasons.append("output %d is a number of the whole batch" % index)


class _WithGraph:
    """Outputs of a few samples with their graph."""

    def __init__(self, layer, inputs, mode, proof, random_before):
        self._layer, self._inputs, self._mode = layer, inputs, mode
        self._proof, self._random = proof, random_before
        self.rows = min(_TRIAL_ROWS, inputs.batch)
        self._given = []

    def __call__(self, start, stop):
        self._random.restore()
        args, kwargs = self._inputs.sample(start, stop, self._proof.chosen, self.rows)
        self._given = [leaf for leaf in tree.leaves((args, kwargs)) if is_tensor(leaf) and not leaf.stop_gradient]
        return _run(self._layer, args, kwargs, self._mode, True)

    def inputs(self):
        """The nodes of the inputs that need a gradient, as given to the last call."""
        return [node_of(tensor) for tensor in self._given]


def _failed(error):
    if is_oom(error):
        Failure(error)  # lets go of what the traceback holds
        return _NO_MEMORY
    return "the trial failed (%s: %s)" % (type(error).__name__, (str(error).strip().splitlines() or [""])[-1][:120])


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


def _what_is_random(layer, proof):
    """The reason for which a run in chunks is not exact, of a forward that draws random numbers."""
    if any(_draws(sub) for sub in layer.sublayers(include_self=True)):
        return "dropout"
    if not proof.own_noise:
        return "randomness"
    return "noise" if proof.draws else "dropout"


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
    """Dropout off, BatchNorm on its running statistics and noise the same for all, for the time of a trial: Noise."""
    paddle = runtime.paddle
    base = batch_norm_kinds()
    layers = layer.sublayers(include_self=True)
    changed = [sub for sub in layers if sub.training and (isinstance(sub, base) or "Drop" in type(sub).__name__)]
    # Out of training these have no backward.
    recurrent = [(sub, sub.dropout) for sub in layers if isinstance(sub, paddle.nn.layer.rnn.RNNBase) and sub.dropout]
    modules = (paddle.nn.functional, paddle.nn.functional.common)
    names = ("dropout", "dropout2d", "dropout3d", "alpha_dropout")
    kept = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    for sub in changed:
        sub.training = False
    for sub, _ in recurrent:
        sub.dropout = 0.0
    try:
        for module, name, function in kept:
            setattr(module, name, _passing(function))
        with Noise() as noise:
            yield noise
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
        for sub in changed:
            sub.training = True
        for sub, rate in recurrent:
            sub.dropout = rate


def _passing(function):
    def pass_through(x, *args, **kwargs):
        # Another thread of the job may call it meanwhile, in earnest.
        return x if thread.trial else function(x, *args, **kwargs)

    return pass_through
