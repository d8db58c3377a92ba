"""The framework's allocated peak of each step alone, and the user's own reading of it left as it was.

Paddle 3 can set its peak back; what the user reads is then the larger of what it says and what was set back. Paddle 2.6
cannot: there a step's own peak is not known.
"""

from .runtime import runtime

_CURRENT, _PEAK, _RESET = (
    "device_memory_stat_current_value",
    "device_memory_stat_peak_value",
    "device_memory_stat_reset_peak_value",
)
_ALLOCATED = "Allocated"

_original_peak = _original_reset = None
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
    if _original_peak is None:
        return 0
    try:
        peak = _original_peak(_ALLOCATED, device)
        if not peak:
            return 0
        _before[device] = max(peak, _before.get(device, 0))
        _original_reset(_ALLOCATED, device)
        return int(peak)
    except Exception:  # a device that it keeps no count of
        return 0
