"""Configures and builds with CMake, and builds the simulated GPU's plug-in for each Paddle.

What needs rebuilding is left to make and to the plug-in's own script. Where no source was touched since they last ran
well, they are not even asked: make alone takes a second or two to find that out. Standard library only.
"""

from __future__ import annotations

import hashlib
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


def source_files() -> list[Path]:
    """Every file that a build could depend on, sorted."""
    found = [REPO / "CMakeLists.txt", REPO / "CMakePresets.json"]
    for part in ("cmake", "hooks", "policy", "shim", "tests"):
        for folder, folders, names in os.walk(REPO / part):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [Path(folder, name) for name in names]
    return sorted(found)


def fingerprint(files: list[Path], *more: str) -> str:
    """Changes when one of the files is touched, comes or goes, and with `more`."""
    digest = hashlib.sha256("\n".join(more).encode())
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue
        digest.update(f"{path}\0{state.st_mtime_ns}\0{state.st_size}\n".encode())
    return digest.hexdigest()


def _says(path: Path, text: str) -> bool:
    """Whether a stamp is there and holds this text."""
    try:
        return path.read_text() == text
    except OSError:
        return False


def jobs() -> str:
    """How many compilers may run at once."""
    return str(len(os.sched_getaffinity(0)))


def build(steps: Steps, cmake: Path, preset: str) -> Path:
    """Configures where needed and builds a preset; returns its build folder."""
    folder = BUILD if preset == "release" else BUILD / preset
    files = source_files()
    stamp, now = folder / ".bsguard-built", fingerprint(files, str(cmake), preset)  # as it was before the build began
    library = folder / "libbsguard.so"
    if _says(stamp, now) and library.exists() and (folder / "simgpu" / "lib" / "libcuda.so.1").exists():
        return folder
    # CMake itself does not see when a folder gets its first CMakeLists.txt.
    lists = [str(path) for path in files if path.name == "CMakeLists.txt"]
    configured, key = folder / ".bsguard-configured", "\n".join([str(cmake), preset, *lists])
    if not (_says(configured, key) and (folder / "Makefile").exists()):
        steps.run([cmake, "--fresh", "--preset", preset], what=f"configuring {preset}", otherwise=FRESH)
        configured.write_text(key)
    what = None if library.exists() else f"building {preset}"
    steps.run([cmake, "--build", folder, "-j", jobs()], what=what, otherwise=FRESH)
    stamp.write_text(now)
    return folder


def build_plugin(steps: Steps, environment: venvs.Environment) -> None:
    """The plug-in through which an environment's Paddle uses the simulated GPU."""
    version = environment.what.split()[-1]
    plugin = BUILD / "simgpu" / f"plugin-{version}" / "libpaddle-simgpu.so"
    stamp = BUILD / "simgpu" / f".bsguard-plugin-{version}"
    now = fingerprint(
        [path for path in source_files() if PLUGIN_SCRIPT.parent in path.parents], venvs.stamp_of(environment)
    )
    if _says(stamp, now) and plugin.exists():
        return
    what = None if plugin.exists() else f"building the simulated GPU for Paddle {version}"
    command = [environment.folder / "bin" / "python", PLUGIN_SCRIPT, "--output", BUILD / "simgpu"]
    steps.run(command, what=what, otherwise=FRESH)
    stamp.write_text(now)
