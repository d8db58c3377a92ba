"""Where libbsguard.so lies: inside the wheel, in the build folder of this repository, or where CMake installed it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Optional

NAME = "libbsguard.so"
_HERE = Path(os.path.abspath(__file__)).parent


def candidates() -> list[Path]:
    """Where it is looked for, in this order."""
    prefix = Path(sys.prefix)
    installed = [Path(root) / "bsguard" for root in (prefix / "lib", "/usr/local/lib", "/usr/lib")]
    machine = os.uname().machine
    multiarch = [Path(root) / f"{machine}-linux-gnu" / "bsguard" for root in ("/usr/local/lib", "/usr/lib")]
    folders = [_HERE / "native", _HERE.parents[1] / "build", *installed, *multiarch]
    return [folder / NAME for folder in folders]


def find_library() -> Optional[Path]:
    """The library; None where there is none."""
    return next((path for path in candidates() if path.is_file()), None)


def python_half(library: Path) -> Path:
    """The folder whose sitecustomize brings the Python half: the library looks for it beside itself."""
    return library.parent / "bsguard" / "inject"


def options_program(library: Path) -> Path:
    """The program that prints the options that the library knows."""
    for path in (library.parent / "bsguard-options", library.parent / "shim" / "bsguard-options"):
        if path.is_file():
            return path
    return library.parent / "bsguard-options"


def version() -> str:
    """That of the wheel, or of this repository."""
    from importlib import metadata

    try:
        return metadata.version("bsguard")
    except metadata.PackageNotFoundError:
        pass
    for header in (_HERE / "native" / "bsguard.h", _HERE.parents[1] / "shim" / "bsguard.h"):
        try:
            text = header.read_text()
        except OSError:
            continue
        return text.split('BSG_VERSION "', 1)[-1].split('"', 1)[0]
    return "unknown"
