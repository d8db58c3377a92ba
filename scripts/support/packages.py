"""What the system must have before anything can be built, and how it gets there: Debian packages.

Standard library only. Installs only where it may without asking: as root or with a sudo that wants no password.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.steps import Failed, Steps

# (Debian package, what tells that it is there)
_TOOLS = (("gcc", "gcc"), ("g++", "g++"), ("make", "make"))
_INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include")


def _has_header(name: str) -> bool:
    folders = [*_INCLUDE_FOLDERS, *filter(None, os.environ.get("CPATH", "").split(":"))]
    return any((Path(folder) / name).exists() for folder in folders)


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _has_venv() -> bool:
    """Whether this Python can make a virtual environment with pip in it: Debian packages that apart."""
    try:
        import ensurepip
        import venv
    except ImportError:
        return False
    return bool(venv and ensurepip)


def missing_packages() -> list[str]:
    """Debian packages without which nothing can be built."""
    missing = [package for package, tool in _TOOLS if shutil.which(tool) is None]
    if not _has_header("uthash.h"):
        missing.append("uthash-dev")
    if not _has_header("stdlib.h"):
        missing.append("libc6-dev")
    if not _has_venv():
        missing.append(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")
    return missing


def _root_command() -> list[str] | None:
    """What goes before a command that needs root: nothing, sudo, or None where we may not."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.call([sudo, "-n", "true"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) == 0:
        return [sudo, "-n"]
    return None


def _install(steps: Steps, packages: list[str]) -> bool:
    """Tries to install Debian packages; False where that cannot be done here."""
    prefix = _root_command()
    if prefix is None or shutil.which("apt-get") is None:
        return False
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    if steps.run(install, what=f"installing {' '.join(packages)}", check=False) == 0:
        return True
    steps.run([*apt, "update"], what="refreshing the list of Debian packages", check=False)
    return steps.run(install, check=False) == 0


def ensure_packages(steps: Steps) -> None:
    """Sees to it that the system has what a build needs; raises Failed with one line that says what is missing."""
    needed = missing_packages()
    if needed and not (_install(steps, needed) and not missing_packages()):
        raise Failed(
            f"please install these Debian packages (or what your system calls them): {' '.join(missing_packages())}"
            f"\n  e.g. sudo apt-get install {' '.join(missing_packages())}"
        )


def ensure_unwinder(steps: Steps) -> None:
    """libunwind names the code that asked for memory. bsguard does without, so its absence is only said."""
    if not _has_library("libunwind.so.8") and not _install(steps, ["libunwind8"]):
        steps.say("libunwind8 is not installed: reports will name allocation sites less exactly")


def ensure_clang(steps: Steps) -> bool:
    """clang, with which the fuzzers are built; False where it is not there and cannot be installed."""
    return shutil.which("clang") is not None or _install(steps, ["clang"])
