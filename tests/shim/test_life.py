"""How processes begin, multiply and end, and what goes wrong around them: each ends as it would have without us."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

MIB = 1 << 20
WAYS = ["vfork", "spawn", "threads", "exit", "atexit", "quick", "abort", "signal", "close"]


def same(plain, guarded) -> None:
    assert (plain.returncode, plain.stdout) == (guarded.returncode, guarded.stdout), guarded


@pytest.mark.parametrize("way", WAYS)
def test_way_of_life(program, way: str) -> None:
    plain = program("life", way, preload=False)
    guarded = program("life", way)
    same(plain, guarded)
    assert "held" in plain.stdout and guarded.stderr == plain.stderr == ""
    events = guarded.events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    ends = [event["type"] for event in events].count("stop")
    if way == "signal":  # from within a driver call there is no last word: it would wait for what it interrupted
        assert ends <= 1, events
    else:
        assert ends == (0 if way in ("quick", "abort") else 1), events


@pytest.mark.parametrize("delay", [random.Random(17 * n).uniform(0, 0.2) for n in range(8)], ids=range(8))
def test_killed_while_it_writes(program, build: Path, library: Path, tmp_path: Path, delay: float) -> None:
    """What is on the disk can be read: whole lines, but for the last one at most; control.json whole or not there."""
    env = dict(
        os.environ, LD_PRELOAD=str(library), LD_LIBRARY_PATH=str(build / "simgpu" / "lib"), SIMGPU_MEMORY="128MiB"
    )
    command = [build / "tests" / "shim" / "life", "marks"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout.readline() == b"held\n" and job.stdout.readline() == b"ready\n"
        time.sleep(delay)
        job.send_signal(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
    run = next(path for path in (tmp_path / "bsguard").iterdir() if path.is_dir() and not path.is_symlink())
    lines = (run / "events.jsonl").read_text().split("\n")
    events = [json.loads(line) for line in lines[:-1]]
    assert events[0]["type"] == "start"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    if (run / "control.json").exists():
        json.loads((run / "control.json").read_text())


def test_64_at_once(build: Path, library: Path, tmp_path: Path) -> None:
    """One folder of runs for all: each process gets one of its own, and nobody waits for anybody."""
    env = dict(
        os.environ, LD_PRELOAD=str(library), LD_LIBRARY_PATH=str(build / "simgpu" / "lib"), SIMGPU_MEMORY="16MiB"
    )
    command = [build / "tests" / "shim" / "job", f"alloc={MIB}", f"alloc={32 * MIB}", "free", f"alloc={MIB}", "exit=5"]
    started = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    jobs = [subprocess.Popen(command, cwd=tmp_path, env=env, **pipes) for _ in range(64)]
    printed = [job.communicate(timeout=60)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [5] * 64
    assert all(b"alloc 2\n" in text for text in printed)
    assert time.monotonic() - started < 60
    runs = [path for path in (tmp_path / "bsguard").iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(runs) == 64
    pids = set()
    for run in runs:
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        assert events[0]["type"] == "start" and events[-1]["type"] == "stop"
        pids.add(events[0]["pid"])
    assert pids == {job.pid for job in jobs}


FAULTS = {
    "no descriptor left": {"FAIL_OPEN": errno.EMFILE},
    "not permitted to open": {"FAIL_OPEN": errno.EPERM},
    "no such call": {"FAIL_OPEN": errno.ENOSYS},
    "read-only disk": {"FAIL_MKDIR": errno.EROFS, "FAIL_OPEN": errno.EROFS},
    "no folder": {"FAIL_MKDIR": errno.EACCES},
    "full disk": {"FAIL_WRITE": errno.ENOSPC},
    "disk that fills": {"FAIL_WRITE": errno.ENOSPC, "FAIL_AFTER": 900},
    "broken disk": {"FAIL_WRITE": errno.EIO, "FAIL_AFTER": 400},
}


@pytest.mark.parametrize("order", ["after us", "before us"])
@pytest.mark.parametrize("fault", FAULTS)
def test_files_fail(program, build: Path, library: Path, fault: str, order: str) -> None:
    """The job goes on without files, and one line says so."""
    failing = build / "tests" / "shim" / "libfailing.so"
    both = [library, failing] if order == "after us" else [failing, library]
    variables = {name: str(value) for name, value in FAULTS[fault].items()}
    variables |= {"SIMGPU_MEMORY": "64MiB"}
    words = ["attach", *[f"alloc={4 * MIB}"] * 4, f"alloc={512 * MIB}", "step", "free", "info", "step", "exit=6"]
    plain = program("job", *words[1:6], "free", "info", "exit=6", preload=False, env=variables)
    guarded = program("job", *words, env={**variables, "LD_PRELOAD": ":".join(map(str, both))})
    kept = [line for line in guarded.stdout.splitlines() if line.split()[0] not in ("attach", "step")]
    assert (guarded.returncode, kept) == (plain.returncode, plain.stdout.splitlines()), guarded
    said = [line for line in guarded.lines_of_bsguard if "goes on without its files" in line]
    assert len(said) == 1, guarded
    assert f"errno {next(iter(FAULTS[fault].values()))}" in said[0], guarded


@pytest.mark.parametrize("order", ["after us", "before us"])
def test_neighbour(program, build: Path, library: Path, order: str) -> None:
    """A second preload that wraps malloc() and the driver's calls itself: both see each call once."""
    neighbour = build / "tests" / "shim" / "libneighbour.so"
    both = [library, neighbour] if order == "after us" else [neighbour, library]
    driver = build / "simgpu" / "lib" / "libcuda.so.1"
    plain = program("linked", preload=False, env={"LD_PRELOAD": str(neighbour)})
    guarded = program("linked", env={"LD_PRELOAD": ":".join(map(str, both))})
    assert plain.returncode == guarded.returncode == 0, guarded
    assert guarded.result["seen"] == guarded.result["driver"] == 3 * MIB and guarded.result["left"] == 0
    line = "neighbour: mallocs, 1 allocs, 1 frees"
    assert line in plain.stderr and line in guarded.stderr, guarded
    # What looks the driver up by its handle goes past the neighbour, with us as without.
    plain = program("life", "vfork", preload=False, env={"LD_PRELOAD": str(neighbour)})
    guarded = program("life", "vfork", env={"LD_PRELOAD": ":".join([*map(str, both), str(driver)])})
    same(plain, guarded)


def test_nothing_but_a_shell(run_plain, build: Path, library: Path) -> None:
    """The neighbour's first malloc() calls our dlsym(), before any constructor."""
    neighbour = build / "tests" / "shim" / "libneighbour.so"
    for both in ([library, neighbour], [neighbour, library]):
        job = run_plain(["bash", "-c", "echo $((1 + 1)) | cat"], env={"LD_PRELOAD": ":".join(map(str, both))})
        assert job.stdout == "2\n" and job.returncode == 0 and job.runs == [], job
        assert "neighbour: " in job.stderr and "cannot be preloaded" not in job.stderr, job


def test_report_while_a_constructor_asks_for_memory(program, build: Path) -> None:
    """The report names code without the loader's lock, which the other thread holds while it waits for us."""
    loaded = build / "tests" / "shim" / "libloaded.so"
    job = program("loading", loaded, env={"SIMGPU_MEMORY": "64MiB", "BSGUARD_LOG": "quiet"}, timeout=60)
    assert job.returncode == 0 and int(job.stdout) == 20, job
    report = (job.run / "report.txt").read_text()
    assert "loading" in report, report
