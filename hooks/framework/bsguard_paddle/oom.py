"""What is an out-of-memory error of the device, and how to let go of it.

Paddle says it in several ways (MemoryError in eager mode, OSError from CUDA libraries, SystemError in old versions); an
ordinary MemoryError of the host is none of them. A held traceback pins every activation that its frames name, so a
failure keeps the exception but clears the frames.
"""

import re
import sys
import traceback

from . import evidence
from .runtime import runtime
from .state import Mode

# Paddle's own words, in whatever exception they come: on a device, or (last) beneath another exception's text.
_PADDLE = ("Out of memory error on", "out of memory error on", "ResourceExhausted")
# The host's memory in the same words: no smaller batch on the device gives it back.
_HOST = ("Fail to alloc memory of", "pinned memory", "CUDAPinned", "shared memory", "memory map", "No space left")
# Libraries on the device, as Paddle passes their status on.
_LIBRARY = (
    "BadAlloc",
    "CUDA error(2)",
    "CUBLAS error(3)",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CURAND_STATUS_ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_REQUEST = re.compile(r"[Cc]annot allocate ([0-9.]+)\s*([KMG]?B)")


def is_oom(error):
    """True if the exception says that device memory ran out."""
    if not isinstance(error, (MemoryError, OSError, RuntimeError, SystemError)):
        return False
    text = str(error)
    if any(part in text for part in _PADDLE):
        return not any(part in text for part in _HOST)
    return isinstance(error, (OSError, SystemError)) and any(part in text for part in _LIBRARY)


def request_bytes(text):
    """The bytes that the framework says it asked for, to its own rounding; 0 where it does not say."""
    found = _REQUEST.search(text)
    return int(float(found.group(1)) * _UNITS[found.group(2)]) if found else 0


def _let_go(error):
    """Of what the frames of its traceback held, and those of the exceptions behind it. All of these stay, with their lines,
    for the user's screen."""
    running = {id(frame) for frame, _ in traceback.walk_stack(sys._getframe())}
    behind, met = [error], set()
    while behind:
        one = behind.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        behind += [one.__cause__, one.__context__]
        traceback.clear_frames(one.__traceback__)
        for frame, _ in traceback.walk_tb(one.__traceback__):
            # What locals() gave stays with its frame until it is asked again, now of nothing. Of a frame that still runs
            # that would keep its locals, the error among them.
            if id(frame) not in running:
                frame.f_locals  # noqa: B018


class Failure:
    """An OOM that was caught: the exception for the user, as he would have had it, without a hold on any tensor."""

    def __init__(self, error):
        self.error = error
        evidence.caught(error)
        text = str(error)
        self.bytes = request_bytes(text)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if "ut of memory" in line]
        self.line = ((told or lines or [type(error).__name__])[0])[:300]
        _let_go(error)

    def forget(self):
        """It was helped: lets go of the exception's frames."""
        self.error.__traceback__ = None

    def throw(self):
        """Raises the user's exception, as it was. Once: whoever catches it and goes on must be rid, with it, of all that
        its frames hold, and these frames name this failure."""
        error, self.error = self.error, None
        try:
            raise error.with_traceback(error.__traceback__)
        finally:
            del error


def attempt(function):
    """(result, None), or (None, Failure) where it ran out of device memory. Other exceptions pass, and so does one that was
    given up already.

    What is tried next finds the settings of now: out of a backward that recomputes by saved tensors Paddle comes with
    gradients off, and then the rest of the job would train nothing."""
    mode = Mode.now() if runtime.paddle is not None else None
    try:
        return function(), None
    except Exception as error:
        if not is_oom(error) or getattr(error, "_bsguard_reported", False):
            raise
        failure = Failure(error)
        if mode is not None:
            mode.restore()
    return None, failure
