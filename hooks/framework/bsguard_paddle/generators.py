"""The state of random generators, so that what a forward has drawn can be drawn once more: Paddle's, NumPy's and Python's."""

import random
import sys

from .runtime import paddle_of


def _numpy_state():
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


class Generators:
    """The state of Paddle's own generators, which are all that an operator draws from, as it was when this was made."""

    def __init__(self):
        paddle = paddle_of()
        # Operators that fall back to the CPU draw from its generator, whatever the device is.
        self._cpu = paddle.base.core.default_cpu_generator().get_state()
        self._device = paddle.get_rng_state()

    def restore(self):
        """Puts every generator back."""
        paddle = paddle_of()
        paddle.base.core.default_cpu_generator().set_state(self._cpu)
        paddle.set_rng_state(self._device)


class HostState:
    """The state of NumPy's generator, if it is there, and Python's. It takes 60 microseconds, more than all of Paddle's."""

    def __init__(self):
        self._numpy = _numpy_state()
        self._python = random.getstate()

    def restore(self):
        """Puts them back."""
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        random.setstate(self._python)

    def fingerprint(self):
        """Comparable: equal where nothing was drawn in between."""
        numpy_part = None if self._numpy is None else (self._numpy[2], self._numpy[1][:4].tobytes(), self._numpy[3:])
        return numpy_part, hash(self._python)


class RandomState(Generators):
    """The state of every generator that a forward may draw from, as it was when this was made."""

    def __init__(self):
        super().__init__()
        self.host = HostState()

    def restore(self):
        """Puts every generator back."""
        super().restore()
        self.host.restore()

    def fingerprint(self):
        """Comparable: equal where nothing was drawn in between."""
        return _digits(self._cpu), tuple(map(_digits, self._device)), self.host.fingerprint()


def _digits(generator_state):
    """What a Paddle generator state prints, without the address of its engine that newer versions print too."""
    return tuple(part for part in str(generator_state).split() if not part.startswith("0x"))
