"""An OOM that nobody caught: the last chance to say what it was."""

import sys
import threading

from . import native
from .oom import is_oom, request_bytes
from .runtime import runtime


def patch():
    """Puts a look at the exception in front of sys.excepthook and threading.excepthook."""
    shown = sys.excepthook

    def excepthook(kind, error, traceback):
        _look(error)
        shown(kind, error, traceback)

    sys.excepthook = excepthook
    shown_in_thread = threading.excepthook

    def thread_excepthook(args):
        _look(args.exc_value)
        shown_in_thread(args)

    threading.excepthook = thread_excepthook


def _look(error):
    try:
        if error is not None and is_oom(error):
            report(error, "it struck where nothing could be split")
    except Exception:
        pass  # the user's exception is on its way to the screen: nothing may stand before it


def report(error, why):
    """Tells the policy of an OOM that passes through to the user, once each."""
    if getattr(error, "_bsguard_reported", False):
        return
    error._bsguard_reported = True
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if "ut of memory" in line] or [type(error).__name__]
    phase = runtime.library.set_phase(native.OTHER)
    runtime.library.set_phase(phase)
    runtime.library.terminal(
        runtime.device, None, None, 0, phase, native.REFUSED, why, request_bytes(text), lines[0][:300]
    )
    runtime.library.unrescued(runtime.device, phase, lines[0][:300])
