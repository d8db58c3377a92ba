"""Running a call in chunks: forward without a graph, and backward chunk by chunk with a second forward."""

from . import gradients, tree
from .runtime import inside, is_tensor, original_call, runtime
from .state import BatchNormStatistics, RandomState, without_autocast


def forward(call):
    """Outputs of the whole batch, from chunks that keep no graph: (outputs, own) for Call.hand_out().

    BatchNorm statistics afterwards are those of one pass over the batch; each chunk's random state is kept.
    """
    proof = call.proof
    statistics = BatchNormStatistics(call.site.batch_norms())
    bounds = call.bounds()
    call.ran_whole, call.chunk_bounds, call.chunk_random = False, bounds, []
    columns, after, first = None, [], None
    for start, stop in bounds:
        if statistics and after:
            statistics.restore()
        call.chunk_random.append(RandomState() if proof.random else None)
        args, kwargs, _ = call.inputs.cut(start, stop, proof.chosen)
        outputs = call.mode.run(lambda a=args, k=kwargs: original_call(call.layer, a, k), grad=False)
        flat = tree.leaves(outputs)
        if first is None:
            first = outputs
            back = _handed_back(call, flat, (args, kwargs))
            columns = [[] for _ in flat]
        for column, leaf in zip(columns, flat):
            column.append(leaf)
        if statistics:
            after.append(statistics.take())
        outputs = flat = args = kwargs = None
    if after:
        statistics.merge(after, [(stop - start) / call.inputs.batch for start, stop in bounds])
    merged, own = [], {}
    for index, (column, output) in enumerate(zip(columns, proof.outputs)):
        if index in back:
            leaf = back[index]
            own[id(leaf)] = leaf
        elif output.axis is None or not is_tensor(column[0]):
            leaf = column[0]
        else:
            leaf = without_autocast(lambda c=column, o=output: runtime.paddle.concat(c, o.axis), grad=False)
        if is_tensor(leaf) and index not in back and call.mode.records():
            leaf.stop_gradient = output.stop_gradient
        merged.append(leaf)
        column.clear()
    return tree.rebuild(first, iter(merged)), own


def _handed_back(call, flat, given):
    """{index of an output: the user's own tensor} for inputs and parameters that a forward returned as they were."""
    mine = {id(leaf): position for position, leaf in enumerate(tree.leaves(given))}
    originals = tree.leaves(call.inputs.plain())
    weights = {id(p): p for p in call.layer.parameters()}
    back = {}
    for index, leaf in enumerate(flat):
        if not is_tensor(leaf):
            continue
        if id(leaf) in weights:
            back[index] = weights[id(leaf)]
        elif id(leaf) in mine and len(originals) > mine[id(leaf)]:
            back[index] = originals[mine[id(leaf)]]
    return back


def backward(call, seeds, rest):
    """Back-propagates `seeds` through the call chunk by chunk; parameters accumulate into `.grad`.

    Returns [(input, gradient)] for the inputs that need one. rest: further arguments of this Paddle's run_backward.
    """
    proof, layer = call.proof, call.layer
    statistics = BatchNormStatistics(call.site.batch_norms())
    random_now = RandomState() if proof.random else None
    bounds = call.bounds()
    same_cut = call.chunk_bounds == bounds
    hooked = any(gradients.has_hooks(p) for p in call.parameters)
    collector = _Aside(call.parameters) if hooked else _Straight()
    gathered = {}
    try:
        if random_now is not None:
            call.random_before.restore()
        for index, (start, stop) in enumerate(bounds):
            if same_cut and call.chunk_random[index] is not None:
                call.chunk_random[index].restore()
            args, kwargs, joints = call.inputs.cut(start, stop, proof.chosen)
            outputs = call.mode.run(lambda a=args, k=kwargs: original_call(layer, a, k), grad=True)
            roots, parts = _pair(tree.leaves(outputs), proof.outputs, seeds, start, stop, index == 0)
            outputs = args = kwargs = None
            found = [None] * len(joints)
            if roots:
                with inside():
                    found = collector.chunk(roots, parts, [leaf for _, leaf in joints], rest)
            roots = parts = None
            for (original, leaf), gradient in zip(joints, found):
                gathered.setdefault(id(original), (original, []))[1].append((leaf.shape, gradient))
            joints = found = None
    finally:
        statistics.restore()
        if random_now is not None:
            random_now.restore()
    with inside():
        collector.finish(rest)
    joined = [(original, _join(call, original, parts)) for original, parts in gathered.values()]
    return [(original, gradient) for original, gradient in joined if gradient is not None]


def _pair(leaves, outputs, seeds, start, stop, first):
    """The roots of one chunk's backward and the part of the seeds that belongs to each."""
    roots, parts = [], []
    for leaf, output, seed in zip(leaves, outputs, seeds):
        if seed is None or not is_tensor(leaf) or leaf.stop_gradient:
            continue
        if output.axis is None:
            if first:  # the same in every chunk: its gradient counts once
                roots.append(leaf)
                parts.append(seed)
            continue
        low, high = output.rows(start, stop)
        part = without_autocast(lambda s=seed, o=output: runtime.paddle.slice(s, [o.axis], [low], [high]), grad=False)
        roots.append(leaf)
        parts.append(part)
    return roots, parts


def _join(call, original, parts):
    """The gradient of an input from those of its chunks: laid end to end if it was cut, summed if it was not."""
    paddle = runtime.paddle
    if all(gradient is None for _, gradient in parts):
        return None
    with paddle.no_grad():
        if original.ndim and sum(shape[0] for shape, _ in parts) == original.shape[0]:
            whole = [paddle.zeros(shape, original.dtype) if grad is None else grad for shape, grad in parts]
            return paddle.concat(whole, 0) if len(whole) > 1 else whole[0]
        total = None
        for _, grad in parts:
            if grad is not None:
                total = grad if total is None else total + grad
        return total


class _Straight:
    """Accumulates each chunk's gradients where Paddle puts them."""

    def chunk(self, roots, parts, leaves, rest):
        """Runs one chunk's backward; returns the gradients of `leaves`."""
        runtime.run_backward(roots, parts, False, *rest)
        return [gradients.grad_of(leaf) for leaf in leaves]

    def finish(self, rest):
        """Nothing is left to do."""


class _Aside:
    """Sums the chunks' gradients apart, and hands each parameter its sum at the end: its hooks see the whole, once.

    Costs one more set of gradients; used only where a parameter has hooks.
    """

    def __init__(self, parameters):
        self._parameters = parameters
        self._sums = [None] * len(parameters)

    def chunk(self, roots, parts, leaves, rest):
        """Runs one chunk's backward; returns the gradients of `leaves`."""
        wanted = self._parameters + leaves
        found = runtime.run_partial_grad(roots, wanted, parts, False, False, True, True, [], *rest)
        for index, gradient in enumerate(found[: len(self._parameters)]):
            if gradient is not None:
                known = self._sums[index]
                with runtime.paddle.no_grad():
                    self._sums[index] = gradient if known is None else known + gradient
        return found[len(self._parameters) :]

    def finish(self, rest):
        """Hands the sums over."""
        for parameter, total in zip(self._parameters, self._sums):
            if total is not None:
                runtime.run_backward([parameter], [total], False, *rest)
