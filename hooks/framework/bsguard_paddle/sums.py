"""Do the gradients of chunks add up to that of the batch? The part of the proof that values alone cannot give.

A gate that is still zero, a hook or a PyLayer that works on the whole gradient, a loss that happens to be the same for
all samples: all of these leave the outputs of a trial alone and change the gradient. So a few samples are run backward
together and apart, down to the smaller weights, and what arrives is compared by its sum and by its product with the
weight, which add up where gradients do. `.grad` is not touched.
"""

from . import tree
from .call import one_backward
from .graph import accumulation_nodes, node_of
from .oom import is_oom
from .runtime import inside, is_tensor, runtime

_MOST_ELEMENTS = 4 << 20  # of all weights looked at, smallest first: they and their gradients are copied to the host
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
        """weights: [their elements, by _on_host()]."""
        import numpy

        table = numpy.zeros([len(weights), 4])
        for row, gradient, w in zip(table, found, weights):
            if gradient is None or not gradient._is_initialized() or gradient.is_selected_rows():
                continue
            g = _on_host(gradient)
            norm = float(g.dot(g)) ** 0.5
            row[:] = g.sum(), g.dot(w), norm * w.size**0.5, norm * float(w.dot(w)) ** 0.5
        self.rows, self.scales = table[:, :2], table[:, 2:]

    def is_zero(self):
        """True if nothing arrived."""
        return not self.scales.any()


def check(layer, inputs, proof, forward, size, rows, tolerance):
    """None if gradients of samples 0..size-1 and size..rows-1 add up to those of both; else what was seen.

    forward(start, stop): the outputs of samples start..stop-1 with a graph. Outputs that were the same in every trial
    are put right where they turn out to be a mean or a sum.
    """
    weights, elements = [], 0
    for weight in sorted((p for p in layer.parameters() if not p.stop_gradient), key=lambda p: p.size):
        elements += weight.size
        if weights and elements > _MOST_ELEMENTS:
            break
        weights.append(weight)
    try:
        values = [_on_host(weight) for weight in weights]
        pulls = [
            _pulls(layer, forward, proof, (weights, values), start, stop, rows)
            for start, stop in ((0, rows), (0, size), (size, rows))
        ]
    except _Outsider:
        return "it uses a weight that is not among its parameters"
    except Exception as error:
        if is_oom(error):
            return None  # not shown, but nothing seen against it either
        raise
    for key, whole in pulls[0].items():
        first, second = pulls[1][key], pulls[2][key]
        share = size / rows
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


class _Outsider(Exception):
    """The graph reaches a weight of somebody else's."""


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
        # Held while compared: the identity of a node lasts as long as a reference to it.
        mine = [node_of(p) for p in layer.parameters() if not p.stop_gradient] + forward.inputs()
        known = {id(node) for node in mine}
        reached = accumulation_nodes([leaf for _, leaf, _ in differentiable])
        if any(id(node) not in known for node in reached):
            raise _Outsider()
    groups, pulls, met = {"together": []}, {}, set()
    for index, leaf, output in differentiable:
        if id(leaf) in met:
            continue  # the same tensor twice
        met.add(id(leaf))
        alone = output.kind is proof.CONSTANT or output.near
        groups.setdefault(index if alone else "together", []).append(
            (leaf, _seed(index, leaf, output, start, stop, rows))
        )
    # Paddle keeps one list of wanted tensors for the whole process: two threads in paddle.grad at once crash it.
    with one_backward, inside(), paddle.enable_grad():
        for key, pairs in groups.items():
            found = [None] * len(weights)
            if pairs and weights:
                roots, seeds = [leaf for leaf, _ in pairs], [seed for _, seed in pairs]
                found = paddle.grad(roots, weights, seeds, retain_graph=True, allow_unused=True)
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
