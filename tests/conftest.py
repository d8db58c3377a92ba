"""Fixtures that all Python tests share: where things are, and how a job is run on the simulated GPU.

A test that runs a Paddle job asks for `run_job` and never starts Paddle in its own process: each job gets a process, a
folder and a clean environment of its own. Tests that use `run_job` are marked `paddle`, and scripts/test runs them once
with each supported Paddle; the interpreter that runs pytest is the one that runs the job.

BSG_BUILD names the build folder (default: build/ in the repository).
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from report_checks import check_folder

REPO = Path(__file__).resolve().parent.parent

# What the person who runs the tests may have set, and what would change a job.
FOREIGN = re.compile(
    r"^(BSGUARD.*|BSG_.*|SIMGPU_.*|FLAGS_.*|PADDLE_.*|CUDA_.*|NVIDIA_.*|LD_PRELOAD|LD_LIBRARY_PATH|LD_AUDIT"
    r"|PYTHON.*|VIRTUAL_ENV|CUSTOM_DEVICE_ROOT|XDG_STATE_HOME|ASAN_OPTIONS|TSAN_OPTIONS)$"
)


def clean_environment() -> dict[str, str]:
    """The environment of this process less everything that would change a job."""
    return {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}


@dataclass
class Job:
    """A job that has ended, and what it left behind.

    returncode: as subprocess has it, -N for signal N. seconds: wall-clock time, with start-up.
    folder: the working folder, made for this job alone.
    """

    command: list[str]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path

    @property
    def runs(self) -> list[Path]:
        """Folders of runs that bsguard left under ./bsguard, oldest first."""
        return sorted(path for path in (self.folder / "bsguard").glob("*") if path.is_dir())

    @property
    def run(self) -> Path:
        """The one run folder. A test that expects another number of them uses `runs`."""
        assert len(self.runs) == 1, f"{len(self.runs)} run folders in {self.folder}\n{self}"
        return self.runs[0]

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the one run, in order."""
        return [json.loads(line) for line in (self.run / "events.jsonl").read_text().splitlines()]

    def events_of(self, *types: str) -> list[dict[str, Any]]:
        """The events of these types, in order."""
        return [event for event in self.events if event["type"] in types]

    @property
    def control(self) -> Optional[dict[str, Any]]:
        """control.json as it was left; None where none was written."""
        path = self.run / "control.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def result(self) -> Any:
        """What the script printed last on its standard output, which must be a line of JSON."""
        lines = self.stdout.strip().splitlines()
        assert lines, f"the job printed nothing\n{self}"
        return json.loads(lines[-1])

    @property
    def lines_of_bsguard(self) -> list[str]:
        """What bsguard said on standard error."""
        return [line for line in self.stderr.splitlines() if line.startswith("bsguard")]

    def __str__(self) -> str:
        def tail(text: str) -> str:
            return "\n".join(text.splitlines()[-40:])

        return (
            f"$ {' '.join(self.command)}\nexit status {self.returncode} after {self.seconds:.1f} s in {self.folder}\n"
            f"--- stdout\n{tail(self.stdout)}\n--- stderr\n{tail(self.stderr)}"
        )


def check_reports(folder: Path, environment: Mapping[str, str]) -> None:
    """Every report that the jobs of a folder left must hold, whatever the test looks at."""
    parents = {folder / "bsguard", folder / environment.get("BSGUARD_DIR", "bsguard")}
    for parent in parents:
        check_folder(parent, Path(environment["SIMGPU_REFUSALS"]), "BSGUARD_MEMORY_LIMIT" in environment)


def run_command(
    command: Sequence[Union[str, Path]],
    *,
    folder: Path,
    env: Optional[Mapping[str, Optional[str]]] = None,
    timeout: float = 120,
    stdin: Optional[str] = None,
) -> Job:
    """Runs a command in `folder` and waits for it, at most `timeout` seconds.

    env: added to the clean environment; a value of None takes a variable out. On time-out the whole process group is
    ended and the test fails with what was printed so far.
    """
    environment = clean_environment()
    environment["XDG_STATE_HOME"] = str(folder / "state")  # no memory of earlier runs unless a test says so
    environment["OMP_NUM_THREADS"] = "1"
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["SIMGPU_REFUSALS"] = str(folder / "refusals.jsonl")
    for name, value in (env or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = str(value)
    words = [str(word) for word in command]
    started = time.monotonic()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        job = Job(words, process.returncode, out, err, time.monotonic() - started, folder)
        pytest.fail(f"timed out after {timeout} s\n{job}")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    check_reports(folder, environment)
    return Job(words, process.returncode, out, err, time.monotonic() - started, folder)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def build() -> Path:
    """The build folder."""
    path = Path(os.environ.get("BSG_BUILD", REPO / "build")).resolve()
    assert path.is_dir(), f"{path} is no build folder: run scripts/setup, or set BSG_BUILD"
    return path


@pytest.fixture(scope="session")
def library(build: Path) -> Path:
    """libbsguard.so."""
    return build / "libbsguard.so"


@pytest.fixture
def once(tmp_path_factory: pytest.TempPathFactory):
    """What is expensive to make and used by many tests: once(name, make) -> what make() returned.

    Made by the first test that asks, in whichever worker of this run that is, and kept as a pickle; all others read it, or
    wait for it. Where make() failed, those who ask later fail at once and name it.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def get(name: str, make: Callable[[], Any]) -> Any:
        kept, failed = base / f"{name}.pickle", base / f"{name}.failed"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if failed.exists():
                pytest.fail(f"{name} could not be made: {failed.read_text()} has the reason")
            if not kept.exists():
                failed.write_text(os.environ.get("PYTEST_CURRENT_TEST", "an earlier test"))
                kept.write_bytes(pickle.dumps(make()))
                failed.unlink()
        return pickle.loads(kept.read_bytes())

    return get


@pytest.fixture
def run_plain(tmp_path: Path):
    """Runs any command, without the simulated GPU: run_plain(command, env=..., timeout=..., folder=...) -> Job."""

    def run(command: Sequence[Union[str, Path]], *, folder: Optional[Path] = None, **options: Any) -> Job:
        return run_command(command, folder=folder or tmp_path, **options)

    return run


@pytest.fixture
def run_job(build: Path, library: Path, tmp_path: Path):
    """Runs a Python script on the simulated GPU.

    run_job(script, *arguments, memory="256MiB", preload=True, env=None, simgpu=(), timeout=120, name=None) -> Job

    script: a path, or the text of a script (dedented; anything with a line break). memory: size of the simulated
    device. preload: with LD_PRELOAD=libbsguard.so. env: added to the clean environment. simgpu: further options of
    scripts/simgpu ("--fail-at", "7"). name: of the folder in tmp_path that the job runs in, made up where none is
    given, so that the jobs of one test do not share one; a name used before is used again, files and all.
    """
    count = 0

    def run(
        script: Union[str, Path],
        *arguments: Union[str, Path],
        memory: str = "256MiB",
        preload: bool = True,
        env: Optional[Mapping[str, Optional[str]]] = None,
        simgpu: Sequence[Union[str, Path]] = (),
        timeout: float = 120,
        name: Optional[str] = None,
    ) -> Job:
        nonlocal count
        count += 1
        folder = tmp_path / (name or f"job{count}")
        folder.mkdir(exist_ok=True)
        if isinstance(script, str) and "\n" in script:
            path = folder / "job.py"
            path.write_text(textwrap.dedent(script))
        else:
            path = Path(script).resolve()
        variables = {"SIMGPU_BUILD": str(build / "simgpu")}
        if preload:
            variables["LD_PRELOAD"] = str(library)
        variables.update(env or {})
        command = [REPO / "scripts" / "simgpu", "--memory", memory, *simgpu, "--", sys.executable, path, *arguments]
        return run_command(command, folder=folder, env=variables, timeout=timeout)

    return run


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.fixture
def run_ranks(build: Path, library: Path, tmp_path: Path):
    """Runs a Python script as the ranks of one job, each on a simulated GPU of its own, as paddle.distributed.launch
    would start them.

    run_ranks(script, *arguments, ranks=2, memory="256MiB", preload=True, env=None, rank_env=None, simgpu=(),
    timeout=150, name=None, kill=None) -> [Job] by rank

    As run_job, and: rank_env: {rank: further environment}. kill: (rank, text): that rank gets SIGKILL as soon as it has
    printed the text. When the time is up all are ended and the test fails with what each printed: a hang is a failure.
    """
    count = 0

    def run(
        script: Union[str, Path],
        *arguments: Union[str, Path],
        ranks: int = 2,
        memory: str = "256MiB",
        preload: bool = True,
        env: Optional[Mapping[str, Optional[str]]] = None,
        rank_env: Optional[Mapping[int, Mapping[str, str]]] = None,
        simgpu: Sequence[Union[str, Path]] = (),
        timeout: float = 150,
        name: Optional[str] = None,
        kill: Optional[tuple[int, str]] = None,
    ) -> list[Job]:
        nonlocal count
        count += 1
        folder = tmp_path / (name or f"ranks{count}")
        folder.mkdir(exist_ok=True)
        path = Path(script).resolve() if not isinstance(script, str) or "\n" not in script else folder / "job.py"
        if path == folder / "job.py":
            path.write_text(textwrap.dedent(script))
        common = dict(clean_environment(), XDG_STATE_HOME=str(folder / "state"), OMP_NUM_THREADS="1")
        common.update(PYTHONDONTWRITEBYTECODE="1", SIMGPU_REFUSALS=str(folder / "refusals.jsonl"))
        common.update(SIMGPU_BUILD=str(build / "simgpu"), PADDLE_DISTRI_BACKEND="xccl")
        if preload:
            common["LD_PRELOAD"] = str(library)
        endpoints = [f"127.0.0.1:{port}" for port in free_ports(ranks + 1)]
        common.update(PADDLE_MASTER=endpoints.pop(), PADDLE_TRAINERS_NUM=str(ranks), PADDLE_XCCL_BACKEND="gpu")
        common["PADDLE_TRAINER_ENDPOINTS"] = ",".join(endpoints)
        common.update({key: value for key, value in (env or {}).items() if value is not None})
        command = [REPO / "scripts" / "simgpu", "--memory", memory, "--devices", str(ranks), *simgpu, "--"]
        command = [str(word) for word in [*command, sys.executable, "-u", path, *arguments]]
        started, processes = time.monotonic(), []
        try:
            for rank in range(ranks):
                own = {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoints[rank]}
                own.update({"FLAGS_selected_gpus": str(rank), **(rank_env or {}).get(rank, {})})
                out, err = folder / f"stdout{rank}.txt", folder / f"stderr{rank}.txt"
                with out.open("w") as stdout, err.open("w") as stderr:
                    process = subprocess.Popen(
                        command,
                        cwd=folder,
                        env={**common, **own},
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                    )
                processes.append((process, out, err))
            hung = not _wait_for(processes, started + timeout, kill)
        finally:
            for process, _, _ in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        seconds = time.monotonic() - started
        jobs = [
            Job(
                command,
                process.returncode,
                out.read_text(errors="replace"),
                err.read_text(errors="replace"),
                seconds,
                folder,
            )
            for process, out, err in processes
        ]
        if hung:
            pytest.fail(f"timed out after {timeout} s\n" + "\n".join(map(str, jobs)))
        check_reports(
            folder, {**common, **{key: value for own in (rank_env or {}).values() for key, value in own.items()}}
        )
        return jobs

    return run


def _wait_for(processes, until: float, kill: Optional[tuple[int, str]]) -> bool:
    """False where the time was up before all had ended."""
    while any(process.poll() is None for process, _, _ in processes):
        if time.monotonic() > until:
            return False
        if kill is not None and kill[1] in processes[kill[0]][1].read_text(errors="replace"):
            os.killpg(processes[kill[0]][0].pid, signal.SIGKILL)
            kill = None
        time.sleep(0.05)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever runs jobs depends on the version of Paddle. Those who share what `once` makes come last, so that they all
    begin in one worker: two would ask for it at the same time, and one wait for the other. (Tried and worse: first. They are
    more than half of all, so both workers begin with them.)"""
    old = importlib.metadata.version("paddlepaddle").startswith("2.")
    for item in items:
        if {"run_job", "run_ranks"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.paddle)
        if old and item.get_closest_marker("slow_on_26"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: "once" in getattr(item, "fixturenames", ()))
