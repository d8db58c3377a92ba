"""What a call in chunks holds from its forward to its backward beyond need, so that the second forward may be left out: the
graphs of its last chunks, as many as fit, or a private set of gradients (speculate.py) and the graph of the last one.

How many is decided from what the last step of the same size was measured to take, never tried. At the first sign of
pressure, an OOM anywhere while something is held, all of it is given back before anything is split further: a job never
dies of what was kept. Must never change a result: a graph that was kept is the one that a second forward would build.
"""

import math

from . import native, peaks
from .call import pending
from .runtime import allocated, reclaim, runtime

_MOST = 0.9  # of what is available: an allocator that caches cannot use every byte
_FULL = 0.92  # of the device's memory at its peak, caches and what lies in pieces included: nothing beyond that
_REST = 8  # steps without, after an OOM while something was kept; twice as many each time
_MOST_REST = 1 << 12
_WHY = "what was kept for the backward is given back first"


class Room:
    """What one size of step was measured to take: a signature and batch of a boundary in so many chunks.

    Bytes above what was allocated before its forward. graph: what the graph of the largest chunk holds; between: the peak
    between forward and backward, without graphs; backward: the peak of the backward, one chunk at a time; slack: what the
    device had left at its own peak, in which caches and memory in pieces count. None: not known. Bytes do not tell of pieces, so
    there is one graph more at a time than what went well.
    """

    __slots__ = ("backward", "between", "graph", "kept", "misses", "rest", "slack")

    def __init__(self):
        self.graph = self.between = self.backward = self.slack = None
        self.misses = 0
        self.kept = 0  # graphs, at most, in a step that went well
        self.rest = 0  # steps for which nothing is kept

    def known(self):
        """True once a step was measured from end to end."""
        return None not in (self.graph, self.between, self.backward, self.slack)

    def failed(self):
        """Memory ran out while something was kept."""
        self.rest = min(_REST << min(self.misses, 16), _MOST_REST)
        self.misses += 1
        self.kept = 0

    def graphs(self, free):
        """How many graphs fit. free: bytes available above what is allocated before the forward."""
        if self.slack < 0:
            return 0
        graph = max(self.graph, 1)
        spare = int(_MOST * free)
        # The first is gone before the backward of the others begins.
        fit = min((spare - self.between) // graph, (min(spare - self.backward, self.slack)) // graph + 1)
        return max(0, min(fit, self.kept + 1))

    def fits(self, more, free):
        """True if so many bytes more fit throughout. free: as above."""
        return max(self.between, self.backward) + more <= _MOST * free and more <= self.slack


_first = {}  # device -> backwards that are not measured, since the first step has no state of the optimizer yet
_OF_A_FIRST_STEP = 8  # at most: a loop may have no optimizer
_beyond = {}  # device -> [bytes held beyond need in this step, bytes that it needs at its peak without]


def step_ended(device, peak):
    """What the step would have taken at its peak had nothing been kept, in bytes: sizes are decided by that. peak: what it
    took; 0 where that is not known."""
    _first[device] = 0
    beyond, need = _beyond.pop(device, (0, 0))
    return max(peak - beyond, min(need, peak), 0)


class Measure:
    """Takes the measure of one call in chunks as it goes."""

    def __init__(self, call, kept):
        self._room = room_of(call)
        self._device = call.device
        self._kept = kept
        self._base = allocated(call.device)[0]
        self._watch = peaks.Watch(call.device)
        self._graph = 0

    def graph(self, before):
        """A chunk has its graph now. before: bytes allocated before its forward. Returns what the graph holds."""
        held = max(0, allocated(self._device)[0] - before)
        self._graph = max(self._graph, held)
        return held

    def forward_ended(self):
        """The outputs are about to be handed out."""
        self._watch.restart()

    def beyond(self, held):
        """So many bytes are held in this step that it could do without."""
        room = self._room
        need = self._base + max(room.between, room.backward) if room.known() else 0
        known = _beyond.get(self._device, (0, 0))
        _beyond[self._device] = known[0] + held, max(known[1], need)

    def backward_begins(self, held):
        """held: bytes of graphs that were kept so far."""
        peak = self._watch.restart()
        if peak:
            self._room.between = max(0, peak - self._base - held)

    def backward_ended(self):
        """The backward has run to its end, as the first one of this forward."""
        peak = self._watch.stop()
        if not peak or _is_of_the_first_step(self._device):
            return
        self._room.graph = max(self._graph, 1)
        self._room.kept = max(self._room.kept, self._kept)
        memory = runtime.library.memory(self._device)
        if memory is not None and (self._kept <= 1 or self._room.slack is None):
            total = memory.live_bytes + memory.free_bytes
            self._room.slack = int(_FULL * total) - memory.step_peak_bytes
        if self._kept <= 1 or self._room.backward is None:
            self._room.backward = max(0, peak - self._base)


def _is_of_the_first_step(device):
    left = _first.get(device, _OF_A_FIRST_STEP)
    _first[device] = max(0, left - 1)
    return left > 0


def room_of(call):
    """The Room of a call's size."""
    key = call.inputs.signature, call.inputs.batch, call.pieces
    room = call.site.rooms.get(key)
    if room is None:
        room = call.site.rooms[key] = Room()
    return room


def free(call):
    """Bytes available above what is allocated now; None: there is no end of it, 0: nobody can tell."""
    memory = runtime.library.memory(call.device)
    if memory is None:
        return None
    now, peak = allocated(call.device)
    return max(0, memory.live_bytes + memory.free_bytes - now) if peak and peaks.known() else 0


def graphs(call):
    """Of how many chunks, from the last one on, is the graph to be kept in the forward that begins now?"""
    if runtime.keep == "never" or call.proof.static or not call.mode.records():
        return 0
    room = room_of(call)
    if room.rest:
        room.rest -= 1
        return 0
    if runtime.keep == "always":
        return call.pieces
    available = free(call)
    if available is None:
        return call.pieces
    return min(call.pieces, room.graphs(available)) if room.known() else 0


def second_set(call):
    """Bytes of gradients of a call's parameters."""
    return sum(math.prod(p.shape) * p.element_size() for p in call.parameters)  # `size` takes 5 microseconds


def second_set_fits(call, plan):
    """Is there room for gradients of a call's parameters beside those that they have, and for what the plan takes?"""
    room = room_of(call)
    if room.rest:
        return False
    available = free(call)
    if runtime.keep == "always" or available is None:
        return True
    more = second_set(call) + (plan.bytes if plan is not None else 0)
    return room.known() and room.fits(more, available)


def graph_fits_too(call, more):
    """Is there room for the graph of the last chunk beside a second set of gradients? more: bytes of what else is held."""
    available = free(call)
    if runtime.keep == "always" or available is None:
        return True
    room = room_of(call)
    between = room.between + room.graph + second_set(call) + more
    return between <= _MOST * available and between - max(room.between, room.backward) <= room.slack


class Graph:
    """The graph of one chunk. outputs: its leaves, as they came; joints: see Inputs.cut()."""

    __slots__ = ("bytes", "joints", "outputs")

    def __init__(self, outputs, joints, size):
        self.outputs, self.joints, self.bytes = outputs, joints, size


def holds():
    """True if a call holds something that could be given back at once."""
    return any(call.holds_more() for call in pending())


def give_back(failure, phase, call=None):
    """After an OOM: drops what is kept, and reports it as met; False where nothing was kept. call: one that is not pending
    yet. The caller tries again, and says so by Call.again."""
    if not drop(call):
        return False
    runtime.library.terminal(runtime.device, None, None, 0, phase, native.REFUSED, _WHY, failure.bytes, failure.line)
    failure.forget()
    reclaim()
    return True


def drop(call=None):
    """Lets go of what this call and all that are pending hold beyond need; their sizes keep nothing for a while. True if
    there was anything."""
    anything = False
    for one in pending() + [call]:
        if one is not None and one.holds_more():
            anything = True
            room_of(one).failed()
            one.drop_kept()
    return anything
