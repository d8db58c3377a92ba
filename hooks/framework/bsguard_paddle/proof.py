"""May this call be cut along its batch? Shown by trial before it is done.

A few samples are run alone and among neighbours, without gradients, with dropout off and BatchNorm on its running
statistics, and everything that the trial changed is put back. If every output has one batch axis (or does not depend on
the batch at all) and the samples come out the same, the call may be cut. Where the first dimension of an input is the
batch only by coincidence (a square mask, class weights), cutting it fails the trial and other choices are tried.
"""

import itertools

from . import aside, sums, tree
from .generators import RandomState
from .graph import node_of
from .objections import objection
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
from .runtime import is_tensor, reclaim, runtime
from .state import LayerState, batch_norms, normalises_by_batch
from .trial import NO_MEMORY, Written, failed, without_randomness
from .trial import run as _run

_TRIAL_ROWS = 4
_MOST_CHOICES = 16
_OF_THE_SAMPLES = ("dropout", "noise")  # each sample draws its own: the same in distribution


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
        self.draws_on_host = False  # from NumPy's generator or Python's
        self.own_noise = True  # whatever is random is drawn for each sample on its own
        self.closed = False  # its backward, and those inside of it, reach no weight but its own
        self.static = False  # parts of it are static programs: those made without gradients would never give any
        self.smallest = 1  # samples: the smallest chunk that the trial covers
        self.asides = []  # aside.Aside: what its forward sets anew

    @property
    def fits(self):
        """False if there was no memory for a trial: it says nothing of the call, and there may be at another time."""
        return self.why is not NO_MEMORY

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
    why = objection(layer, mode)
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


def may_be_repeated(layer, inputs, mode):
    """True if a forward of all samples once more is the same again: it changes nothing but BatchNorm's statistics and the
    generators. Tried, so this takes as much memory as the forward itself. Changes nothing, never raises."""
    try:
        outside = Outside(layer)
        if outside.iterators or objection(layer, mode) is not None:
            return False
        random_before = RandomState()
        state = LayerState(layer, skip=[p for p in layer.parameters() if not p.stop_gradient])
        statistics = {id(t) for norm in batch_norms(layer) for t in (norm._mean, norm._variance)}
        expected, written = _names_of(layer, statistics), True
        try:
            arguments = inputs.sample(0, inputs.batch, frozenset(), inputs.batch)
            before = Written(arguments)
            _run(layer, *arguments, mode, mode.records())
            written = before.changed(arguments)
        finally:
            changed = [name for name in state.restore() if name not in expected]
            random_before.restore()
            changed += outside.restore()
        return not written and not changed
    except Exception as error:
        failed(error)
        return False


def _try_choices(layer, inputs, mode, smallest, random_before, static):
    last = "no input carries the batch"
    for chosen in _choices(inputs.units):
        for rows in (_TRIAL_ROWS, 2):
            proof = Proof()
            proof.chosen = chosen
            proof.static = static
            with without_randomness(layer) as noise:
                why = _rows_are_independent(layer, inputs, mode, proof, random_before, smallest, rows, noise)
            if why is not NO_MEMORY:
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
        return failed(error)
    if proof.smallest > 1 and smallest > 1:
        # Nobody asks for single samples yet. Once somebody does, there may be no memory for a trial.
        proof.smallest = _single_too(compared, proof, rows)
    if proof.smallest > 1 and rows > 2:
        # Samples that belong together by their place (pairs) agree in every even cut: one that is not shows them.
        try:
            _, shifted = trial(1, rows)
        except Exception as error:
            return failed(error)
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
    before = RandomState()
    args, kwargs = inputs.sample(0, rows, proof.chosen, rows)
    written = Written((args, kwargs))
    try:
        outputs = _run(layer, args, kwargs, mode, True)
    except Exception as error:
        proof.why = failed(error)
        return
    for output, leaf in zip(proof.outputs, tree.leaves(outputs)):
        output.stop_gradient = not is_tensor(leaf) or leaf.stop_gradient
        if type(leaf) is runtime.paddle.Tensor and getattr(leaf, "__dict__", None):
            proof.why = "its forward notes %s on an output" % sorted(vars(leaf))[0]
    if written.changed((args, kwargs)):
        proof.why = "its forward writes to its inputs"
        return
    outputs = written = None
    after = RandomState()
    proof.random = after.fingerprint() != before.fingerprint()
    proof.draws_on_host = after.host.fingerprint() != before.host.fingerprint()
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
        with without_randomness(layer):
            proof.why = sums.check(layer, inputs, proof, forward, min(proof.smallest, rows // 2), rows, bound)
            proof.closed = proof.why is None
    except Exception as error:
        proof.why = failed(error)


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
