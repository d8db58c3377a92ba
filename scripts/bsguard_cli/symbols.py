"""C++ names as people write them, by the C++ run-time library, in a process of its own: a name out of a file may be made
to crash a demangler, or to keep it busy for ever. Names that cannot be had stay as they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

MOST_NAMES = 4096
MOST_LENGTH = 2000
SECONDS = 5

_PROGRAM = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
cxx, c = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)
cxx.__cxa_demangle.restype = ctypes.c_void_p
for line in sys.stdin.buffer.read().split(b"\\n"):
    status = ctypes.c_int(-1)
    made = cxx.__cxa_demangle(line, None, None, ctypes.byref(status))
    if status.value == 0 and made:
        line = ctypes.string_at(made)[:4000].replace(b"\\n", b" ")
        c.free(ctypes.c_void_p(made))
    sys.stdout.buffer.write(line + b"\\n")
    sys.stdout.buffer.flush()
"""


def demangle(names: Sequence[str]) -> dict[str, str]:
    """The names that could be read, as people write them."""
    asked = [name for name in names if name.isascii() and len(name) <= MOST_LENGTH][:MOST_NAMES]
    if not asked:
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM],
            input="\n".join(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            env={},
        )
        lines = done.stdout.split(b"\n")
    except subprocess.TimeoutExpired as expired:
        lines = (expired.stdout or b"").split(b"\n")
    except OSError:
        return {}
    return {name: line.decode("utf-8", "replace") for name, line in zip(asked, lines) if line}
