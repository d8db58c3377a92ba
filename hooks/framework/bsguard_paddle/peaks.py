"""The framework's allocated peak of each step alone, or of a part of one, and the user's own reading of it left as it was.

Paddle 3 can set its peak back; what the user reads is then the larger of what it says and what was set back. Paddle 2.6
cannot: there a step's own peak is not known.
"""

import weakref

from .runtime import runtime

_CURRENT, _PEAK, _RESET = (
    "device_memory_stat_current_value",
    "device_memory_stat_peak_value",
    "device_memory_stat_reset_peak_value",
)
_ALLOCATED = "Allocated"

_original_peak = _original_reset = None
_watches = weakref.WeakSet()
_step = {}  # device -> the peak of this step so far, without what has come since the last look
_before = {}  # device -> the peak of the steps before, since the user last set it back


def patch():
    """Wraps the two functions of Paddle's core that everything which reads the peak goes through."""
    global _original_peak, _original_reset
    core = runtime.paddle.base.core
    if not (hasattr(core, _PEAK) and hasattr(core, _RESET)):
        return
    _original_peak, _original_reset = getattr(core, _PEAK), getattr(core, _RESET)

    def peak(name, device):
        value = _original_peak(name, device)
        return max(value, _before.get(device, 0)) if name == _ALLOCATED else value

    def reset(name, device):
        if name == _ALLOCATED:
            _before.pop(device, None)
        return _original_reset(name, device)

    for function, original, name in ((peak, _original_peak, _PEAK), (reset, _original_reset, _RESET)):
        function.__name__, function.__doc__, function.__wrapped__ = name, original.__doc__, original
        setattr(core, name, function)


def take(device):
    """The allocated peak in bytes since the last call, which begins anew now; 0 where it is not known."""
    _look(device)
    return _step.pop(device, 0)


def known():
    """True where a part of a step has a peak of its own."""
    return _original_peak is not None


class Watch:
    """The allocated peak of parts of a step, in bytes; others may watch parts of their own meanwhile."""

    def __init__(self, device):
        self._device = device
        self.peak = 0
        _look(device)
        _watches.add(self)

    def restart(self):
        """The peak since the last call; 0 where it is not known."""
        _look(self._device)
        peak, self.peak = self.peak, 0
        return peak

    def stop(self):
        """As restart(), for the last time."""
        peak = self.restart()
        _watches.discard(self)
        return peak

    def add(self, device, peak):
        """The device has come to this peak."""
        if device == self._device:
            self.peak = max(self.peak, peak)


def _look(device):
    """Takes the peak since the last look and begins anew."""
    if _original_peak is None:
        return
    try:
        peak = int(_original_peak(_ALLOCATED, device))
        if not peak:
            return
        _before[device] = max(peak, _before.get(device, 0))
        _step[device] = max(peak, _step.get(device, 0))
        for watch in list(_watches):
            watch.add(device, peak)
        _original_reset(_ALLOCATED, device)
    except Exception:  # a device that it keeps no count of
        return
