"""Once more, outside of the layers that are split: what is held only for a backward is dropped, one graph at a time, then
the framework's caches are given back, then other processes are waited for (neighbours.py); then the user gets his
exception, with a report.

The caller answers for it that a second try does nothing twice.
"""

from . import loss, native
from .call import one_backward
from .neighbours import Tries
from .oom import Failure, is_oom
from .runtime import runtime, thread


def again(failure, function, what, phase=native.LOSS, drops=True):
    """function() after it ran out of memory; what: names it in a sentence ("the copy to the device").

    drops: may graphs be dropped for it, so that their backward runs in chunks? Call it outside of any `except` block: what
    is being handled there pins its traceback.
    """
    tries, gave = Tries(phase, "outside of the layers there is nothing to split"), False
    while True:
        waits = False
        # Another thread's backward may be running through the newest of them; what it frees serves as well.
        with one_backward, _ours():
            if drops and loss.holds_graphs():
                gave = loss.drop_one(failure, native.LOSS)
            else:
                tries.note(failure)
                waits = True
        if waits:
            tries.wait()
        try:
            result = function()
        except Exception as error:
            if not is_oom(error):
                raise
            failure = Failure(error)
            continue
        if gave and not tries.failed:
            runtime.library.retried(runtime.device, what)
        tries.went_through(what)
        return result


def guarded(function, what, phase, drops=True):
    """function(); once more where it runs out of memory, with the phase said while it runs."""
    before = runtime.library.set_phase(phase)
    try:
        try:
            return function()
        except Exception as error:
            if not is_oom(error) or is_reported(error):
                raise
            failure = Failure(error)
        return again(failure, function, what, phase, drops)
    finally:
        runtime.library.set_phase(before)


def is_reported(error):
    """True for an OOM that was given up: it is on its way to the user."""
    return getattr(error, "_bsguard_reported", False)


class _ours:
    """While entered, what this thread runs is bsguard's own, and no part of the loss region."""

    def __enter__(self):
        self._loss, thread.loss = thread.loss, 0
        thread.inside += 1

    def __exit__(self, *_):
        thread.inside -= 1
        thread.loss = self._loss
