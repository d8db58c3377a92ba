"""bsguard watch: looks on while jobs run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Optional

import click

from bsguard_cli.errors import BAD, OK, Bad, BadInput
from bsguard_cli.screen import json_option

RECENT = 6  # decisions and OOMs that are shown of a job
BAR = 40  # cells


@click.command("watch")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
    help="Time between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once and end.")
@json_option
def command(runs: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Show jobs while they run: memory against capacity, micro-batch, decisions.

    RUN is as above; several may be given. Left out, all jobs below BSGUARD_DIR that are running are shown, and those
    that start later. Ends at Ctrl-C, or when all the RUNs that were named have ended. With --json one line is printed
    at each look.

    Exit status: 0; 1 where --once finds no job.
    """
    if once:
        _show_once(runs, as_json)
        return
    try:
        if as_json:
            _print_lines(runs, interval)
        else:
            _live(runs, interval)
    except KeyboardInterrupt:
        pass


class _Watched:
    """A run, read again only where a file of it changed, and its events only from where they were read to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: Any = None
        self.run: Any = None
        self.processes: dict[Path, Any] = {}

    def _one(self, folder: Path, number: Optional[int]):
        from bsguard_cli.runs import Followed

        if folder not in self.processes:
            self.processes[folder] = Followed(folder, number)
        return self.processes[folder].read()

    def look(self):
        from bsguard_cli.runs import FILES, load

        files = [path for name in FILES for path in (self.folder / name, *self.folder.glob(f"rank*/{name}"))]
        now = []
        for path in files:
            try:
                state = path.lstat()
            except OSError:
                continue
            now.append((path, state.st_ino, state.st_mtime_ns, state.st_size))
        if now != self.seen or self.run is None:
            self.run, self.seen = load(self.folder, self._one), now
        return self.run


class _Jobs:
    """The jobs that are watched."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        from bsguard_cli.runs import find

        self.named = [_Watched(find(argument)) for argument in arguments]
        self.found: dict[Path, _Watched] = {}

    def look(self) -> list[Any]:
        from bsguard_cli.runs import parent_folder, runs_below

        if self.named:
            return [watched.look() for watched in self.named]
        shown = []
        for folder in runs_below(parent_folder()):
            watched = self.found.setdefault(folder, _Watched(folder))
            try:
                run = watched.look()
            except BadInput:
                continue  # one that has only just begun; a damaged one is told where it is named
            if any(rank.alive for rank in run.ranks):
                shown.append(run)
        return shown

    def ended(self, runs: list[Any]) -> bool:
        return bool(self.named) and not any(rank.alive for run in runs for rank in run.ranks)


def _values(runs: list[Any]) -> dict[str, Any]:
    from bsguard_cli.summary import verdict

    ranks = []
    for run in runs:
        for rank in run.ranks:
            batch, micro_batch, steps = rank.split
            held, last = _held(rank), _last_step(rank)
            ranks.append(
                {
                    "run": str(run.folder),
                    "rank": rank.number,
                    "pid": rank.pid,
                    "running": rank.alive,
                    "verdict": verdict(rank)[0],
                    "step": last,
                    "held_bytes": held,
                    "peak_bytes": rank.peak,
                    "capacity_bytes": rank.capacity,
                    "batch": batch,
                    "micro_batch": micro_batch,
                    "accumulation_steps": steps,
                    "ooms": rank.ooms,
                }
            )
    return {"schema": "bsguard.watch/1", "jobs": ranks}


def _held(rank) -> Optional[int]:
    """The latest that is known of the bytes at the driver: the peak of the last step, or a mark after it."""
    for event in reversed(rank.events("mark", "step", "oom")):
        count = event.peak_bytes if event.type == "step" else event.live_bytes
        if count is not None:
            return count
    return None


def _last_step(rank) -> Optional[int]:
    steps = [event.step for event in rank.kept.get("step", ()) if event.step]
    return steps[-1] if steps else None


def _picture(runs: list[Any]):
    from rich.console import Group
    from rich.text import Text

    from bsguard_cli.summary import narrowest_line
    from bsguard_cli.words import clean

    if not runs:
        return Text("no job of bsguard is running here; waiting for one (Ctrl-C ends)")
    parts = []
    for run in runs:
        parts.append(Text(clean(run.name), style="bold"))
        for rank in run.ranks:
            parts += _of_rank(rank)
        narrowest = narrowest_line(run)
        if narrowest:
            parts.append(Text(f"  {clean(narrowest)}"))
    return Group(*parts)


def _of_rank(rank) -> list[Any]:
    from rich.text import Text

    from bsguard_cli.summary import verdict
    from bsguard_cli.words import clean, of_batch, seconds, size, split

    held, peak, capacity = _held(rank), rank.peak, rank.capacity
    bar = Text("  ")
    if held is not None and capacity:
        now = min(BAR, round(BAR * held / capacity))
        most = min(BAR, round(BAR * (peak or held) / capacity))
        colour = "red" if held > 0.95 * capacity else "yellow" if held > 0.85 * capacity else "green"
        bar.append("█" * now, style=colour)
        bar.append("▒" * max(0, most - now), style=colour)
        bar.append("·" * (BAR - max(now, most)), style="dim")
        bar.append(f" {size(held)} of {size(capacity)} ({held / capacity:.0%}), at most {size(peak)}")
    else:
        bar.append("memory not recorded yet")
    word, line = verdict(rank)
    style = {"unrescued": "red", "open": "red", "rescued": "yellow"}.get(word, "green")
    head = f"{rank.name}: " if rank.name else ""
    parts = [
        Text.assemble("  ", head, (clean(line), style)),
        bar,
        Text(f"  step {_last_step(rank) or '-'} after {seconds(rank.seconds)}, {clean(of_batch(*rank.split))}"),
    ]
    for event in rank.events("decision", "oom", "refused", "disarmed", "request")[-RECENT:]:
        what = f"OOM in {event.phase}" if event.type == "oom" else event.reason or event.type
        sizes = (
            f" {split(event.batch, event.micro_batch, event.accumulation_steps)}" if event.type == "decision" else ""
        )
        why = f": {event.why}" if event.why else ""
        parts.append(Text(clean(f"    {event.time[11:19]} {what}{sizes}{why}", 200), style="dim", overflow="ellipsis"))
    return parts


def _show_once(arguments: tuple[str, ...], as_json: bool) -> None:
    runs = _Jobs(arguments).look()
    if as_json:
        click.echo(json.dumps(_values(runs)))
        raise SystemExit(OK if runs else BAD)
    if not runs:
        from bsguard_cli.runs import parent_folder

        raise Bad(f"no run is going on at {parent_folder()}: name a RUN, or set BSGUARD_DIR to where the runs are")
    from bsguard_cli.screen import console

    console().print(_picture(runs))


def _print_lines(arguments: tuple[str, ...], interval: float) -> None:
    jobs = _Jobs(arguments)
    while True:
        runs = jobs.look()
        click.echo(json.dumps(_values(runs)))
        if jobs.ended(runs):
            return
        time.sleep(interval)


def _live(arguments: tuple[str, ...], interval: float) -> None:
    from rich.live import Live

    from bsguard_cli.screen import console

    jobs = _Jobs(arguments)
    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            runs = jobs.look()
            live.update(_picture(runs), refresh=True)
            if jobs.ended(runs):
                return
            time.sleep(interval)
