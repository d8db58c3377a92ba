"""bsguard set: asks a running job for another micro-batch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Optional

import click

from bsguard_cli.errors import BAD, OK, Bad, BadInput
from bsguard_cli.screen import json_option, print_json

POLL = 0.1  # seconds


@click.command("set")
@click.option("--micro-batch", type=click.IntRange(1, 2**63 - 1), metavar="N", required=True,
    help="Samples of one forward and backward, at most.")  # fmt: skip
@click.option("--device", type=click.IntRange(0, 63), metavar="N", help="Only on this device.")
@click.option("--boundary", metavar="NAME", help="Only for this network, as control.json names it.")
@click.option("--wait", type=click.FloatRange(0, 3600), default=10.0, show_default=True, metavar="SECONDS",
    help="Wait so long for the answer, which comes at the end of a step.")  # fmt: skip
@click.argument("job")
@json_option
def command(
    micro_batch: int, device: Optional[int], boundary: Optional[str], wait: float, job: str, as_json: bool
) -> None:
    """Ask JOB, a run folder or the pid of a job, to run its batches in pieces of N samples.

    All ranks are asked. The batch, and so the learning rate, stays what it is.

    Exit status: 0 where the request is obeyed, or waits for the end of a step; 1 where it is refused or the job has
    ended; 2 where JOB is no job of bsguard.
    """
    from bsguard_cli.reading import read_control
    from bsguard_cli.runs import load
    from bsguard_cli.writing import write_atomically

    run = load(_folder(job))
    ranks = [rank for rank in run.ranks if rank.alive]
    if not ranks:
        raise Bad(f"{run.folder}: the job has ended")
    request: dict[str, Any] = {"schema": "bsguard.request/1", "micro_batch": micro_batch}
    if device is not None:
        request["device"] = device
    if boundary is not None:
        request["boundary"] = boundary
    data = (json.dumps(request) + "\n").encode()
    before = {rank.folder: rank.total("request") for rank in ranks}
    for rank in ranks:
        write_atomically(rank.folder / "request.json", data, mode=0o600, follow=False)
    answers = _answers(before, wait)
    controls = {folder: read_control(folder) for folder in before}
    lines = []
    for rank in ranks:
        answer, control = answers.get(rank.folder), controls[rank.folder]
        lines.append(
            {
                "rank": rank.number,
                "folder": str(rank.folder),
                "obeyed": answer.obeyed if answer else None,
                "why": answer.why if answer else None,
                "batch": control.batch if control else None,
                "micro_batch": control.micro_batch if control else None,
                "accumulation_steps": control.accumulation_steps if control else None,
            }
        )
    if as_json:
        print_json({"schema": "bsguard.set/1", "request": request, "answers": lines})
    else:
        _print(lines, wait)
    raise SystemExit(BAD if any(line["obeyed"] is False for line in lines) else OK)


def _folder(job: str) -> Path:
    """The run that JOB means."""
    from bsguard_cli.runs import find, folder_of_pid, parent_folder

    if not (job.isascii() and job.isdigit()) or Path(job).is_dir():
        return find(job)
    pid = int(job[:12])
    parents = [parent_folder()]
    theirs = _parent_of_process(pid)
    if theirs is not None:
        parents.insert(0, theirs)
    found = folder_of_pid(pid, parents)
    if found is None:
        looked = " and ".join(str(parent) for parent in parents)
        raise BadInput(f"process {pid} has no run in {looked}: is it a job of bsguard, and has it used the GPU yet?")
    return found


def _parent_of_process(pid: int) -> Optional[Path]:
    """Where a running process puts its runs; None where that cannot be seen."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        cwd = Path(f"/proc/{pid}/cwd").resolve()
    except OSError:
        return None
    named = [entry[12:] for entry in environment if entry.startswith(b"BSGUARD_DIR=") and entry[12:]]
    return cwd / (named[0].decode("utf-8", "surrogateescape") if named else "bsguard")


def _answers(before: dict[Path, int], wait: float) -> dict[Path, Any]:
    """The new `request` event of each folder, as far as they come within `wait` seconds."""
    from bsguard_cli.reading import read_events

    answers: dict[Path, Any] = {}
    until = time.monotonic() + wait
    while True:
        for folder, count in before.items():
            if folder not in answers and not (folder / "request.json").exists():
                events = [event for event in read_events(folder, []) if event.type == "request"]
                if len(events) > count:
                    answers[folder] = events[-1]
        if len(answers) == len(before) or time.monotonic() >= until:
            return answers
        time.sleep(POLL)


def _print(lines: list[dict[str, Any]], wait: float) -> None:
    from bsguard_cli.screen import say
    from bsguard_cli.words import of_batch

    for line in lines:
        name = "" if line["rank"] is None else f"rank {line['rank']}: "
        if line["obeyed"] is None:
            say(f"{name}asked; no answer within {wait:g} s: it comes at the end of a step, in {line['folder']}")
        elif line["obeyed"]:
            say(f"{name}obeyed: {of_batch(line['batch'], line['micro_batch'], line['accumulation_steps'])}")
        else:
            say(f"{name}refused: {line['why']}", style="red")
