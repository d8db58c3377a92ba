"""Fixtures of the shim's tests: test programs in a process of their own, on the simulated driver, with or without us."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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


@pytest.fixture(scope="session")
def client(repo: Path, build: Path):
    """A package of requirements/cuda-clients.txt in a folder of its own: client("name", "1.2") -> the folder.

    Fetched at its first use; the version may be left out where the file pins one. Skips the test where it cannot be had.
    """
    pins = [line.strip() for line in (repo / "requirements" / "cuda-clients.txt").read_text().splitlines()]

    def fetch(name: str, version: str = "") -> Path:
        pin = next(pin for pin in pins if pin.startswith(f"{name}=={version}"))
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        folder = build / "clients" / f"{pin.replace('==', '-')}-py{python}"
        if folder.is_dir():
            return folder
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            target = Path(scratch) / "target"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
            try:
                done = subprocess.run([*pip, "--target", target, pin], capture_output=True, text=True, timeout=300)
                why = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            except subprocess.TimeoutExpired:
                why = ["no answer after 300 s"]
            if why or not target.is_dir():
                pytest.skip(f"{pin} cannot be fetched here: {' '.join(why) or 'pip left nothing'}")
            try:
                os.rename(target, folder)
            except OSError:  # another process was faster
                assert folder.is_dir()
                shutil.rmtree(target)
        return folder

    return fetch
