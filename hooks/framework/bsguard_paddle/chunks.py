"""Running a call in chunks: forward without a graph but for what is kept, and backward chunk by chunk, with a second forward
where nothing was."""

from . import aside, gradients, keep, ranks, speculate, tree
from .generators import Generators, HostState, RandomState
from .outputs import CONCATENATED, CONSTANT, TOLERANCE_DOUBLE, TOLERANCE_HALF, TOLERANCE_SINGLE
from .runtime import allocated, inside, is_tensor, original_call, runtime, thread
from .state import BatchNormStatistics, without_autocast

_ROUNDING = {"float64": 1e-12, "float32": 1e-5}  # what is computed twice from the same may differ by so much of itself


class Mismatch(Exception):
    """A chunk came out otherwise than the proof has shown; says how."""


def forward(call):
    """Outputs of the whole batch, from its chunks: (outputs, own) for Call.hand_out().

    The last ones keep their graphs for the backward, as many as fit. BatchNorm statistics afterwards are those of one pass
    over the batch; each chunk's random state is kept. Raises Mismatch where a chunk is not what the proof has shown.
    """
    proof = call.proof
    statistics = BatchNormStatistics(call.site.batch_norms())
    bounds = call.bounds()
    call.chunk_bounds, call.chunk_random, call.kept = bounds, [], {}
    kept, private = _ahead(call)
    hooks = thread.hooks
    call.measure = keep.Measure(call, kept)
    columns, after, first = None, [], None
    for number, (start, stop) in enumerate(bounds):
        if statistics and after:
            statistics.restore()
        call.chunk_random.append(RandomState() if proof.draws_on_host else Generators())
        keeps = number >= len(bounds) - kept
        before = allocated(call.device)[0] if keeps else 0
        args, kwargs, joints = call.inputs.cut(start, stop, proof.chosen)
        recorded = proof.static or keeps or private is not None
        with ranks.deferring() as call.parallels:
            outputs = call.mode.run(lambda a=args, k=kwargs, g=recorded: original_call(call.layer, a, k), grad=recorded)
        flat = tree.leaves(outputs)
        _check(flat, proof.outputs, stop - start)
        if number == 0:
            first = outputs if private is None else tree.rebuild(outputs, iter([None] * len(flat)))
            back = _handed_back(call, flat, (args, kwargs))
            columns = [[] for _ in flat]
            seen = {}
            twin = [seen.setdefault(id(leaf), index) if is_tensor(leaf) else index for index, leaf in enumerate(flat)]
        for column, leaf in zip(columns, flat):
            column.append(leaf.detach() if recorded and is_tensor(leaf) else leaf)
        if thread.hooks != hooks:  # a hook that the forward registers would see what nobody has asked for
            speculate.forbid(call)
        if call.private is not None and not keeps and not private.chunk(call, flat, start, stop):
            speculate.forbid(call)
        if call.private is None and private is not None:
            private = None
        if keeps:
            call.kept[number] = keep.Graph(flat, joints, call.measure.graph(before))
        if statistics:
            after.append(statistics.take())
        outputs = flat = leaf = args = kwargs = joints = None
    if not proof.draws_on_host and HostState().fingerprint() != call.random_before.host.fingerprint():
        # As no trial of it did. What its chunks drew must be known: they run once more.
        proof.draws_on_host = True
        columns = after = first = None
        call.rewind()
        call.drop_kept()
        return forward(call)
    if after:
        statistics.merge(after, [(stop - start) / call.inputs.batch for start, stop in bounds])
    merged, own = [], {}
    for index, (column, output) in enumerate(zip(columns, proof.outputs)):
        if twin[index] != index:
            leaf = merged[twin[index]]
        elif index in back:
            leaf = back[index]
            own[id(leaf)] = leaf
        elif output.kind is CONSTANT or not is_tensor(column[0]):
            if not all(_equal(column[0], other) for other in column[1:]):
                raise Mismatch("output %d is not the same for all samples, as it was for the first ones" % index)
            leaf = column[0]
        elif output.kind is not CONCATENATED:
            leaf = without_autocast(_reduced, column, output, bounds, call.inputs.batch, grad=False)
        else:
            leaf = without_autocast(runtime.paddle.concat, column, output.axis, grad=False)
        if is_tensor(leaf) and index not in back and call.mode.records():
            leaf.stop_gradient = output.stop_gradient
        merged.append(leaf)
        column.clear()
    aside.hand_back(proof.asides, call.inputs.given)
    call.measure.forward_ended()
    if call.holds_more():
        held = sum(graph.bytes for graph in call.kept.values())
        call.measure.beyond(held if private is None else held + private.bytes + keep.second_set(call))
    return tree.rebuild(first, iter(merged)), own


def _ahead(call):
    """(graphs to keep, speculate.Private or None): what this forward does beyond need to save the second one."""
    try:
        kept = keep.graphs(call)
        call.private = speculate.begin(call) if kept < call.pieces and call.mode.records() else None
        if call.private is not None:
            kept = int(call.pieces > 1 and keep.graph_fits_too(call, call.private.bytes))
    except Exception as error:  # of our own; the chunks do without
        runtime.keep, call.private = "never", None
        why = "nothing is kept for its backward any more: internal error: %s: %s" % (type(error).__name__, error)
        runtime.library.refused(call.site.name, why[:300])
        return 0, None
    return kept, call.private


def _check(flat, outputs, samples):
    if len(flat) != len(outputs):
        raise Mismatch("it returned %d values instead of %d" % (len(flat), len(outputs)))
    for index, (leaf, output) in enumerate(zip(flat, outputs)):
        if output.kind is CONCATENATED:
            shape = leaf.shape if is_tensor(leaf) else []
            if len(shape) <= output.axis or shape[output.axis] != samples * output.per_sample:
                raise Mismatch("output %d has the shape %s for %d samples" % (index, shape, samples))


def _equal(a, b):
    """True if two constant outputs are the same, to rounding."""
    if not is_tensor(a):
        return type(a) is type(b) and bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a is b or not a.size:
        return True
    if "float" not in str(a.dtype):
        return bool((a == b).all())
    with runtime.paddle.no_grad():
        bound = _ROUNDING.get(str(a.dtype).rsplit(".", 1)[-1], 1e-2)
        a, b = a.astype("float64"), b.astype("float64")
        return bool(((a - b).abs().max() <= bound * a.abs().max()).item()) or bool(a.isnan().any())


def _reduced(column, output, bounds, batch):
    if output.whole:
        return sum(column[1:], column[0])
    total = None
    for leaf, (start, stop) in zip(column, bounds):
        part = leaf * output.weight(start, stop, batch)
        total = part if total is None else total + part
    return total


def _handed_back(call, flat, given):
    """{index of an output: the user's own tensor} for inputs and parameters that a forward returned as they were."""
    mine = {id(leaf): position for position, leaf in enumerate(call.inputs.leaves_of(given))}
    originals = call.inputs.leaves()
    weights = {id(p): p for p in call.layer.parameters()}
    back = {}
    for index, leaf in enumerate(flat):
        if not is_tensor(leaf):
            continue
        if id(leaf) in weights:
            back[index] = weights[id(leaf)]
        elif id(leaf) in mine:
            back[index] = originals[mine[id(leaf)]]
    return back


def backward(call, seeds, sink, first=0):
    """Back-propagates `seeds` through the call chunk by chunk, into `sink`. first: number of the first chunk, where those
    before it are done.

    Returns [(input, gradient)] for the inputs that need one.
    """
    return call.as_recorded(lambda: _backward(call, seeds, sink, first))


def _backward(call, seeds, sink, first):
    proof, layer = call.proof, call.layer
    statistics = BatchNormStatistics(call.site.batch_norms())
    random_now = RandomState()
    bounds = call.bounds()
    same_cut = call.chunk_bounds == bounds
    if not same_cut:
        call.drop_kept()
    kept, measure = call.kept, call.measure if same_cut and not first else None
    if measure is not None:
        measure.backward_begins(sum(graph.bytes for graph in kept.values()))
    # What was kept goes first, the newest at once, so that it is gone where others need its place.
    order = sorted(kept, reverse=True) + [number for number in range(first, len(bounds)) if number not in kept]
    gathered = {}
    again = _Again(call, same_cut)
    present = aside.Present(proof.asides)
    try:
        if not same_cut:
            call.random_before.restore()
        for index in order:
            start, stop = bounds[index]
            graph = kept.pop(index, None)
            if graph is not None:
                flat, joints = graph.outputs, graph.joints
                graph = None
            else:
                if same_cut:
                    call.chunk_random[index].restore()
                before = allocated(call.device)[0] if measure is not None else 0
                args, kwargs, joints = call.inputs.cut(start, stop, proof.chosen)
                with ranks.deferring():
                    outputs = call.mode.run(lambda a=args, k=kwargs: original_call(layer, a, k), grad=True)
                flat = tree.leaves(outputs)
                _check(flat, proof.outputs, stop - start)
                if measure is not None:
                    measure.graph(before)
                again.look(flat, start, stop)
            roots, parts = _pair(flat, proof.outputs, seeds, start, stop, call.inputs.batch)
            outputs = flat = args = kwargs = None
            found = [None] * len(joints)
            if roots:
                with inside():
                    found = sink.chunk(roots, parts, [joint.leaf for joint in joints])
            roots = parts = None
            for joint, gradient in zip(joints, found):
                gathered.setdefault(joint.place, (joint, []))[1].append((index, joint.leaf.shape, gradient))
            joints = found = None
    finally:
        statistics.restore()
        random_now.restore()
        present.restore()
    again.tell()
    if measure is not None:
        measure.backward_ended()
        call.measure = None
    totals = {}
    for joint, parts in gathered.values():
        parts.sort(key=lambda part: part[0])
        gradient = _join(joint, [part[1:] for part in parts])
        if gradient is not None:
            original, known = totals.get(id(joint.original), (joint.original, None))
            with runtime.paddle.no_grad():
                totals[id(original)] = original, gradient if known is None else known + gradient
    return list(totals.values())


class _Again:
    """Compares the second forward with what the first one gave the user, by the sum and the norm of each output.

    Whatever no trial can foresee shows here: a generator or a counter that nobody knows of, weights or inputs changed
    in a way that leaves no trace. Two numbers an output and chunk, read once at the end.
    """

    def __init__(self, call, same_cut):
        self._call = call
        # Where the user saw another cut of the batch, what is known to depend on the cut differs rightly.
        self._looks = same_cut or not call.proof.reasons
        self._differences, self._scales = [], []

    def look(self, flat, start, stop):
        """Takes the measure of one chunk's outputs."""
        if not self._looks:
            return
        paddle = runtime.paddle
        with paddle.no_grad():
            for leaf, output, seen in zip(flat, self._call.proof.outputs, self._call.leaves):
                if seen is None or output.kind is not CONCATENATED or "float" not in str(leaf.dtype):
                    continue
                low, high = output.rows(start, stop)
                was = without_autocast(paddle.slice, seen.detach(), [output.axis], [low], [high])
                now = leaf.detach()
                apart = [(now.sum() - was.sum()) / max(now.size, 1) ** 0.5, now.norm() - was.norm()]
                self._differences += [one.abs().astype("float64").reshape([1]) for one in apart]
                self._scales += [was.norm().astype("float64").reshape([1])] * 2

    def tell(self):
        """Says it, once for a boundary, where they differ by more than rounding."""
        if not self._differences:
            return
        paddle = runtime.paddle
        with paddle.no_grad():
            apart = paddle.stack([paddle.concat(self._differences), paddle.concat(self._scales)]).numpy()
        call = self._call
        single = any(leaf is not None and "float64" not in str(leaf.dtype) for leaf in call.leaves)
        bound = TOLERANCE_HALF if call.mode.is_mixed() else TOLERANCE_SINGLE if single else TOLERANCE_DOUBLE
        if bool((apart[0] > bound * apart[1]).any()):  # false where there is a NaN
            call.say_approximate("its second forward differs from its first")


def _pair(leaves, outputs, seeds, start, stop, batch):
    """The roots of one chunk's backward and the part of the seeds that belongs to each."""
    roots, parts = [], []
    for leaf, output, seed in zip(leaves, outputs, seeds):
        if seed is None or not is_tensor(leaf) or leaf.stop_gradient:
            continue
        if output.kind is CONSTANT:
            if start == 0:  # the same in every chunk: its gradient counts once
                roots.append(leaf)
                parts.append(seed)
            continue
        if output.kind is not CONCATENATED:
            weight = output.weight(start, stop, batch)
            roots.append(leaf)
            parts.append(without_autocast(runtime.paddle.scale, seed, weight, grad=False))
            continue
        low, high = output.rows(start, stop)
        part = without_autocast(runtime.paddle.slice, seed, [output.axis], [low], [high], grad=False)
        if part.shape != leaf.shape:
            raise Mismatch("an output has the shape %s for some samples alone, %s among all" % (leaf.shape, part.shape))
        roots.append(leaf)
        parts.append(part)
    return roots, parts


def _join(joint, parts):
    """The gradient of an input in one place from those of its chunks: laid end to end if it was cut, summed if not."""
    paddle = runtime.paddle
    if all(gradient is None for _, gradient in parts):
        return None
    with paddle.no_grad():
        if joint.cut:
            dtype = joint.original.dtype
            whole = [paddle.zeros(shape, dtype) if grad is None else grad for shape, grad in parts]
            return paddle.concat(whole, 0) if len(whole) > 1 else whole[0]
        total = None
        for _, grad in parts:
            if grad is not None:
                total = grad if total is None else total + grad
        return total


class Accumulate:
    """Where the gradients of a backward in chunks go: into `.grad`, as Paddle would put them.

    rest: further arguments of this Paddle's run_backward.
    """

    def __init__(self, rest):
        self._rest = rest

    def chunk(self, roots, parts, leaves):
        """Runs one chunk's backward; returns the gradients of `leaves`."""
        runtime.run_backward(roots, parts, False, *self._rest)
        return [gradients.grad_of(leaf) for leaf in leaves]


class Collect:
    """Sums the gradients of `wanted` over the chunks and leaves `.grad` alone: sums, None where there is none."""

    def __init__(self, wanted, rest):
        self.wanted = list(wanted)
        self.sums = [None] * len(self.wanted)
        self._rest = rest

    def chunk(self, roots, parts, leaves):
        """Runs one chunk's backward; returns the gradients of `leaves`."""
        asked = self.wanted + leaves
        if not asked:
            return []
        found = runtime.run_partial_grad(roots, asked, parts, False, False, True, True, [], *self._rest)
        for index, gradient in enumerate(found[: len(self.wanted)]):
            if gradient is not None:
                known = self.sums[index]
                with runtime.paddle.no_grad():
                    self.sums[index] = gradient if known is None else known + gradient
        return found[len(self.wanted) :]
