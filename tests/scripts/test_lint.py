"""The scripts are as clean as their linters know."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def tracked(repo, *patterns):
    """Files of the repository that git tracks."""
    out = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=repo, capture_output=True, text=True, check=True
    ).stdout
    return [repo / line for line in out.splitlines() if (repo / line).is_file()]


def is_shell(path):
    with open(path, "rb") as file:
        first = file.readline(80)
    return path.suffix == ".sh" or first.startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh"))


def test_shellcheck_finds_nothing(repo):
    scripts = [path for path in tracked(repo) if is_shell(path)]
    assert repo / ".ci" / "run" in scripts
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", *scripts], cwd=repo, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing(repo):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not in this environment")
    done = subprocess.run(
        [ruff, "check", "--no-cache", "--output-format", "concise", "."], cwd=repo, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_people_run_is_executable(repo):
    for name in ("setup", "test", "demo", "bench", "simgpu", "../.ci/run"):
        path = (repo / "scripts" / name).resolve()
        assert path.stat().st_mode & 0o111 == 0o111, f"{path} is not executable"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clang_tidy_finds_nothing(repo, build):
    """Over what runs inside the user's process; .clang-tidy says what is looked for."""
    tidy = shutil.which("clang-tidy")
    if tidy is None:
        pytest.skip("clang-tidy is not installed")
    sources = tracked(repo, "shim/*.c", "hooks/cuda/*.c", "policy/*.c")
    done = subprocess.run([tidy, "-p", build, "--quiet", *sources], cwd=repo, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def test_no_file_is_too_long(repo):
    """500 lines, or a reason in the head of the file: a file is about one thing."""
    for path in tracked(repo, "shim", "hooks", "policy", "scripts", "cmake"):
        if path.suffix in (".c", ".h", ".py", ".S", ".cmake"):
            lines = path.read_text().splitlines()
            assert len(lines) <= 500 or "long because" in "\n".join(lines[:20]), f"{path}: {len(lines)} lines"
