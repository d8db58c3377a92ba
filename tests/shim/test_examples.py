"""The examples of docs/examples, as a reader would run them: with the preload they finish where they would not without."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

TIGHT = 20 << 20  # bytes; a batch of 64 samples takes 64 MiB


@pytest.fixture
def loop(tmp_path: Path, repo: Path, build: Path, run_plain):
    """Runs an example: loop("c" or "py", preload=bool, memory=bytes)."""

    def run(kind: str, *, preload: bool, memory: int = TIGHT):
        command = [sys.executable, repo / "docs" / "examples" / "loop.py"]
        if kind == "c":
            command = [tmp_path / "loop"]
            headers = Path(next(iter(importlib.import_module("nvidia.cuda_runtime").__path__)), "include")
            includes = ["-I", repo / "shim", "-isystem", headers]
            source = repo / "docs" / "examples" / "loop.c"
            driver = build / "simgpu" / "lib" / "libcuda.so.1"
            subprocess.run(
                ["cc", "-Wall", "-Wextra", "-Werror", *includes, source, driver, "-o", command[0]], check=True
            )
        env = {"LD_LIBRARY_PATH": str(build / "simgpu" / "lib"), "SIMGPU_MEMORY": str(memory)}
        if preload:
            env["LD_PRELOAD"] = str(build / "libbsguard.so")
        return run_plain(command, env=env)

    return run


@pytest.mark.parametrize("kind", ["c", "py"])
def test_it_finishes_with_the_preload_alone(loop, kind):
    plenty = loop(kind, preload=False, memory=1 << 30)
    assert plenty.returncode == 0, plenty
    assert plenty.stdout.count("64 at a time") == 5, plenty
    unguarded = loop(kind, preload=False)
    assert unguarded.returncode == 1 and "out of memory" in unguarded.stderr, unguarded
    guarded = loop(kind, preload=True)
    assert guarded.returncode == 0, guarded
    assert guarded.stdout.count("samples") == 5, guarded
    assert guarded.stdout.splitlines()[-1].endswith(" 16 at a time"), guarded  # at the latest after a few steps
    assert guarded.control["accumulation_steps"] == 4, guarded
    assert guarded.control["inferred"] == (kind == "py"), guarded


@pytest.mark.parametrize("kind", ["c", "py"])
def test_with_enough_memory_nothing_changes(loop, kind):
    plain, guarded = (loop(kind, preload=preload, memory=1 << 30) for preload in (False, True))
    assert guarded.returncode == 0 and guarded.stdout == plain.stdout, guarded
