"""The newest Paddle that pip finds, tried before anybody's job meets it: told in a warning, never a failure.

Where it is the one that the tests are pinned to, there is nothing to do. Else an environment is made for it, the
simulated GPU's plug-in is built against it, and a few jobs run with enough memory and with too little.
"""

import re
import shutil
import subprocess
import sys
import warnings

import pytest

from benchmarks import verdict
from support.clean import tool_environment

JOBS = ("cnn", "transformer", "detector")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def newest_version():
    """The newest release of paddlepaddle for this Python, e.g. "3.3.1"; None where pip cannot tell."""
    command = [sys.executable, "-I", "-m", "pip", "index", "versions", "paddlepaddle", "--disable-pip-version-check"]
    done = subprocess.run(command, env=tool_environment(), capture_output=True, text=True, timeout=300)
    found = re.search(r"^paddlepaddle \(([0-9][0-9.]*)\)$", done.stdout, re.MULTILINE)
    return found and found[1]


def pinned_version(repo):
    return re.search(r"^paddlepaddle==(\S+)", (repo / "requirements" / "paddle33.in").read_text(), re.MULTILINE)[1]


def try_out(version, folder, repo, build, run):
    """Yields, in words, each thing that does not work with that Paddle."""
    python = folder / "env" / "bin" / "python"
    simgpu = folder / "simgpu"
    shutil.copytree(build / "simgpu", simgpu, symlinks=True)
    steps = {
        "an environment for it": [sys.executable, "-I", "-m", "venv", python.parent.parent],
        "installing it": [
            python,
            "-I",
            "-m",
            "pip",
            "install",
            "-q",
            f"paddlepaddle=={version}",
            "numpy",
            "setuptools",
        ],
        "the simulated GPU's plug-in": [python, repo / "tests" / "simgpu" / "build_plugin.py", "--output", simgpu],
    }
    for what, command in steps.items():
        done = run(command, timeout=900)
        if done.returncode:
            yield f"{what} failed: {done}"
            return
    options = {"env": {"SIMGPU_BUILD": simgpu}, "timeout": 300}
    guarded = {"env": {"SIMGPU_BUILD": simgpu, "LD_PRELOAD": build / "libbsguard.so"}, "timeout": 300}
    for name in JOBS:
        command = [repo / "scripts" / "simgpu", "--stats", "--memory", "1GiB", "--", python]
        job = [repo / "scripts" / "benchmarks" / "sweep_job.py", name]
        plain = run([*command, *job, folder / "plain.npz"], **options)
        peak = re.search(r" peak (\d+) of ", plain.stderr)
        if plain.returncode or not peak:
            yield f"{name} fails without bsguard: {plain}"
            continue
        for share in (2.0, 0.6):
            command[3] = str(int(int(peak[1]) * share))
            done = run([*command, *job, folder / "guarded.npz"], **guarded)
            if done.returncode:
                yield f"{name} with {share} of its memory: {done}"
                continue
            apart = verdict.apart(verdict.arrays(folder / "plain.npz"), verdict.arrays(folder / "guarded.npz"))
            if apart > (verdict.EXACT if share < 1 else 0.0):
                yield f"{name} with {share} of its memory differs by {apart:.1e}"


def test_the_newest_paddle(tmp_path, run_plain, repo, build):
    newest = newest_version()
    if newest is None:
        warnings.warn("pip says of no paddlepaddle: the newest one was not tried", stacklevel=1)
    elif newest != pinned_version(repo):
        found = list(try_out(newest, tmp_path, repo, build, run_plain))
        text = "\n".join(found) or "everything that was tried works: time to pin it in requirements/"
        warnings.warn(f"Paddle {newest} is newer than the pinned one. {text}", stacklevel=1)


def test_what_is_asked_of_pip_and_of_the_pins(repo):
    """What the test above compares can be read, so that it does not pass for ever by understanding nothing."""
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", pinned_version(repo))
    assert newest_version() is None or re.fullmatch(r"[0-9]+(\.[0-9]+)+", newest_version())
