"""An OOM that nobody caught: the last chance to say what it was."""

import sys
import threading

from . import evidence, native
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
            report(error, _why(error))
    except Exception:
        pass  # the user's exception is on its way to the screen: nothing may stand before it


def _why(error):
    """Why an OOM that reached the top was not met, and what would help."""
    if not runtime.paddle.in_dynamic_mode():
        return "a static graph is not split: use eager mode, or a smaller batch"
    if runtime.guarding and runtime.arm == "never":
        return "BSGUARD_ARM=never: only a forward is caught"
    if getattr(error, "_bsguard_phase", None) == native.OPTIMIZER:
        return "what the optimizer keeps for each parameter did not fit, and no smaller batch makes it less"
    if runtime.guarding and getattr(error, "_bsguard_phase", None) == native.BACKWARD:
        return "its step was not prepared for it, since its peak was expected to fit: BSGUARD_ARM=always prepares every step"
    return "it struck where nothing could be split"


def report(error, why):
    """Tells the policy of an OOM that passes through to the user, once each."""
    if getattr(error, "_bsguard_reported", False):
        return
    error._bsguard_reported = True
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if "ut of memory" in line] or [type(error).__name__]
    phase = getattr(error, "_bsguard_phase", None)
    if phase is None:
        phase = runtime.library.set_phase(native.OTHER)
        runtime.library.set_phase(phase)
    evidence.caught(error)
    runtime.library.terminal(
        runtime.device, None, None, 0, phase, native.REFUSED, why, request_bytes(text), lines[0][:300]
    )
    evidence.census(runtime.device)
    runtime.library.unrescued(runtime.device, phase, lines[0][:300])
