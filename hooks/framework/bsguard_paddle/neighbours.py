"""Other processes on the device: the one way in which every place waits for what they may free.

Whether it is worth while, for how long and for what, the policy says (BSGUARD_WAIT): nobody is waited for where no other
process holds what was missing. Here is only the waiting, and what is tried once more where there is nothing to split.

Must never: wait for a thread of this process.
"""

import random
import time

from . import evidence, native
from .runtime import reclaim, runtime

_POLL = 0.05  # seconds between two looks at what is free, as a rule
_DRIVERS_OWN = 1 / 32  # of the device: what its context may grow by in a run is nobody's coming
_FREE_TRIES = 2
_state = {"met": False}
_chance = random.SystemRandom()  # the user's own random state stays as it is


def wait(device, decision):
    """Until other processes have freed what the decision names, or its time is over.

    The time and the looks vary by chance: of two jobs that wait for each other one is the first to go on, or to end.
    """
    if not decision.wait_ms:
        time.sleep(_POLL * _chance.random())
        return
    _state["met"] = True
    started = time.monotonic()
    until = started + decision.wait_ms / 1000 * (0.75 + 0.25 * _chance.random())
    while time.monotonic() < until:
        memory = runtime.library.memory(device)
        if memory is None or memory.free_bytes >= decision.wait_free_bytes:
            break
        time.sleep(_POLL * (0.5 + _chance.random()))
    runtime.library.waited(device, int((time.monotonic() - started) * 1000))


def look(memory):
    """Remembers, of a native.Memory or None, whether other processes come and go on the device. True if some are there."""
    there = memory is not None and memory.others_bytes > memory.total_bytes * _DRIVERS_OWN
    _state["met"] |= there
    return there


def are_there(device):
    """True if other processes hold memory of the device now, more than its driver may."""
    return look(runtime.library.memory(device))


def come_and_go():
    """True if other processes were seen to take memory of a device that this one uses. Cheap."""
    return _state["met"]


class Tries:
    """Of one thing that has nothing to split: twice more after the caches were given back, since threads of this process
    take and free memory too, and then for as long as the policy says that other processes may make room."""

    def __init__(self, phase, why):
        self._phase = phase
        self._why = why  # there is nothing to split, in words
        self.failed = 0
        self._waits = None  # a decision that asks for a wait

    def note(self, failure):
        """It failed: raises the user's exception, with a report, where it is not to be tried again."""
        if not self.ask(failure) and self.failed > _FREE_TRIES:
            give_up(failure, self._phase)
        # Nobody will see it, and its frames, which name this failure, would be garbage that only a collection frees: in
        # a forked worker perhaps, where a reader's destructor waits for threads that are not there.
        failure.forget()

    def ask(self, failure):
        """It failed: true where it is worth while to wait(), and to try again."""
        self.failed += 1
        reclaim()
        decision = runtime.library.terminal(
            runtime.device,
            None,
            None,
            0,
            self._phase,
            native.REFUSED,
            self._why,
            failure.bytes,
            failure.line,
            may_wait=True,
        )
        self._waits = decision if decision.verdict == native.AGAIN else None
        return self._waits is not None

    def wait(self):
        """For others, where that is worth while."""
        if self._waits is not None:
            wait(runtime.device, self._waits)

    def went_through(self, what):
        """The next try succeeded. what: names it in a sentence ("the copy to the device")."""
        if self.failed:
            runtime.library.retried(runtime.device, what)


def give_up(failure, phase):
    """The OOM that was reported last cannot be saved: report, and the user's exception."""
    evidence.census(runtime.device)
    runtime.library.unrescued(runtime.device, phase, failure.line)
    failure.error._bsguard_reported = True
    failure.throw()
