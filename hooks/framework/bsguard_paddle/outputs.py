"""What an output of a boundary is to its batch, and whether two runs of it agree."""

# Relative to the largest value of the output. Two sizes of batch may be computed by different algorithms; a dependence on
# neighbours shows as a difference of the order of the values themselves.
TOLERANCE_DOUBLE = 1e-8
TOLERANCE_SINGLE = 2e-3
TOLERANCE_HALF = 3e-2

CONSTANT, CONCATENATED, MEAN, SUM = "constant", "concatenated", "mean", "sum"


class Value:
    """An output tensor of a trial on the host. half: it was computed in 16 bits somewhere."""

    __slots__ = ("array", "half")

    def __init__(self, tensor, half):
        sixteen = "float16" in str(tensor.dtype)
        self.array = (tensor.astype("float32") if sixteen else tensor).numpy()
        self.half = half or sixteen


class Output:
    """How one output leaf is put together from chunks.

    kind: CONSTANT (the same in every chunk), CONCATENATED (along `axis`, `per_sample` entries a sample), MEAN (over the
    samples) or SUM.
    """

    __slots__ = ("axis", "between", "kind", "mixes", "near", "per_sample", "stop_gradient", "whole")

    def __init__(self, kind, axis=None, per_sample=0, between=False, near=False):
        self.kind = kind
        self.axis = axis
        self.per_sample = per_sample
        self.stop_gradient = True
        self.between = between  # a mean over something else than samples (a detector's positives); only near to MEAN
        self.near = near  # a number that could be such a mean
        self.mixes = False  # its gradient is no mean of those of the parts, whatever it is taken over
        self.whole = False  # a sum of whole numbers: a count

    def same_as(self, other):
        """True if both are put together the same way."""
        return (self.kind, self.axis, self.per_sample) == (other.kind, other.axis, other.per_sample)

    def weight(self, start, stop, batch):
        """The share that the chunk of samples start..stop-1 has in a reduced output."""
        return (stop - start) / batch if self.kind is MEAN else 1.0

    def rows(self, start, stop):
        """The part of the axis that belongs to samples start..stop-1."""
        return start * self.per_sample, stop * self.per_sample


def compare(values, rows, size):
    """(Output, None) where the rows agree, (None, why) where they do not."""
    if not all(isinstance(value, Value) for value in values):
        together, first, second = values
        same = type(together) is type(first) is type(second) and bool(together == first == second)
        return (Output(CONSTANT), None) if same else (None, "is no tensor and depends on the batch")
    together, first, second = (value.array for value in values)
    half = values[0].half
    if len(together.shape) != len(first.shape) or len(first.shape) != len(second.shape):
        return None, "changes its number of dimensions with the batch"
    axes = [i for i, (a, b) in enumerate(zip(together.shape, first.shape)) if a != b]
    if not axes:
        near = together.dtype.kind == "f" and together.size == 1 and _lies_between(together, first, second)
        if close(together, first, half) and close(together, second, half):
            return Output(CONSTANT, near=near), None
        if together.dtype.kind == "f":
            share = size / rows
            if close(together, (first * share + second * (1.0 - share)).astype(together.dtype), half):
                return Output(MEAN, near=near), None
            if close(together, first + second, half):
                return Output(SUM, near=near), None
        if together.dtype.kind in "iu" and bool((together == first + second).all()):
            output = Output(SUM)
            output.whole = True
            return output, None
        if near:
            return Output(MEAN, between=True, near=True), None
        if _finite(together) and not (_finite(first) and _finite(second)):
            return None, "is no finite number for some samples alone"
        return None, "has no batch axis, and is neither a mean nor a sum over the samples"
    axis = axes[0]
    per_sample, rest = divmod(together.shape[axis], rows)
    cut = per_sample * size
    head = together[(slice(None),) * axis + (slice(0, cut),)]
    tail = together[(slice(None),) * axis + (slice(cut, None),)]
    if rest or head.shape != first.shape or tail.shape != second.shape:
        return None, "has no single axis that grows with the batch"
    if not (close(head, first, half) and close(tail, second, half)):
        return None, "depends on the other samples of the batch"
    return Output(CONCATENATED, axis, per_sample), None


def _finite(array):
    import numpy

    return array.dtype.kind not in "fc" or bool(numpy.isfinite(array).all())


def _lies_between(whole, first, second):
    """True for a number that is a mean of those of the parts, whatever it is taken over, to a quarter: a detector divides
    by its positives, or by one where it has fewer. A loss that sets each sample against the others of its batch is none:
    among four it has twice or three times as much to choose from as among two."""
    low, high = sorted((float(first.reshape(-1)[0]), float(second.reshape(-1)[0])))
    return low - abs(low) / 4 <= float(whole.reshape(-1)[0]) <= high + abs(high) / 4


def close(a, b, half):
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
