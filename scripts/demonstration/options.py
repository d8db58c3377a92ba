"""Options of scripts/demo, checked before anything is set up. Standard library only."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(text: str) -> int:
    """Bytes of "24MiB", "100 MB" or "4096"."""
    found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    if unit is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: an integer above 0, with KB, MB, GB, KiB, MiB or GiB")
    return int(found[1]) * unit


def fraction(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction: a number above 0 and below 1, such as 0.5")
    return value


def count(text: str) -> int:
    """An integer from 1."""
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1")
    return int(text)


def empty_folder(text: str) -> Path:
    """A folder that is empty, or is not there yet."""
    path = Path(text)
    try:
        if path.exists() and any(path.iterdir()):
            raise argparse.ArgumentTypeError(f"there are files in {text}: name an empty folder or a new one")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        allow_abbrev=False,
        description="Trains a small network on handwritten digits, three times: with enough GPU memory; with too "
        "little, where it dies; and with too little under LD_PRELOAD=libbsguard.so, where it finishes. Then it "
        "compares the results. The GPU is a simulated one unless --real is given.",
        epilog="Exit status: 0 where the rescue worked and the results agree, 1 where not, 2 where it was not tried.",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--memory-fraction",
        type=fraction,
        default=0.5,
        metavar="F",
        help="too little is this part of what the job takes when it has enough (default: 0.5)",
    )
    amount.add_argument("--memory", type=size, metavar="SIZE", help="too little is this much, e.g. 24MiB")
    parser.add_argument("--epochs", type=count, default=5, metavar="N", help="passes over the data (default: 5)")
    parser.add_argument(
        "--keep", type=empty_folder, metavar="DIR", help="put the files here (default: build/demo, made anew)"
    )
    parser.add_argument("--real", action="store_true", help="use the NVIDIA GPU of this machine")
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="a Python that has Paddle and scikit-learn, to run the job with (default: that of .venv; with --real: "
        "python3, whose Paddle must be a CUDA build)",
    )
    return parser
