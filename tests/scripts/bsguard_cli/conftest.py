"""The command as a fixture, and runs for it: recorded ones, made-up ones with everything in them, fresh ones of a real job.

Most tests call the command in this process (`bsguard`), where an exception that reached the user as a traceback is a
failure; those about processes and signals start it (`start`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

import pytest

# Nothing here depends on Paddle, and only .venv has what the command needs: the tests run once, with the current Paddle.
if metadata.version("paddlepaddle").startswith("2."):
    collect_ignore_glob = ["test_*.py"]
else:
    from click.testing import CliRunner

    from bsguard_cli.main import command

sys.path.insert(0, str(Path(__file__).parent))

from cli_support import JOB, Said, arguments_of, full_report, process_environment, simulated, started, write_run
from report_checks import check_folder


@pytest.fixture
def bsguard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Calls the command in this process: bsguard("report", RUN, env={...}) -> Said. No exception may leave it."""
    for name in list(os.environ):
        if name.startswith("BSGUARD"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, env: Optional[Mapping[str, str]] = None) -> Said:
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(command, words, env=dict(env or {}), prog_name="bsguard")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(f"bsguard {words} ended with a traceback") from result.exception
        assert "Traceback" not in result.output
        return Said(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def start(tmp_path: Path):
    """Starts the command as a process and waits: start("run", "--", ...) -> CompletedProcess."""

    def run(*arguments: Any, env: Optional[Mapping[str, str]] = None, timeout: float = 120, cwd: Optional[Path] = None):
        return subprocess.run(
            arguments_of(*arguments),
            cwd=cwd or tmp_path,
            env=process_environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def _once(factory: pytest.TempPathFactory, name: str, make) -> Path:
    """A folder that is made once for all the workers of a session."""
    base = factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def job_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "train.py"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, build: Path, job_script: Path) -> Path:
    """A folder with the run of a real job that `bsguard run` started, and that ran out of memory and was rescued."""

    def make(folder: Path) -> None:
        done = subprocess.run(
            arguments_of("run", "--", *simulated(job_script)),
            cwd=folder,
            env=process_environment(
                SIMGPU_BUILD=str(build / "simgpu"),
                XDG_STATE_HOME=str(folder / "state"),
                SIMGPU_REFUSALS=str(folder / "refusals.jsonl"),
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done
        assert check_folder(folder / "bsguard", folder / "refusals.jsonl", limited=False) == 1

    return _once(tmp_path_factory, "fresh-run", make) / "bsguard"


@pytest.fixture
def unrescued(tmp_path: Path) -> Path:
    """A run that died of an OOM, with a report of everything."""
    mib = 1 << 20
    steps = [
        {
            "type": "step",
            "step": n,
            "phase": "optimizer",
            "device": 0,
            "batch": 32,
            "micro_batch": 32,
            "accumulation_steps": 1,
            "peak_bytes": (9000 + 100 * n) * mib,
            "allocated_peak_bytes": (8000 + 100 * n) * mib,
        }
        for n in range(1, 117)
    ]
    oom = {"type": "oom", "step": 117, "phase": "forward", "device": 0, "request_bytes": 64 * mib, "live_bytes": 20000 * mib,
           "free_bytes": 30 * mib}  # fmt: skip
    decision = {"type": "decision", "sequence": 1, "reason": "start", "batch": 32, "micro_batch": 32,
                "accumulation_steps": 1, "why": "first step"}  # fmt: skip
    events = [started(), decision, *steps, oom]
    folder = tmp_path / "runs" / "20261130T183012Z-4711"
    return write_run(folder, events, full_report(), batch=32, micro_batch=32, accumulation_steps=1)
