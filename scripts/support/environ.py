"""Where things are in this repository, and the environment of a job.

Standard library only. Nothing here writes a file or prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from support.clean import tool_environment

REPO = Path(__file__).resolve().parent.parent.parent
BUILD = REPO / "build"
VENV = REPO / ".venv"
VENV_26 = REPO / ".venv-paddle26"

_BENDS_JOBS = re.compile(
    r"^(BSGUARD.*|BSG_.*|SIMGPU_.*|FLAGS_.*|PADDLE_.*|CUDA_.*|CUSTOM_DEVICE_ROOT|LD_LIBRARY_PATH)$"
)


def job_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` less what would bend a job on the simulated GPU, or bsguard."""
    return {name: value for name, value in tool_environment(environment).items() if not _BENDS_JOBS.match(name)}
