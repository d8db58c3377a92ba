"""build_plugin.py: builds once, then finds that nothing changed; says what is missing."""

import subprocess
import sys
import time

import pytest
from simgpu_support import REPO

SCRIPT = REPO / "tests" / "simgpu" / "build_plugin.py"


def build(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=300,
    )


@pytest.mark.paddle
def test_a_second_build_does_nothing(tmp_path):
    first = build("--output", tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith(" built\n")
    (library,) = tmp_path.glob("plugin-*/libpaddle-simgpu.so")
    before = library.stat()
    start = time.monotonic()
    second = build("--output", tmp_path)
    assert second.stdout.endswith(" is up to date\n") and time.monotonic() - start < 2
    assert library.stat().st_ino == before.st_ino
    library.unlink()
    assert build("--output", tmp_path).stdout.endswith(" built\n")


def test_an_interpreter_without_paddle(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = build("--paddle-python", python, "--output", tmp_path)
    assert done.returncode == 1 and "has no paddle" in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("plugin-*"))


def test_an_interpreter_that_is_not_there(tmp_path):
    done = build("--paddle-python", tmp_path / "nothing", "--output", tmp_path)
    assert done.returncode == 1 and "nothing" in done.stderr and done.stderr.count("\n") == 1
