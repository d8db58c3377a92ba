"""When is a boundary armed, that is, when does it keep what a rescue of its backward would need?

Armed, a boundary costs up to three more copies of its outputs; so only where an OOM is likely: at the first step of an
input signature, when the predicted peak passes 85 % of what is available now, and after any OOM. Otherwise the call is
Paddle's own, and only an OOM in its forward is caught.
"""

from . import keep, neighbours, peaks
from .runtime import allocated, runtime

_LIKELY = 0.85  # of what is available


class Size:
    """What is known of one input signature of a boundary. need: bytes that a step of `batch` samples took at its peak on
    top of what was allocated before it; None until such a step has ended."""

    __slots__ = ("_base", "_open", "_peak_before", "batch", "hot", "need", "told")

    def __init__(self):
        self.batch = 0
        self.need = None
        self.hot = False  # ran out of memory once
        self.told = False
        self._base = self._peak_before = 0
        self._open = 0  # samples of the step under way that is being measured; 0: none

    def begin(self, device, batch):
        """A step with this signature begins and is to be measured."""
        if not self._open:
            self._base, self._peak_before = allocated(device)
        self._open = max(self._open, batch)

    def end(self, peak, live_peak):
        """The step ended. peak: the framework's allocated peak so far, 0 where it keeps none; live_peak: the driver's
        peak in this step. Both in bytes."""
        if not self._open:
            return
        # Both are bounds from above: the framework's peak is that of the whole run, the driver's counts its cache, with
        # what fragmentation costs.
        self.need = max(0, max(peak, live_peak) - self._base)
        self.batch = self._open
        self._open = 0

    def predicted(self, device, batch):
        """(bytes that a step of `batch` samples would peak at, bytes available to this process)."""
        memory = runtime.library.memory(device)
        neighbours.look(memory)
        now, peak = allocated(device)
        need = self.need * max(1.0, batch / self.batch)
        available = memory.live_bytes + memory.free_bytes if memory is not None else 0
        return (now if peak else 0) + need, available


_measured = []  # Sizes of the step under way


def size_of(site, signature):
    """The Size of a signature of a boundary."""
    size = site.sizes.get(signature)
    if size is None:
        size = site.sizes[signature] = Size()
    return size


def is_armed(site, inputs, device):
    """Should this call keep what a rescue of its backward would need?"""
    size = size_of(site, inputs.signature)
    if runtime.arm == "always":
        return True
    if runtime.arm == "never":
        return False
    if size.hot:
        return True
    if size.need is None:
        size.begin(device, inputs.batch)
        if size not in _measured:
            _measured.append(size)
        return True
    peak, available = size.predicted(device, inputs.batch)
    if peak > _LIKELY * available:
        return True
    if not size.told:
        size.told = True
        why = "predicted peak is %d %% of what is available" % round(100.0 * peak / max(available, 1))
        runtime.library.disarmed(site.name, inputs.signature.decode("utf-8", "replace"), why, False)
    return False


def is_short(calls):
    """May the backward of what the user built on these calls run out of memory? True also where nobody can tell."""
    now = allocated(calls[-1].device)[0]
    memory = runtime.library.memory(calls[-1].device)
    neighbours.look(memory)
    if runtime.arm == "always" or not now or memory is None:
        return True
    leaves = sum(leaf.size * leaf.element_size() for call in calls for leaf in call.leaves if leaf is not None)
    built = max(now - call.allocated for call in calls)
    # A backward needs what its forward has kept, twice over at most where operators are simple; and the gradients that
    # arrive at the leaves, with copies on their way.
    return now + 3 * max(0, built) + 8 * leaves > _LIKELY * (memory.live_bytes + memory.free_bytes)


def note_oom(site, inputs):
    """This signature ran out of memory: it stays armed."""
    size_of(site, inputs.signature).hot = True


def step_ended(device):
    """Takes the measure of the step; returns the framework's allocated peak in it, in bytes, 0 where that is not known."""
    _, peak = allocated(device)
    if _measured:
        memory = runtime.library.memory(device)
        live_peak = memory.step_peak_bytes if memory is not None else 0
        for size in _measured:
            size.end(peak, live_peak)
        _measured.clear()
    return keep.step_ended(device, peaks.take(device))
