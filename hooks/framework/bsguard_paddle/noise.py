"""Random numbers that a forward draws from Paddle, replaced in a trial by ones that are the same for every sample.

A sample that runs alone draws other noise than among its neighbours, so rows could not be compared. Replaced, they can;
and it is noted whether all that was drawn grew with the batch: noise of each sample's own has the same distribution
whether it is drawn in one piece or in several, a number drawn for the whole batch has not.

Only while a trial runs, and only for the thread that runs it. Nothing is drawn from any generator.
"""

from .runtime import runtime, thread

_ABOVE = 0.37  # standard deviations above the mean, or the place between the least and the largest: anything but zero


class Noise:
    """While entered, stands in for Paddle's gaussian, uniform and bernoulli. drawn: elements of each draw since begin()."""

    def __init__(self):
        self._kept = []
        self.drawn = []

    def begin(self):
        """A forward begins; returns what the one before it has drawn."""
        before, self.drawn = self.drawn, []
        return before

    def __enter__(self):
        ops = runtime.paddle.tensor.random._C_ops
        for name, value_of in (("gaussian", _gaussian), ("uniform", _uniform), ("bernoulli", None)):
            original = getattr(ops, name, None)
            if original is not None:
                self._kept.append((ops, name, original))
                setattr(ops, name, self._standing_in(original, value_of))
        return self

    def __exit__(self, *_):
        for ops, name, original in self._kept:
            setattr(ops, name, original)
        self._kept = []

    def _standing_in(self, original, value_of):
        def draw(*args, **kwargs):
            # Another thread of the job may call it meanwhile, in earnest; so may one who gives a tensor to be filled.
            if not thread.trial or any(value is not None for value in kwargs.values()):
                return original(*args, **kwargs)
            try:
                if value_of is None:
                    found = (args[0] > 0.5).astype(args[0].dtype)
                else:
                    shape, dtype, value = value_of(*args)
                    found = runtime.paddle.full(shape, value, dtype)
            except Exception:
                return original(*args, **kwargs)
            self.drawn.append(found.size)
            return found

        return draw


def _gaussian(shape, mean, std, seed, dtype, *_):
    return shape, dtype, float(mean) + _ABOVE * float(std)


def _uniform(shape, dtype, least, largest, *_):
    return shape, dtype, float(least) + _ABOVE * (float(largest) - float(least))
