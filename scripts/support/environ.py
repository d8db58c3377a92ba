"""Where things are in this repository, and an environment that the user's own settings cannot bend.

Standard library only. Nothing here writes a file or prints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
BUILD = REPO / "build"
VENV = REPO / ".venv"
VENV_26 = REPO / ".venv-paddle26"

# Bends a Python, pip or make that we start.
_BENDS_TOOLS = re.compile(
    r"^(LD_PRELOAD|LD_AUDIT|PYTHON.*|VIRTUAL_ENV(_PROMPT)?|CONDA_.*|__PYVENV_LAUNCHER__|MAKEFLAGS|MFLAGS|MAKELEVEL"
    r"|PIP_(USER|TARGET|PREFIX|ROOT|PYTHON|REQUIRE_VIRTUALENV|CONSTRAINT|REQUIREMENT|NO_DEPS|DRY_RUN|LOG|QUIET|VERBOSE"
    r"|UPGRADE|PRE|ONLY_BINARY|NO_BINARY))$"
)
# Bends a job on the simulated GPU as well.
_BENDS_JOBS = re.compile(
    r"^(BSGUARD.*|BSG_.*|SIMGPU_.*|FLAGS_.*|PADDLE_.*|CUDA_.*|CUSTOM_DEVICE_ROOT|LD_LIBRARY_PATH)$"
)


def tool_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` less what would bend the tools that we start."""
    return {name: value for name, value in environment.items() if not _BENDS_TOOLS.match(name)}


def job_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` less what would bend a job on the simulated GPU, or bsguard."""
    return {name: value for name, value in tool_environment(environment).items() if not _BENDS_JOBS.match(name)}


def restart_clean() -> None:
    """Starts this script again in tool_environment() where that is another one; otherwise returns at once."""
    clean = tool_environment()
    if len(clean) != len(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], clean)
