"""Configures and builds with CMake, and builds the simulated GPU's plug-in for each Paddle.

What needs rebuilding is left to make and to the plug-in's own script. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Optional

from support import venvs
from support.clean import tool_environment
from support.environ import BUILD, REPO, VENV
from support.steps import Failed, Steps

CMAKE_OLDEST = (3, 25)  # presets of version 6
PLUGIN_SCRIPT = REPO / "tests" / "simgpu" / "build_plugin.py"
FRESH = f"Remove {BUILD} and run scripts/setup again; if that does not help, the log says why."


def _cmake_version(cmake: Path) -> tuple[int, ...]:
    try:
        text = subprocess.run(
            [str(cmake), "--version"], capture_output=True, text=True, env=tool_environment(), timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (0,)
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0,)


def find_cmake() -> Optional[Path]:
    """A CMake that reads our presets: the system's, or the wheel in .venv; None where neither is there."""
    on_path = shutil.which("cmake")
    for cmake in ([Path(on_path)] if on_path else []) + [VENV / "bin" / "cmake"]:
        if cmake.exists() and _cmake_version(cmake) >= CMAKE_OLDEST:
            return cmake
    return None


def ensure_cmake(steps: Steps) -> Path:
    """As find_cmake(), and puts the wheel into .venv where there is none."""
    cmake = find_cmake()
    if cmake is None:
        requirements = REPO / "requirements" / "cmake.txt"
        venvs.pip_install(steps, VENV, requirements, "installing CMake into .venv (the system's is missing or too old)")
        cmake = find_cmake()
    if cmake is None:
        raise Failed(f"no CMake of version {'.'.join(map(str, CMAKE_OLDEST))} or newer, and the wheel does not run")
    return cmake


def cmake_files() -> list[Path]:
    """All CMakeLists.txt of the repository: CMake itself does not see when one appears where none was."""
    parts = ("hooks", "policy", "shim", "tests")
    return [REPO / "CMakeLists.txt", *sorted(path for part in parts for path in (REPO / part).rglob("CMakeLists.txt"))]


def jobs() -> str:
    """How many compilers may run at once."""
    return str(len(os.sched_getaffinity(0)))


def build(steps: Steps, cmake: Path, preset: str) -> Path:
    """Configures where needed and builds a preset; returns its build folder."""
    folder = BUILD if preset == "release" else BUILD / preset
    key_file = folder / ".bsguard-configured"
    key = f"{cmake}\n{preset}\n" + "".join(f"{path}\n" for path in cmake_files())
    configured = (folder / "Makefile").exists() and key_file.exists() and key_file.read_text() == key
    if not configured:
        steps.run([cmake, "--fresh", "--preset", preset], what=f"configuring {preset}", otherwise=FRESH)
        key_file.write_text(key)
    built = folder / "libbsguard.so"
    what = None if built.exists() else f"building {preset}"
    steps.run([cmake, "--build", folder, "-j", jobs()], what=what, otherwise=FRESH)
    return folder


def build_plugin(steps: Steps, environment: venvs.Environment) -> None:
    """The plug-in through which an environment's Paddle uses the simulated GPU."""
    command = [environment.folder / "bin" / "python", PLUGIN_SCRIPT, "--output", BUILD / "simgpu"]
    version = environment.what.split()[-1]
    built = (BUILD / "simgpu" / f"plugin-{version}").exists()
    steps.run(command, what=None if built else f"building the simulated GPU for Paddle {version}", otherwise=FRESH)
