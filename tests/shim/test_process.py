"""A process that uses the driver: options, limit, fork, its files, and what it says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

MIB = 1 << 20


def test_nothing_before_the_first_allocation(program) -> None:
    job = program("job", "info", "option=BSGUARD")
    assert job.returncode == 0 and job.stderr == "", job
    assert job.runs == [] and not (job.folder / "bsguard").exists()


def test_run_folder_at_the_first_allocation(program) -> None:
    job = program("job", f"alloc={MIB}", "exit=4")
    assert job.returncode == 4 and job.stderr == "", job
    kinds = [event["type"] for event in job.events]
    assert kinds[0] == "start" and kinds[-1] == "stop" and "mark" in kinds, job.events
    start = job.events[0]
    assert start["command"] == "job" and start["mode"] == "guard"
    assert start["devices"][0]["total_bytes"] == 1 << 30


def test_high_water_marks(program) -> None:
    """A mark at each rise of 1 % of the capacity, but of 2 MiB at least, and at a step; with a site."""
    words = [f"alloc={MIB}"] * 6 + ["free"] * 6 + ["attach", f"alloc={20 * MIB}", f"alloc={MIB}", "step"]
    job = program("job", *words, env={"SIMGPU_MEMORY": "64MiB"})
    assert job.returncode == 0, job
    marks = [(mark["live_bytes"] // MIB, mark["peak_bytes"] // MIB, mark["step"]) for mark in job.events_of("mark")]
    assert marks == [(1, 1, None), (3, 3, None), (5, 5, None), (20, 20, 1), (21, 21, 1)]
    assert all(mark["site"] > 0 for mark in job.events_of("mark") if mark["request_bytes"])


def test_refusal_reaches_the_log(program) -> None:
    words = [f"alloc={10 * MIB}", f"alloc={10 * MIB}", "free", f"alloc={10 * MIB}"]
    job = program("job", *words, env={"SIMGPU_MEMORY": "16MiB"})
    assert job.stdout.split("\n")[:4] == ["alloc 0", "alloc 2", "free 0", "alloc 0"], job
    absorbed = job.events_of("absorbed", "oom")
    assert len(absorbed) == 1 and absorbed[0]["api"] == "cuMemAlloc_v2", job.events
    assert absorbed[0]["request_bytes"] == 10 * MIB


@pytest.mark.parametrize("text", ["9437184", "9MiB", "9 MiB", "9mib"])
def test_memory_limit(program, text: str) -> None:
    words = [f"alloc={8 * MIB}", "info", f"alloc={2 * MIB}", f"alloc={MIB}", "info", "free", "free", "info"]
    job = program("job", *words, env={"BSGUARD_MEMORY_LIMIT": text})
    assert job.returncode == 0, job
    assert job.stdout.splitlines() == [
        "alloc 0", f"info {MIB} {9 * MIB}", "alloc 2", "alloc 0", f"info 0 {9 * MIB}", "free 0", "free 0",
        f"info {9 * MIB} {9 * MIB}",
    ]  # fmt: skip
    assert job.events[0]["devices"][0]["total_bytes"] == 9 * MIB


def test_memory_limit_above_the_card(program) -> None:
    job = program(
        "job", f"alloc={8 * MIB}", "info", f"alloc={9 * MIB}",
        env={"BSGUARD_MEMORY_LIMIT": "1GiB", "SIMGPU_MEMORY": "16MiB"},
    )  # fmt: skip
    assert job.stdout.splitlines() == ["alloc 0", f"info {8 * MIB} {16 * MIB}", "alloc 2"], job


@pytest.mark.parametrize(
    ("name", "value", "allowed", "used"),
    [
        ("BSGUARD", "yes", "0|observe|1", "1"),
        ("BSGUARD_LOG", "loud", "quiet|normal|debug", "normal"),
        ("BSGUARD_ARM", "ALWAYS", "auto|always|never", "auto"),
        ("BSGUARD_KEEP", "all", "auto|always|never", "auto"),
        ("BSGUARD_WAIT", "601", "an integer from 0 to 600", "3"),
        ("BSGUARD_WAIT", "1.5", "an integer from 0 to 600", "3"),
        ("BSGUARD_WAIT", "99999999999999999999", "an integer from 0 to 600", "3"),
        ("BSGUARD_MEMORY_LIMIT", "8 gigs", "KiB, MiB or GiB", "0"),
        ("BSGUARD_MEMORY_LIMIT", "-1", "KiB, MiB or GiB", "0"),
        ("BSGUARD_MEMORY_LIMIT", "99999999999GiB", "KiB, MiB or GiB", "0"),
        ("BSGUARD_MEMORY_LIMIT", "1.5GiB", "KiB, MiB or GiB", "0"),
    ],
)
def test_wrong_option(program, name: str, value: str, allowed: str, used: str) -> None:
    """One line that names the variable, the value and what is allowed; the default holds."""
    job = program("job", f"option={name}", f"alloc={MIB}", env={name: value})
    assert job.returncode == 0, job
    assert job.stdout.splitlines()[0] == f"option {used}"
    assert len(job.stderr.splitlines()) == 1, job
    for part in ("bsguard: ", name, value, allowed):
        assert part in job.stderr


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("BSGUARD", None, "1"),
        ("BSGUARD", "observe", "observe"),
        ("BSGUARD", "", "1"),
        ("BSGUARD_DIR", None, "./bsguard"),
        ("BSGUARD_MEMORY_LIMIT", "2KB", "2000"),
        ("BSGUARD_MEMORY_LIMIT", "3GiB", str(3 << 30)),
        ("BSGUARD_WAIT", "007", "7"),
    ],
)
def test_option(program, name: str, value: str, text: str) -> None:
    job = program("job", f"option={name}", env={name: value})
    assert job.stdout.splitlines() == [f"option {text}"] and job.stderr == "", job


def test_unknown_option(program) -> None:
    """A misspelt one would do nothing, in silence."""
    job = program("job", "option=BSGUARD_UNKNOWN", env={"BSGUARD_UNKNOWN": "1"})
    assert job.stdout.splitlines() == ["option (null)"]
    assert job.stderr == "bsguard: BSGUARD_UNKNOWN is no option of bsguard; bsguard doctor names those that there are\n"


def test_wrong_option_is_not_said_to_a_shell(run_plain, library: Path) -> None:
    job = run_plain(["sh", "-c", "true"], env={"LD_PRELOAD": str(library), "BSGUARD_LOG": "loud"})
    assert job.stderr == ""


def test_quiet(program) -> None:
    job = program("job", f"alloc={MIB}", env={"BSGUARD_LOG": "quiet", "BSGUARD_ARM": "wrong"})
    assert job.returncode == 0 and job.stderr == "", job


def test_manual(run_plain, build: Path) -> None:
    job = run_plain([build / "bsguard-options"])
    for name in ("BSGUARD", "BSGUARD_DIR", "BSGUARD_LOG", "BSGUARD_MEMORY_LIMIT", "BSGUARD_ARM"):
        assert f"\n{name} (" in "\n" + job.stdout
    assert job.returncode == 0


def test_directory_of_the_start(program, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    job = program("job", f"alloc={MIB}", env={"BSGUARD_DIR": "elsewhere"})
    assert job.returncode == 0 and len(list((tmp_path / "elsewhere").iterdir())) >= 1, job


def test_fork_while_another_thread_allocates(program) -> None:
    job = program("forking", env={"SIMGPU_MEMORY": "128MiB"}, timeout=180)
    assert job.returncode == 0, job
    # One run folder, the parent's; children neither wrote nor said anything.
    events = job.events
    assert {event["pid"] for event in events if "pid" in event} == {events[0]["pid"]}
    assert [event["type"] for event in events].count("stop") == 1
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def run_with(descriptors: str, build: Path, library: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The test program under a shell that has changed its descriptors."""
    env = dict(os.environ, LD_LIBRARY_PATH=str(build / "simgpu" / "lib"), BSGUARD_ARM="wrong", PRELOAD=str(library))
    program = build / "tests" / "shim" / "job"
    command = f'LD_PRELOAD="$PRELOAD" "{program}" {" ".join(words)} {descriptors}'
    return subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_stderr_closed_from_the_start(build: Path, library: Path, tmp_path: Path) -> None:
    """Descriptor 2 may be the user's file by now: the next open() gets it."""
    done = run_with("2>&-", build, library, tmp_path, f"alloc={MIB}", "exit=6")
    assert done.returncode == 6 and done.stdout == "alloc 0\n"
    for path in (tmp_path / "bsguard").rglob("*"):
        assert not path.is_file() or "bsguard: " not in path.read_text()


def test_stderr_closed_later(program) -> None:
    job = program("job", "close2", f"alloc={MIB}", "exit=6")
    assert job.returncode == 6, job


def test_stderr_is_a_pipe_that_nobody_reads(build: Path, library: Path, tmp_path: Path) -> None:
    """SIGPIPE would end the job."""
    done = run_with("2> >(exec true); echo status $?", build, library, tmp_path, f"alloc={MIB}", "exit=6")
    assert "status 6" in done.stdout, done


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory(program, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        job = program("job", f"alloc={MIB}", "exit=6")
    finally:
        tmp_path.chmod(0o755)
    assert job.returncode == 6 and len(job.lines_of_bsguard) == 1, job


@pytest.mark.parametrize("directory", ["/proc/none", "/dev/null/x"])
def test_directory_that_cannot_be_made(program, directory: str) -> None:
    """The job goes on, and one line says that there will be no files."""
    words = [f"alloc={MIB}", f"alloc={4096 * MIB}", "free", f"alloc={MIB}", "exit=6"]
    job = program("job", *words, env={"BSGUARD_DIR": directory})
    assert job.returncode == 6, job
    assert len([line for line in job.lines_of_bsguard if directory in line]) == 1, job


def test_paddle_without_the_framework_half(program, build: Path) -> None:
    """Said once, at the first refused call, and only in a process of Paddle where no adapter has attached."""
    words = [f"alloc={32 * MIB}", f"alloc={32 * MIB}"]
    paddle = f"load={build / 'tests' / 'shim' / 'namesake' / 'libpaddle.so'}"

    def said(job) -> int:
        assert job.returncode == 0, job
        return sum("framework half not loaded; recording only" in line for line in job.lines_of_bsguard)

    assert said(program("job", paddle, *words, env={"SIMGPU_MEMORY": "16MiB"})) == 1
    assert said(program("job", paddle, "attach", *words, env={"SIMGPU_MEMORY": "16MiB"})) == 0
    assert said(program("job", *words, env={"SIMGPU_MEMORY": "16MiB"})) == 0
    assert said(program("job", paddle, f"alloc={MIB}")) == 0
