"""The two virtual environments, and which Python makes them.

A folder counts as finished only with its stamp, which is written last and holds a digest of everything that the folder
depends on. Without a fitting stamp it is completed where its Python works and is of the right version, else made anew.
Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from support.clean import tool_environment
from support.environ import REPO, VENV, VENV_26
from support.steps import Failed, Steps

AGAIN = "Is the network there? Then run scripts/setup again: it goes on where it stopped."


class Environment(NamedTuple):
    """A virtual environment that we make."""

    folder: Path
    requirements: Path
    oldest: tuple[int, int]  # Python versions that its Paddle has wheels for
    newest: tuple[int, int]
    what: str


PADDLE_33 = Environment(VENV, REPO / "requirements" / "paddle33.txt", (3, 9), (3, 13), "Paddle 3.3.1")
PADDLE_26 = Environment(VENV_26, REPO / "requirements" / "paddle26.txt", (3, 8), (3, 12), "Paddle 2.6.2")


def _stamp(environment: Environment) -> Path:
    return environment.folder / ".bsguard-stamp"


def _digest(environment: Environment) -> str:
    text = f"{environment.folder}\n{environment.requirements.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()


def stamp_of(environment: Environment) -> str:
    """What an environment's stamp says: changes when the environment does; empty where there is none."""
    try:
        return _stamp(environment).read_text().strip()
    except OSError:
        return ""


def is_ready(environment: Environment) -> bool:
    """Whether nothing is to be done. Looks at files only."""
    stamped = stamp_of(environment) == _digest(environment)
    return stamped and (environment.folder / "bin" / "python").exists()  # a dangling link where Python was removed


def _version_of(python: Path) -> Optional[tuple[int, int]]:
    """(major, minor) of a Python that works and can make virtual environments; None otherwise."""
    command = [str(python), "-I", "-c", "import sys, venv, ensurepip; print('%d %d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(
            command, env=tool_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
        major, minor = done.stdout.split()
        return (int(major), int(minor)) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _candidates(environment: Environment) -> Iterator[Path]:
    """Pythons of this system, the one that runs us first, then the newest."""
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    yield Path(sys.base_prefix) / "bin" / own  # not that of an active virtual environment, which may go away
    yield Path(sys.executable)
    for minor in range(environment.newest[1], environment.oldest[1] - 1, -1):
        name = f"python3.{minor}"
        for folder in [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"]:
            if folder and os.access(os.path.join(folder, name), os.X_OK):
                yield Path(folder) / name
        for root in {os.environ.get("PYENV_ROOT") or "", os.path.expanduser("~/.pyenv")} - {""}:
            yield from sorted(Path(root, "versions").glob(f"3.{minor}.*/bin/python"), reverse=True)


def find_python(environment: Environment) -> Optional[Path]:
    """A Python that the environment's Paddle has wheels for; None where there is none."""
    for python in _candidates(environment):
        version = _version_of(python)
        if version and environment.oldest <= version <= environment.newest:
            return python
    return None


def _works(environment: Environment) -> bool:
    """Whether a folder left half-made, or of older requirements, can be completed."""
    version = _version_of(environment.folder / "bin" / "python")
    if not version or not environment.oldest <= version <= environment.newest:
        return False
    pip = [str(environment.folder / "bin" / "python"), "-I", "-m", "pip", "--version"]
    return subprocess.call(pip, env=tool_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def pip_install(steps: Steps, folder: Path, requirements: Path, what: str) -> None:
    """Installs a requirements file into a virtual environment."""
    pip = [folder / "bin" / "python", "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    steps.run([*pip, "--progress-bar", "off", "-r", requirements], what=what, otherwise=AGAIN)


def ensure(steps: Steps, environment: Environment) -> bool:
    """Makes or completes an environment. False where no Python fits; raises Failed where a step fails."""
    if is_ready(environment):
        return True
    folder = environment.folder
    _stamp(environment).unlink(missing_ok=True) if folder.is_dir() else None
    if not _works(environment):
        python = find_python(environment)
        if python is None:
            return False
        if folder.is_symlink() or folder.is_file():
            raise Failed(f"{folder} is no folder of ours: please move it away")
        if folder.exists():
            steps.say(f"making {folder.name} anew")
            shutil.rmtree(folder)
        steps.run(
            [python, "-I", "-m", "venv", folder],
            what=f"making {folder.name} with {python}",
            otherwise=f"Remove {folder} and run scripts/setup again.",
        )
    pip_install(
        steps, folder, environment.requirements, f"installing {environment.what} and more into {folder.name} (minutes)"
    )
    _stamp(environment).write_text(_digest(environment) + "\n")
    return True
