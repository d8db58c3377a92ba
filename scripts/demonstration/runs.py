"""Starts the runs of the demo, on the simulated GPU or on a real one, and says what came of each.

A run gets a folder and a clean environment of its own. Nothing of bsguard is in the job's command: only LD_PRELOAD is.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from demonstration.measure import read_events
from support.environ import BUILD, REPO, job_environment

HERE = Path(__file__).resolve().parent
LIBRARY = BUILD / "libbsguard.so"
TIMEOUT = 900  # seconds; a run takes about ten
_STATS = re.compile(r"^simgpu: pid \d+ device 0: .*\bpeak (\d+) of \d+ bytes", re.MULTILINE)


@dataclass
class Run:
    """A run that has ended.

    command: what a reader could type in the repository to do the same; command.txt has it to the letter.
    peak_bytes: high-water mark of the device's memory, None where nobody measured it.
    """

    name: str
    folder: Path
    command: str
    status: int
    seconds: float
    peak_bytes: Optional[int]

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout.txt").read_text(errors="replace")

    @property
    def bsguard_folder(self) -> Optional[Path]:
        """The folder that bsguard left of this run."""
        found = sorted(path for path in (self.folder / "bsguard").glob("*") if path.is_dir())
        return found[-1] if found else None


def why_not(python: Path, check: str) -> Optional[str]:
    """The last line of what a Python says when it runs `check` and fails; None where it does not fail."""
    try:
        done = subprocess.run(
            [str(python), "-c", check], env=job_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        return error.strerror
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


class Simulated:
    """Runs on the simulated GPU: real Paddle, real numbers, device memory of any size."""

    enough_bytes = 2**30
    device = "simulated GPU"
    job_options: tuple[str, ...] = ()

    @staticmethod
    def why_not(python: Path) -> Optional[str]:
        """Why this Python cannot run the job; None where it can."""
        find = "import importlib.util as u\nassert u.find_spec({0!r}), 'it has no {0}'\n"
        return why_not(python, find.format("paddle") + find.format("sklearn"))

    def __init__(self, python: Path) -> None:
        self.python = python

    def command(self, memory_bytes: int, guarded: bool) -> tuple[list[str], dict[str, str]]:
        """What comes before the script, and the variables, for a device of so many bytes."""
        simgpu = [str(REPO / "scripts" / "simgpu"), "--memory", str(memory_bytes), "--stats", "--", str(self.python)]
        return simgpu, {"LD_PRELOAD": str(LIBRARY)} if guarded else {}

    def peak_bytes(self, run: Run) -> Optional[int]:
        peaks = [int(found) for found in _STATS.findall(run.stderr)]
        return max(peaks) if peaks else None


class Real:
    """Runs on a real NVIDIA GPU, made smaller by BSGUARD_MEMORY_LIMIT.

    The limit is kept by libbsguard, so the unguarded runs have it loaded too, with BSGUARD=observe: it then counts and
    limits but never touches the framework.
    """

    enough_bytes = 0  # all that the device has
    device = "real GPU"
    job_options = ("--batch-size", "512", "--width", "96")

    @staticmethod
    def why_not(python: Path) -> Optional[str]:
        """Why this Python cannot train on a real GPU; None where it can."""
        check = (
            "import sklearn, paddle\n"
            "assert paddle.is_compiled_with_cuda(), 'its Paddle has no CUDA'\n"
            "assert paddle.device.cuda.device_count() > 0, 'there is no NVIDIA GPU'\n"
        )
        return why_not(python, check)

    def __init__(self, python: Path) -> None:
        self.python = python

    def command(self, memory_bytes: int, guarded: bool) -> tuple[list[str], dict[str, str]]:
        variables = {"LD_PRELOAD": str(LIBRARY), "FLAGS_cudnn_deterministic": "1"}
        if not guarded:
            variables["BSGUARD"] = "observe"
        if memory_bytes:
            variables["BSGUARD_MEMORY_LIMIT"] = str(memory_bytes)
        return [str(self.python)], variables

    def peak_bytes(self, run: Run) -> Optional[int]:
        stops = [event for event in read_events(run.bsguard_folder) if event["type"] == "stop"]
        return stops[-1]["peak_bytes"] if stops else None


def as_typed(words: list[str], variables: dict[str, str]) -> str:
    """A command with its variables, as one types it in a shell."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words)])


def start(
    place: Union[Simulated, Real],
    name: str,
    folder: Path,
    script: str,
    options: list[str],
    memory_bytes: int,
    guarded: bool,
) -> Run:
    """Runs a script of this folder to its end, at most TIMEOUT seconds."""
    folder.mkdir(parents=True)
    before, variables = place.command(memory_bytes, guarded)
    job = [*before, str(HERE / script), *place.job_options, *options]
    words = [*job, "--save", "weights.npz", "--save-gradients", "gradients.npz", "--log", "losses.txt"]
    environment = {**job_environment(), "XDG_STATE_HOME": str(folder / "state"), **variables}
    (folder / "command.txt").write_text(f"cd {shlex.quote(str(folder))} && {as_typed(words, variables)}\n")
    started = time.monotonic()
    with open(folder / "stdout.txt", "wb") as out, open(folder / "stderr.txt", "wb") as err:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait(timeout=TIMEOUT)
        except BaseException as error:
            os.killpg(process.pid, 9)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = process.returncode
            err.write(f"demo: ended after {TIMEOUT} s\n".encode())
    shown = as_typed(job, variables).replace(f"{REPO}/", "")
    run = Run(name, folder, shown, status, time.monotonic() - started, None)
    run.peak_bytes = place.peak_bytes(run)
    return run
