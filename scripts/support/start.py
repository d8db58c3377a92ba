"""How a command goes on inside .venv once scripts/setup has made it. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys

from support.environ import REPO, VENV

_MARK = "BSG_SET_UP"


def continue_in_venv(failed: int) -> None:
    """Sets up and starts this script again with the Python of .venv; returns at once in there.

    failed: the exit status where the set-up fails.
    """
    if os.environ.pop(_MARK, None):
        return
    if subprocess.call([sys.executable, str(REPO / "scripts" / "setup"), "--demo-only", "--quiet"]) != 0:
        sys.exit(failed)
    python = str(VENV / "bin" / "python")
    os.execve(python, [python, *sys.argv], {**os.environ, _MARK: "1"})
