"""Do the gradients of chunks add up to that of the batch? The part of the proof that values alone cannot give.

A gate that is still zero, a hook or a PyLayer that works on the whole gradient, a loss that happens to be the same for
all samples: all of these leave the outputs of a trial alone and change the gradient. So a few samples are run backward
together and apart, down to the smaller weights, and what arrives is compared by its sum and by its product with the
weight, which add up where gradients do. `.grad` is not touched.
"""

from . import nested, tree
from .call import one_backward
from .graph import accumulation_nodes, holds_kind, node_of
from .oom import Failure, is_oom
from .runtime import inside, is_tensor, reclaim, runtime
from .trial import NO_MEMORY

# Elements of all weights looked at, smallest first: they and their gradients are copied to the host. Fewer where memory is
# short.
_MOST_ELEMENTS = (4 << 20, 1 << 16, 1)
_OUTSIDER = "it uses a weight that is not among its parameters"
_NOT_COMPARED = "gradients not compared"
_FLOOR = 1e-4  # of the largest gradient: below it a gradient is taken as rounding


def _on_host(tensor):
    """Its elements in double precision, in one row, on the host: no memory of the device, and no operator for each of a few
    hundred weights, most of which are small."""
    kind = str(tensor.dtype)
    if "float16" in kind:  # bfloat16 is none of numpy's
        tensor = tensor.astype("float32")
    array = tensor.detach().numpy().reshape([-1])
    return (array.real if "complex" in kind else array).astype("float64")


class _Pull:
    """Gradients of some weights from one backward, as numbers that add up. rows: sum, product with the weight."""

    def __init__(self, found, weights):
        """found: the parts of each gradient, None for one that is not there; weights: [their elements, by _on_host()]."""
        import numpy

        table = numpy.zeros([len(weights), 4])
        for row, parts, w in zip(table, found, weights):
            g = sum(_on_host(part) for part in parts if _is_there(part))
            if isinstance(g, int):
                continue
            norm = float(g.dot(g)) ** 0.5
            row[:] = g.sum(), g.dot(w), norm * w.size**0.5, norm * float(w.dot(w)) ** 0.5
        self.rows, self.scales = table[:, :2], table[:, 2:]

    def is_zero(self):
        """True if nothing arrived."""
        return not self.scales.any()


def _is_there(gradient):
    return gradient is not None and gradient._is_initialized() and not gradient.is_selected_rows()


def check(layer, inputs, proof, forward, size, rows, tolerance):
    """None if gradients of samples 0..size-1 and size..rows-1 add up to those of both; else what was seen.

    forward(start, stop): the outputs of samples start..stop-1 with a graph. Outputs that were the same in every trial
    are put right where they turn out to be a mean or a sum. Where there is no memory for any gradient, the proof's reasons
    say so.
    """
    pulls = None
    try:
        for most in _MOST_ELEMENTS:
            pulls, failed = _tried(lambda m=most: _all_pulls(layer, forward, proof, size, rows, m))
            if not failed:
                return _judged(pulls, proof, size / rows, tolerance)
        known, failed = _tried(lambda: _shown_closed(layer, forward))
    except nested.Outsider:
        return _OUTSIDER
    if failed or not known:
        return NO_MEMORY
    proof.reasons.append(_NOT_COMPARED)
    return None


def _tried(function):
    """(function(), False), or (None, True) where it ran out of memory."""
    try:
        return function(), False
    except Exception as error:
        if not is_oom(error):
            raise
        Failure(error)  # lets go of what the traceback holds
    reclaim()
    return None, True


def _all_pulls(layer, forward, proof, size, rows, most):
    weights, elements = [], 0
    for weight in sorted((p for p in layer.parameters() if not p.stop_gradient), key=lambda p: p.size):
        elements += weight.size
        if weights and elements > most:
            break
        weights.append(weight)
    looked_at = weights, [_on_host(weight) for weight in weights]
    return [
        _pulls(layer, forward, proof, looked_at, start, stop, rows)
        for start, stop in ((0, rows), (0, size), (size, rows))
    ]


def _shown_closed(layer, forward):
    """True if the graph of one sample shows all that it reaches, and nothing of that is an outsider."""
    leaves = [leaf for leaf in tree.leaves(forward(0, 1)) if is_tensor(leaf) and not leaf.stop_gradient]
    _refuse_outsiders(layer, forward, leaves)
    return not holds_kind(leaves, "PyLayer")


def _judged(pulls, proof, share, tolerance):
    for key, whole in pulls[0].items():
        first, second = pulls[1][key], pulls[2][key]
        if key == "together":
            if not _add_up(whole, first, second, 1.0, 1.0, tolerance):
                return "the gradients of its samples do not add up"
            continue
        output = proof.outputs[key]
        if output.between:
            output.mixes = not _is_weighted_mean(whole, first, second, tolerance)
        elif whole.is_zero() and first.is_zero() and second.is_zero():
            output.kind = proof.MEAN  # it shows nothing; never said to be exact
        elif _add_up(whole, first, second, 1.0, 0.0, tolerance) and _add_up(whole, first, second, 0.0, 1.0, tolerance):
            continue
        elif _add_up(whole, first, second, share, 1.0 - share, tolerance):
            output.kind = proof.MEAN
        elif _add_up(whole, first, second, 1.0, 1.0, tolerance):
            output.kind = proof.SUM
        elif output.near and _is_weighted_mean(whole, first, second, tolerance):
            output.kind, output.between = proof.MEAN, True
        else:
            return "output %d has a gradient that is neither a mean nor a sum over the samples" % key
    return None


def _refuse_outsiders(layer, forward, leaves):
    """Raises where a backward from these outputs reaches a weight of somebody else's."""
    # Held while compared: the identity of a node lasts as long as a reference to it.
    mine = _nodes_of(layer) + forward.inputs()
    known = {id(node) for node in mine}
    if any(id(node) not in known for node in accumulation_nodes(leaves)):
        raise nested.Outsider()


def _nodes_of(layer):
    return [node_of(p) for p in layer.parameters() if not p.stop_gradient]


def _pulls(layer, forward, proof, looked_at, start, stop, rows):
    """{"together": of all outputs that depend on the samples, index: of each that seems not to}. looked_at: (weights,
    their elements)."""
    paddle = runtime.paddle
    weights, values = looked_at
    leaves = tree.leaves(forward(start, stop))
    differentiable = [
        (index, leaf, output)
        for index, (leaf, output) in enumerate(zip(leaves, proof.outputs))
        if is_tensor(leaf) and not leaf.stop_gradient and "complex" not in str(leaf.dtype)
    ]
    if stop - start == rows:
        _refuse_outsiders(layer, forward, [leaf for _, leaf, _ in differentiable])
    parameters = [p for p in layer.parameters() if not p.stop_gradient]
    groups, pulls, met = {"together": []}, {}, set()
    for index, leaf, output in differentiable:
        if id(leaf) in met:
            continue  # the same tensor twice
        met.add(id(leaf))
        alone = output.kind is proof.CONSTANT or output.near
        groups.setdefault(index if alone else "together", []).append(
            (index, _seed(index, leaf, output, start, stop, rows))
        )
    once = holds_kind([leaf for _, leaf, _ in differentiable], "PyLayer")  # through which no backward runs twice
    # Paddle keeps one list of wanted tensors for the whole process: two threads in paddle.grad at once crash it.
    with one_backward, inside(), paddle.enable_grad():
        for key, pairs in groups.items():
            found = [[]] * len(weights)
            if pairs and weights:
                leaves = leaves or tree.leaves(forward(start, stop))
                roots, seeds = [leaves[index] for index, _ in pairs], [seed for _, seed in pairs]
                with nested.Watch(parameters, forward.inputs()) as watch:
                    found = paddle.grad(roots, weights, seeds, retain_graph=True, allow_unused=True)
                    found = [[gradient, watch.added(weight)] for gradient, weight in zip(found, weights)]
                    pulls[key] = _Pull(found, values)
                roots, leaves = None, None if once else leaves
            else:
                pulls[key] = _Pull(found, values)
    return pulls


def _seed(index, leaf, output, start, stop, rows):
    """A gradient for an output of samples start..stop-1, the part of one for all that a chunk would be given."""
    import numpy

    paddle = runtime.paddle
    shape = list(leaf.shape)
    whole = list(shape)
    if output.axis is not None:
        whole[output.axis] = output.per_sample * rows
    values = numpy.random.RandomState(index).uniform(0.5, 1.5, whole) * numpy.random.RandomState(index + 1).choice(
        [-1, 1], whole
    )
    if output.axis is not None:
        low, high = output.rows(start, stop)
        values = values[(slice(None),) * output.axis + (slice(low, high),)]
    elif not output.near:
        values = values * output.weight(start, stop, rows)
    return paddle.to_tensor(values).astype(leaf.dtype)


def _is_weighted_mean(whole, first, second, tolerance):
    """True for a mean over something else than samples (tokens that are no padding): one share serves all weights."""
    import numpy

    scales = numpy.maximum(whole.scales, numpy.maximum(first.scales, second.scales))
    scales = numpy.maximum(scales, max(_FLOOR * scales.max(initial=0.0), 1e-300))
    apart, moved = (first.rows - second.rows) / scales, (whole.rows - second.rows) / scales
    length = float((apart * apart).sum())
    share = float((apart * moved).sum()) / length if length else 0.5
    return -0.01 <= share <= 1.01 and _add_up(whole, first, second, share, 1.0 - share, tolerance)


def _add_up(whole, first, second, one, other, tolerance):
    import numpy

    apart = numpy.abs(whole.rows - one * first.rows - other * second.rows)
    scales = numpy.maximum(whole.scales, numpy.maximum(one * first.scales, other * second.scales))
    scales = numpy.maximum(scales, _FLOOR * scales.max(axis=0, initial=0.0))
    return not bool((apart > tolerance * scales).any())
