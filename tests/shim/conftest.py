"""Fixtures of the shim's tests: test programs in a process of their own, on the simulated driver, with or without us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import pytest


@pytest.fixture
def program(run_plain, build: Path, library: Path):
    """Runs a test program: program(name, *arguments, preload=True, driver=True, env=None, **run_plain's) -> Job.

    preload: under LD_PRELOAD=libbsguard.so. driver: the simulated libcuda.so.1 can be found.
    """

    def run(
        name: str,
        *arguments: object,
        preload: bool = True,
        driver: bool = True,
        env: Optional[Mapping[str, Optional[str]]] = None,
        **options: Any,
    ):
        variables: dict[str, Optional[str]] = {}
        if preload:
            variables["LD_PRELOAD"] = str(library)
        if driver:
            variables["LD_LIBRARY_PATH"] = str(build / "simgpu" / "lib")
        variables.update(env or {})
        words = [build / "tests" / "shim" / name, *(str(argument) for argument in arguments)]
        return run_plain(words, env=variables, **options)

    return run
