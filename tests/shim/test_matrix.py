"""The matrix of look-ups: every hooked function in every way in, against what the driver itself answers.

The oracle is the same program without the preload: each look-up must find the same function of the driver, and ours in
front of it exactly where it is hooked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import pytest

DRIVERS = ["lib", "lib-11.8", "lib-12.4", "lib-13.0"]
LEVELS = ["O0", "O2"]
GLOBAL = {"default", "next", "self"}
OURS, DRIVER = "libbsguard.so", "libcuda.so.1"


@pytest.fixture(scope="session")
def hooked(repo: Path) -> set[str]:
    """The symbols of hooks.def."""
    table = (repo / "hooks" / "cuda" / "hooks.def").read_text()
    return set(re.findall(r"^BSG_HOOK\((\w+),", table, re.MULTILINE))


def answers(job) -> dict[str, tuple[str, str]]:
    """Look-up -> (symbol, file) of everything that a program of the matrix printed."""
    assert job.returncode == 0, job
    found = {}
    for line in job.stdout.splitlines():
        question, symbol, file = line.rsplit(" ", 2)
        found[question] = (symbol, file)
    assert len(found) > 50, job
    return found


@pytest.fixture
def compare(program, library: Path, build: Path, hooked: set[str]):
    """compare(name, *arguments, driver, after=False, ...): runs it without and with us; returns the look-ups seen."""

    def run(name: str, *arguments: object, driver: str = "lib", after: bool = False, private: bool = False, **options):
        folder = build / "simgpu" / driver
        env: dict[str, Optional[str]] = {"LD_LIBRARY_PATH": str(folder)} if driver else {}
        # `private`: the driver is loaded, but not for all to see: a global look-up then finds ours, which goes on to it.
        # `after`: the driver itself is in the program's scope, where it comes after us.
        alone: Mapping[str, Optional[str]] = {**env, "LD_PRELOAD": str(folder / DRIVER)} if after else env
        ours = {**env, "LD_PRELOAD": f"{library}:{folder / DRIVER}" if after else str(library)}
        plain = answers(program(name, *arguments, preload=False, driver=False, env=alone, **options))
        guarded = answers(program(name, *arguments, preload=False, driver=False, env=ours, **options))
        assert plain.keys() == guarded.keys()
        wrong = []
        for question, (symbol, file) in plain.items():
            expected = (symbol, OURS if symbol in hooked else DRIVER) if file == DRIVER else (symbol, file)
            if question.startswith("linked ") and file == "-":
                continue  # bound by the loader to our export, which says that there is no such function
            if private and question.split()[0] in GLOBAL and guarded[question] == (question.split()[1], OURS):
                continue
            if guarded[question] != expected:
                wrong.append(f"{question}: {guarded[question]}, the driver: {(symbol, file)}")
        assert not wrong, "\n".join(wrong[:20])
        assert any(file == OURS for _, file in guarded.values())
        return guarded

    return run


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("level", LEVELS)
def test_program(compare, driver: str, level: str) -> None:
    """A program that was linked with the driver: plain symbols, handles, both functions that look up by version."""
    compare(f"matrix_{level}", "handle", "self", "default", "next", "linked", "table", driver=driver)


@pytest.mark.parametrize("level", LEVELS)
def test_driver_in_scope(compare, level: str) -> None:
    """RTLD_DEFAULT and RTLD_NEXT of a program that was not linked with the driver find it behind us."""
    compare(f"matrix_opener_{level}", "handle", "default", "next", "self", "table", after=True)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("level", LEVELS)
def test_constructor(compare, driver: str, level: str) -> None:
    """A library's constructor, which runs before ours."""
    compare(f"matrix_early_{level}", driver=driver)


@pytest.mark.parametrize("level", LEVELS)
def test_opened_with_a_runpath(compare, build: Path, level: str) -> None:
    """A library that is opened by path and finds the driver by its RUNPATH: nothing else says where it is."""
    library = build / "tests" / "shim" / "opened" / f"libmatrix_opened_{level}.so"
    compare(f"matrix_opener_{level}", library, driver="")


def test_all_hooks_are_tried(compare, hooked: set[str]) -> None:
    """And the simulated driver has nearly all of them, so that there is an answer to compare."""
    guarded = compare("matrix_O2", "handle")
    assert hooked <= {question.split()[1] for question in guarded}
    found = {symbol for symbol, file in guarded.values() if file == OURS}
    assert len(found) >= 0.75 * len(hooked), sorted(hooked - found)
