"""bsguard run: the job is as it would be alone, but guarded; and started again with a size that fits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import MEMORY, REPO, arguments_of, process_environment, simulated, started, write_run

from bsguard_cli.launch import KnownGood, examine, fill, preload

SHOW = "import os; print({k: v for k, v in os.environ.items() if k.startswith(('BSGUARD', 'LD_PRELOAD'))})"


def shown(done: subprocess.CompletedProcess) -> dict[str, str]:
    assert done.returncode == 0, done
    return eval(done.stdout)


def test_the_job_gets_the_preload_and_the_options(start, library: Path) -> None:
    options = ["--observe", "--dir", "elsewhere", "--log", "quiet", "--memory-limit", "8GiB", "--arm", "never",
               "--boundary", "net:forward"]  # fmt: skip
    got = shown(start("run", *options, "--", sys.executable, "-c", SHOW, env={"BSGUARD_LOG": "debug"}))
    assert got == {
        "LD_PRELOAD": str(REPO / "build" / library.name),
        "BSGUARD": "observe",
        "BSGUARD_DIR": "elsewhere",
        "BSGUARD_LOG": "quiet",
        "BSGUARD_MEMORY_LIMIT": "8GiB",
        "BSGUARD_ARM": "never",
        "BSGUARD_BOUNDARY": "net:forward",
    }
    assert shown(start("run", sys.executable, "-c", SHOW, env={"BSGUARD_ARM": "always"}))["BSGUARD_ARM"] == "always"


@pytest.mark.parametrize(
    "present, expected",
    [
        (None, "/b/libbsguard.so"),
        ("", "/b/libbsguard.so"),
        ("/j/libjemalloc.so", "/b/libbsguard.so:/j/libjemalloc.so"),
        ("/j/a.so /j/b.so", "/b/libbsguard.so:/j/a.so:/j/b.so"),
        ("/b/libbsguard.so:/j/a.so", "/b/libbsguard.so:/j/a.so"),
        ("/x/libasan.so.8:/j/a.so", "/x/libasan.so.8:/b/libbsguard.so:/j/a.so"),
    ],
)
def test_another_preload_is_kept(present, expected: str) -> None:
    assert preload(Path("/b/libbsguard.so"), present) == expected


@pytest.mark.parametrize("restarts", [[], ["--restarts", "1"]], ids=["alone", "watched"])
def test_the_exit_status_is_that_of_the_job(start, restarts: list[str]) -> None:
    for status in (0, 1, 2, 77, 255):
        done = start("run", *restarts, "--", "sh", "-c", f"echo out; echo err >&2; exit {status}")
        assert done.returncode == status and done.stdout == "out\n" and "err\n" in done.stderr
    assert start("run", *restarts, "--", "no-such-command").returncode == 127
    assert start("run", *restarts, "--", str(Path(__file__))).returncode == 126
    killed = start("run", *restarts, "--", "sh", "-c", "kill -KILL $$")
    assert killed.returncode == -signal.SIGKILL
    assert start("run", *restarts, "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


TELLING = """
import os, signal, sys, time
def got(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())  # print() may be interrupted by another print()
    if number == signal.SIGTERM:
        sys.exit(5)
for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
    signal.signal(getattr(signal, name), got)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("restarts", [[], ["--restarts", "3"]], ids=["alone", "watched"])
def test_signals_reach_the_job_once(restarts: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        arguments_of("run", *restarts, "--", sys.executable, "-c", TELLING),
        cwd=tmp_path,
        env=process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        for name in ("SIGUSR1", "SIGHUP", "SIGINT", "SIGTERM"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"got {name}\n"
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 5 and out == "" and err == ""  # nothing is started again after a signal to end


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--"],
        ["--restarts", "-1", "--", "true"],
        ["--restarts", "many", "--", "true"],
        ["--memory-limit", "much", "--", "true"],
        ["--boundary", "net", "--", "true"],
        ["--restart-argument", "x", "--", "true"],
        ["--no-such-option", "true"],
    ],
)
def test_a_wrong_option_is_refused(bsguard, arguments: list[str]) -> None:
    assert bsguard("run", *arguments).status == 2


def test_a_job_that_dies_of_something_else_is_not_restarted(start) -> None:
    done = start("run", "--restarts", "3", "--", "sh", "-c", "echo once; exit 9")
    assert done.returncode == 9 and done.stdout == "once\n"
    assert done.stderr == "bsguard: the job ended with exit status 9; not restarted: it left no run behind\n"


def test_a_job_that_died_of_an_oom_is_restarted_with_a_size_that_fits(
    start, build: Path, job_script: Path, tmp_path
) -> None:
    restart = ["--restarts", "3", "--json"]
    job = simulated(job_script, "--centred", "--steps", "2", "--batch-size", "1024", memory=MEMORY)
    env = {"SIMGPU_BUILD": str(build / "simgpu"), "XDG_STATE_HOME": str(tmp_path)}
    done = start("run", *restart, "--", *job, env=env, timeout=250)
    assert done.returncode == 0, done
    lines = [json.loads(line)["bsguard"] for line in done.stderr.splitlines() if line.startswith('{"bsguard"')]
    assert "out of memory; restart 1 of 3 with --batch-size 512 instead of 1024" in lines[0], done
    assert lines[1].endswith("--batch-size 512"), done
    assert done.stdout.splitlines()[-1].startswith("step 1 ")
    runs = sorted((tmp_path / "bsguard").iterdir())
    assert len(runs) == len(lines) // 2 + 1


def test_the_known_good_size(tmp_path: Path) -> None:
    oom = {"verdict": "unrescued", "batch": 64, "micro_batch": 64}
    base = {"schema": "bsguard.report/1", "pid": 2**22 + 1, "totals": {"unrescued": 1}}
    steps = [{"type": "step", "step": n, "batch": 64, "micro_batch": size, "allocated_peak_bytes": size * 100 + n}
             for n, size in enumerate((16, 16, 32, 8, 64), 1)]  # fmt: skip

    def good(name: str, events: list, report: dict, **control) -> object:
        return examine([write_run(tmp_path / name, [started(), *events], report, **control)])

    assert good("a", steps, {**base, "oom": oom}).good == KnownGood(64, 32, "ran in the try before")
    assert good("b", [], {**base, "oom": oom}).good.micro_batch == 32
    fitting = {**base, "oom": oom, "fit": {"fixed_bytes": 2 << 30, "per_sample_bytes": 1 << 30}}
    assert good("c", [], fitting).good.micro_batch == 20  # (24 GiB x 0.95 - 2) / 1
    one = good("d", [], {**base, "oom": {**oom, "micro_batch": 1}})
    assert one.oom and one.good is None and "micro-batch of 1" in one.why
    nothing = good("e", [], {**base, "oom": {"verdict": "unrescued"}})
    assert nothing.oom and nothing.good is None and "not recorded" in nothing.why
    assert not good("f", steps, {**base, "totals": {"unrescued": 0}, "oom": {**oom, "verdict": "rescued"}}).oom
    assert fill(["-o", "n={micro_batch}x{accumulation_steps}"], KnownGood(65, 16, "")) == ["-o", "n=16x5"]


def test_the_size_is_asked_for_in_the_new_run(tmp_path: Path) -> None:
    from bsguard_cli.launch import Supervisor

    old = write_run(tmp_path / "20261130T183012Z-1", [started()], batch=8)
    new = write_run(tmp_path / "20261130T183013Z-2", [started()])
    asked: set[Path] = set()
    supervisor = Supervisor(["true"], {"BSGUARD_DIR": str(tmp_path)}, print)
    assert not supervisor._ask(KnownGood(8, 4, ""), {old}, asked)  # no step has begun
    (new / "control.json").write_text("{}")
    assert supervisor._ask(KnownGood(8, 4, ""), {old}, asked)
    assert json.loads((new / "request.json").read_text()) == {"schema": "bsguard.request/1", "micro_batch": 4}
    assert os.stat(new / "request.json").st_mode & 0o777 == 0o600
    assert not (old / "request.json").exists()


SLOW_JOB = """
import sys, time
exec(open(sys.argv.pop(1)).read().replace("print(", "time.sleep(0.3); print("))
"""


def test_set_asks_a_running_job(start, build: Path, job_script: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW_JOB)
    job = simulated(slow, job_script, "--steps", "200", "--batch-size", "32", memory="64MiB")
    process = subprocess.Popen(
        arguments_of("run", "--", *job),
        cwd=tmp_path,
        env=process_environment(SIMGPU_BUILD=str(build / "simgpu"), XDG_STATE_HOME=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("step 0 "), process
        done = start("set", "--micro-batch", "8", "--wait", "60", "--json", process.pid)
        assert done.returncode == 0, done
        (answer,) = json.loads(done.stdout)["answers"]
        assert (answer["obeyed"], answer["batch"], answer["micro_batch"], answer["accumulation_steps"]) == (
            True,
            32,
            8,
            4,
        )
        refused = start("set", "--micro-batch", "4", "--boundary", "Nothing", "--wait", "60", tmp_path / "bsguard")
        assert refused.returncode == 1 and "refused: " in refused.stdout, refused
        seen = start("watch", "--once", "--json")
        (watched,) = json.loads(seen.stdout)["jobs"]
        assert watched["running"] and watched["micro_batch"] == 8 and watched["held_bytes"] > 0
        looked = start("doctor", "--pid", process.pid)
        assert looked.returncode == 0 and "paddle 3" in looked.stdout, looked
    finally:
        process.kill()
        process.wait()
    time.sleep(0.1)
    late = start("set", "--micro-batch", "8", tmp_path / "bsguard")
    assert late.returncode == 1 and "the job has ended" in late.stderr
    assert not list((tmp_path / "bsguard").rglob("request.json"))
    assert start("set", "--micro-batch", "0", tmp_path / "bsguard").returncode == 2
    assert start("set", "--micro-batch", "8", 2**22 + 5).returncode == 2
