"""bsguard.h through ctypes: the only thing that the adapter knows of the rest of bsguard.

Sizes in bytes, batches in samples. Nothing here raises after `load()`: a library that is missing or of another version
is told by `load()` returning None.
"""

import ctypes
import os

API_VERSION = 1

MODE_OFF, MODE_OBSERVE, MODE_GUARD = 0, 1, 2
INIT, FORWARD, LOSS, BACKWARD, OPTIMIZER, EVALUATION, DATA, SAVE, OTHER = range(9)
EXACT, EQUIVALENT, APPROXIMATE, REFUSED = range(4)
EXACTNESS_NAMES = ("exact", "equivalent", "approximate", "refused")
KEEP, SHRINK, FLOOR, CANNOT, AGAIN = range(5)


class Decision(ctypes.Structure):
    """struct bsg_decision: in how many chunks a batch is to be run."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("verdict", ctypes.c_int32),
        ("sequence", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("micro_batch", ctypes.c_int64),
        ("accumulation_steps", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("wait_ms", ctypes.c_int64),
        ("wait_free_bytes", ctypes.c_uint64),
    ]


class Oom(ctypes.Structure):
    """struct bsg_oom: an out-of-memory error that the framework gave up on."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("boundary", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("batch", ctypes.c_int64),
        ("phase", ctypes.c_int32),
        ("exactness", ctypes.c_int32),
        ("because", ctypes.c_char_p),
        ("request_bytes", ctypes.c_uint64),
        ("exception", ctypes.c_char_p),
        ("smallest", ctypes.c_int64),
        ("held_bytes", ctypes.c_uint64),
    ]


class Memory(ctypes.Structure):
    """struct bsg_memory: device memory as seen at the driver, in bytes."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("total_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("live_bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("step_peak_bytes", ctypes.c_uint64),
        ("others_bytes", ctypes.c_uint64),
    ]


class Framework(ctypes.Structure):
    """struct bsg_framework: memory by the framework's own count, in bytes."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("allocated_bytes", ctypes.c_uint64),
        ("reserved_bytes", ctypes.c_uint64),
        ("allocated_peak_bytes", ctypes.c_uint64),
        ("reserved_peak_bytes", ctypes.c_uint64),
        ("parameter_bytes", ctypes.c_uint64),
        ("gradient_bytes", ctypes.c_uint64),
        ("optimizer_bytes", ctypes.c_uint64),
        ("python_stack", ctypes.c_char_p),
    ]


def _text(value):
    return None if value is None else str(value).encode("utf-8", "replace")


class Library:
    """The loaded libbsguard.so. Strings go in as str; structures come back filled."""

    def __init__(self, handle):
        c = ctypes
        self._set_phase = handle.bsg_set_phase
        self._set_phase.argtypes = [c.c_int]
        handle.bsg_mode.restype = c.c_int
        handle.bsg_option.argtypes, handle.bsg_option.restype = [c.c_char_p], c.c_char_p
        handle.bsg_attach.argtypes = [c.c_char_p, c.c_char_p]
        self._boundary = handle.bsg_boundary
        self._boundary.argtypes = [c.c_int, c.c_char_p, c.c_char_p, c.c_int64, c.c_int, c.POINTER(Decision)]
        handle.bsg_caught.argtypes = [c.c_int, c.c_uint64]
        handle.bsg_terminal.argtypes = [c.POINTER(Oom), c.POINTER(Decision)]
        handle.bsg_applied.argtypes = [
            c.c_int64,
            c.c_int,
            c.c_char_p,
            c.c_int,
            c.c_int64,
            c.c_int64,
            c.c_int,
            c.c_char_p,
        ]
        handle.bsg_unrescued.argtypes = [c.c_int, c.c_int, c.c_char_p]
        handle.bsg_retried.argtypes = [c.c_int, c.c_char_p]
        handle.bsg_waited.argtypes = [c.c_int, c.c_int64]
        handle.bsg_refused.argtypes = [c.c_char_p, c.c_char_p]
        handle.bsg_disarmed.argtypes = [c.c_char_p, c.c_char_p, c.c_char_p, c.c_int]
        handle.bsg_step.argtypes, handle.bsg_step.restype = [c.c_int, c.c_uint64], c.c_int64
        handle.bsg_framework.argtypes = [c.POINTER(Framework)]
        handle.bsg_held.argtypes = [c.c_int, c.c_char_p, c.c_uint64, c.c_uint64, c.c_uint64]
        handle.bsg_note.argtypes = [c.c_char_p, c.c_char_p]
        self._memory = handle.bsg_memory
        self._memory.argtypes = [c.c_int, c.POINTER(Memory)]
        self._handle = handle

    def mode(self):
        """MODE_OFF, MODE_OBSERVE or MODE_GUARD."""
        return self._handle.bsg_mode()

    def option(self, name):
        """The parsed value of an option as text; None for an unknown name."""
        value = self._handle.bsg_option(name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    def attach(self, framework, command):
        """Takes charge: from now on only terminal() says which OOM was terminal."""
        self._handle.bsg_attach(_text(framework), _text(command))

    def set_phase(self, phase):
        """Says what the job is doing; returns the phase before."""
        return self._set_phase(phase)

    def boundary(self, device, name, signature, batch, phase):
        """In how many chunks is this batch to be run? `name` and `signature` are bytes. Returns a Decision."""
        decision = Decision(size=ctypes.sizeof(Decision))
        if self._boundary(device, name, signature, batch, phase, ctypes.byref(decision)) < 0:
            decision.verdict, decision.micro_batch, decision.accumulation_steps, decision.chunks = KEEP, batch, 1, 1
        return decision

    def caught(self, device, request_bytes):
        """A terminal OOM was caught that is reported, with a boundary, after a trial: what was refused so far counts."""
        self._handle.bsg_caught(device, request_bytes)

    def terminal(
        self,
        device,
        name,
        signature,
        batch,
        phase,
        exactness,
        because,
        request_bytes,
        exception,
        smallest=1,
        held=0,
        may_wait=False,
    ):
        """Reports a terminal OOM, once each; returns the Decision.

        smallest: samples in the smallest chunk allowed. held: bytes on the device now that the attempt is gone.
        may_wait: the caller can do what the verdict AGAIN asks for.
        """
        decision = Decision(size=ctypes.sizeof(Decision) if may_wait else Decision.wait_ms.offset)
        oom = Oom(
            size=ctypes.sizeof(Oom),
            device=device,
            boundary=_text(name),
            signature=_text(signature),
            batch=batch,
            phase=phase,
            exactness=exactness,
            because=_text(because),
            request_bytes=request_bytes,
            exception=_text(exception),
            smallest=smallest,
            held_bytes=held,
        )
        if self._handle.bsg_terminal(ctypes.byref(oom), ctypes.byref(decision)) < 0:
            decision.verdict = KEEP
        return decision

    def applied(self, sequence, device, name, phase, batch, micro_batch, exactness, because):
        """Says that a decision was taken up."""
        self._handle.bsg_applied(sequence, device, _text(name), phase, batch, micro_batch, exactness, _text(because))

    def unrescued(self, device, phase, exception):
        """The OOM reported last could not be saved: the report is written."""
        self._handle.bsg_unrescued(device, phase, _text(exception))

    def retried(self, device, what):
        """The OOM reported last was met: caches were given back, and `what` went through at the next try."""
        self._handle.bsg_retried(device, _text(what))

    def waited(self, device, milliseconds):
        """The wait that a decision AGAIN asked for is over."""
        self._handle.bsg_waited(device, milliseconds)

    def refused(self, name, why):
        """This boundary will not be split, and why."""
        self._handle.bsg_refused(_text(name), _text(why))

    def disarmed(self, name, signature, why, for_good):
        """A boundary runs untouched from now on."""
        self._handle.bsg_disarmed(_text(name), _text(signature), _text(why), 1 if for_good else 0)

    def step(self, device, allocated_peak):
        """A training step ended. allocated_peak: the framework's in this step alone, in bytes; 0: not known. Returns how
        many steps did."""
        return self._handle.bsg_step(device, allocated_peak)

    def framework(self, device, allocated, reserved, peak, reserved_peak, weights, gradients, moments, stack):
        """What the framework has in use, in bytes; for reports. stack: of the exception that was caught, or None."""
        told = Framework(
            ctypes.sizeof(Framework),
            device,
            allocated,
            reserved,
            peak,
            reserved_peak,
            weights,
            gradients,
            moments,
            _text(stack),
        )
        self._handle.bsg_framework(ctypes.byref(told))

    def held(self, device, what, tensors, with_graph, size):
        """A container of the program that holds tensors; None forgets those told before. `size` in bytes."""
        self._handle.bsg_held(device, _text(what), tensors, with_graph, size)

    def note(self, name, value):
        """A word for reports: a version, flags, modules."""
        self._handle.bsg_note(_text(name), _text(value))

    def memory(self, device):
        """Device memory at the driver, or None where no device was used yet."""
        out = Memory(size=ctypes.sizeof(Memory))
        return out if self._memory(device, ctypes.byref(out)) == 0 else None


def load():
    """The preloaded library, or None with the reason: (library, why)."""
    candidates = [
        entry for entry in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if "libbsguard" in entry
    ]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    candidates.append(os.path.join(root, "libbsguard.so"))
    for path in candidates:
        try:
            # RTLD_NOLOAD: only the copy that is in the process from the start sees the driver's calls.
            handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        handle.bsg_api_version.restype = ctypes.c_uint32
        if handle.bsg_api_version() != API_VERSION:
            return None, "libbsguard.so speaks version %d of the interface, the adapter %d" % (
                handle.bsg_api_version(),
                API_VERSION,
            )
        return Library(handle), None
    return None, "libbsguard.so is not preloaded in this process"
