"""Tells the demo: starts the runs one after the other, shows what each did, and compares them in a table.

summary.json beside the runs holds the figures of the table for programs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from rich import box
from rich.console import Console
from rich.table import Table

from demonstration import measure, runs
from support.environ import BUILD, VENV

TRIED_NOT = 2  # exit status


@dataclass
class Check:
    """One thing that must hold, in words and with its figures."""

    holds: bool
    text: str


def mebibytes(amount: Union[int, float, None]) -> str:
    return "unknown" if amount is None else f"{amount / 2**20:.1f} MiB"


def refuse(text: str) -> None:
    """Says in one line why there will be no demo."""
    print(f"demo: {text}", file=sys.stderr)


def make_folder(wanted: Union[Path, None]) -> Union[Path, None]:
    """An empty folder for the files of this demo; None, and one line, where it cannot be."""
    folder = wanted.absolute() if wanted else BUILD / "demo"
    try:
        if wanted is None:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"{folder} cannot be made: {error.strerror}")
        return None
    return folder


class Story:
    """The runs of one demo, in order."""

    def __init__(self, console: Console, place: Union[runs.Simulated, runs.Real], folder: Path, epochs: int) -> None:
        self.console = console
        self.place = place
        self.folder = folder
        self.options = ["--epochs", str(epochs)]

    def run(self, title: str, name: str, script: str, memory_bytes: int, guarded: bool, *options: str) -> runs.Run:
        """One run, with its title before and what came of it after."""
        self.console.print(f"\n[bold]{title}[/bold]")
        if self.console.is_terminal:
            with self.console.status("running"):
                run = self._start(name, script, memory_bytes, guarded, options)
        else:
            run = self._start(name, script, memory_bytes, guarded, options)
        self.console.print(f"$ {run.command}", style="dim", highlight=False, markup=False, soft_wrap=True)
        return run

    def _start(self, name: str, script: str, memory_bytes: int, guarded: bool, options: tuple[str, ...]) -> runs.Run:
        words = [*self.options, *options]
        return runs.start(self.place, name, self.folder / name, script, words, memory_bytes, guarded)

    def show(self, text: str, lines: int, only: str = "") -> None:
        """The last lines of an output; only: those that begin so."""
        chosen = [line for line in text.splitlines() if line.strip() and line.startswith(only)]
        for line in chosen[-lines:]:
            self.console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)

    def outcome(self, run: runs.Run) -> None:
        peak = "" if run.peak_bytes is None else f", {mebibytes(run.peak_bytes)} of device memory at most"
        self.console.print(f"  exit status {run.status} after {run.seconds:.1f} s{peak}", highlight=False)


def last_line(run: runs.Run, start: str) -> str:
    lines = [line for line in run.stdout.splitlines() if line.startswith(start)]
    return lines[-1] if lines else ""


def accuracy(run: runs.Run) -> str:
    return last_line(run, "epoch ").rpartition("accuracy ")[2] or "-"


def exception_of(run: runs.Run) -> str:
    """Name of the exception that ended a run, from the traceback that Python printed; empty where there is none."""
    for line in reversed(run.stderr.splitlines()):
        if line.startswith(("MemoryError", "OSError", "RuntimeError", "SystemError")):
            return line.split(":")[0]
    return ""


def tell(arguments: argparse.Namespace) -> int:
    """The whole demo; returns its exit status."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    name = arguments.python or ("python3" if arguments.real else str(VENV / "bin" / "python"))
    python = Path(shutil.which(name) or name).absolute()  # not resolved: a link into an environment means it
    kind = runs.Real if arguments.real else runs.Simulated
    why = kind.why_not(python)
    if why:
        refuse(f"{'--real' if arguments.real else 'the demo'} cannot be done with {python}: {why} (see --python)")
        return TRIED_NOT
    place = kind(python)
    folder = make_folder(arguments.keep)
    if folder is None:
        return TRIED_NOT

    story = Story(console, place, folder, arguments.epochs)
    enough = story.run(f"1. Enough memory ({place.device})", "1-enough", "train.py", place.enough_bytes, False)
    story.show(enough.stdout, 2)
    story.outcome(enough)
    if enough.status != 0 or not enough.peak_bytes:
        story.show(enough.stderr, 12)
        refuse(f"the job does not even run with enough memory; its output is in {enough.folder}")
        return TRIED_NOT
    little = arguments.memory or int(enough.peak_bytes * arguments.memory_fraction)
    part = f"{mebibytes(little)}, {little / enough.peak_bytes:.0%} of what the job takes"

    alone = story.run(f"2. Too little memory ({part}), unguarded", "2-unguarded", "train.py", little, False)
    story.show(alone.stderr, 1, "MemoryError")
    story.show(alone.stderr, 1, "Out of memory error")
    story.outcome(alone)
    guarded = story.run("3. Too little memory, with LD_PRELOAD alone", "3-guarded", "train.py", little, True)
    story.show(guarded.stderr, 12, "bsguard")
    story.show(guarded.stdout, 2)
    story.outcome(guarded)
    if guarded.status != 0:
        story.show(guarded.stderr, 6)
    if not measure.losses(guarded.folder) or guarded.bsguard_folder is None:
        console.print(f"\n[red]FAILED[/red] the guarded run did not finish; its files are in {guarded.folder}")
        return 1
    hand = story.run(
        "4. By hand: enough memory, with accumulation that replays what bsguard did",
        "4-by-hand",
        "by_hand.py",
        place.enough_bytes,
        False,
        "--replay",
        str(guarded.bsguard_folder / "events.jsonl"),
    )
    story.show(hand.stdout, 2)
    story.outcome(hand)
    if hand.status != 0:
        story.show(hand.stderr, 12)
        return 1
    return compare(console, enough, alone, guarded, hand, little)


def compare(console: Console, enough: runs.Run, alone: runs.Run, guarded: runs.Run, hand: runs.Run, little: int) -> int:
    """The table and the checks; returns the exit status."""
    events = measure.read_events(guarded.bsguard_folder)
    terminal, absorbed, phases = measure.ooms(events)
    gradients = {
        run.name: measure.distance(enough.folder / "gradients.npz", run.folder / "gradients.npz")
        for run in (guarded, hand)
    }
    weights = {
        run.name: measure.distance(enough.folder / "weights.npz", run.folder / "weights.npz") for run in (guarded, hand)
    }
    loss = {run.name: measure.losses(run.folder) for run in (enough, guarded, hand)}

    console.print("\n[bold]The results[/bold]")
    table = Table(box=box.ROUNDED)
    table.add_column("")
    for heading in ("enough memory", "too little, bsguard", "enough, by hand"):
        table.add_column(heading, justify="right")
    three = (enough, guarded, hand)
    table.add_row("steps", *(str(len(loss[run.name])) for run in three))
    table.add_row("final loss", *(f"{loss[run.name][-1]:.6f}" for run in three))
    table.add_row("accuracy", *(accuracy(run) for run in three))
    table.add_row("peak device memory", *(mebibytes(run.peak_bytes) for run in three))
    table.add_row("time with start-up", *(f"{run.seconds:.1f} s" for run in three))
    table.add_section()
    two = (guarded, hand)
    table.add_row("first gradients: distance", "0", *(f"{gradients[run.name].relative:.1e}" for run in two))
    table.add_row("final weights: distance", "0", *(f"{weights[run.name].relative:.1e}" for run in two))
    table.add_row("largest difference of a weight", "0", *(f"{weights[run.name].largest:.1e}" for run in two))
    console.print(table)
    console.print(
        "Distance: L2 norm of the difference to the run with enough memory over its own L2 norm.", style="dim"
    )
    console.print(f"\nout-of-memory met: {terminal} ({phases or 'none'}); absorbed by Paddle itself: {absorbed}")
    console.print("accumulation steps x micro-batch over time:")
    for line in measure.sizes_over_time(events):
        console.print(f"  {line}", soft_wrap=True)
    console.print(f"files: {enough.folder.parent}", soft_wrap=True)
    console.print(f"  of bsguard: {guarded.bsguard_folder}", soft_wrap=True)

    gradient_limit = max(measure.GRADIENT_FLOOR, 2 * gradients[hand.name].relative)
    weight_limit = max(measure.WEIGHT_FLOOR, 2 * weights[hand.name].relative)
    checks = [
        Check(
            alone.status != 0 and exception_of(alone) == "MemoryError",
            f"unguarded, the job dies of MemoryError (exit status {alone.status}, {exception_of(alone) or 'none'})",
        ),
        Check(guarded.status == 0, f"guarded, it finishes (exit status {guarded.status})"),
        Check(terminal > 0, f"and it did run out of memory on the way (out-of-memory errors: {terminal})"),
        Check(
            len(loss[guarded.name]) == len(loss[enough.name]),
            f"with the same number of steps ({len(loss[guarded.name])} of {len(loss[enough.name])})",
        ),
        Check(
            gradients[guarded.name].relative <= min(gradient_limit, measure.GRADIENT_LIMIT),
            f"first gradients agree ({gradients[guarded.name].relative:.1e}; allowed are {measure.GRADIENT_LIMIT:.0e} "
            f"and twice that of the hand-written run, {gradient_limit:.1e})",
        ),
        Check(
            weights[guarded.name].relative <= weight_limit,
            f"final weights agree ({weights[guarded.name].relative:.1e}; allowed is twice that of the hand-written "
            f"run, or {measure.WEIGHT_FLOOR:.0e}: {weight_limit:.1e})",
        ),
        Check(
            guarded.peak_bytes is not None and guarded.peak_bytes <= little,
            f"never with more memory than there was ({mebibytes(guarded.peak_bytes)} of {mebibytes(little)})",
        ),
    ]
    console.print()
    for check in checks:
        console.print("[green]ok[/green]    " if check.holds else "[red]FAILED[/red]", check.text, soft_wrap=True)
    summary = {
        "memory_bytes": little,
        "peak_bytes": {run.name: run.peak_bytes for run in three},
        "steps": {run.name: len(loss[run.name]) for run in three},
        "final_loss": {run.name: loss[run.name][-1] for run in three},
        "gradient_distance": {name: value.relative for name, value in gradients.items()},
        "weight_distance": {name: value.relative for name, value in weights.items()},
        "largest_weight_difference": {name: value.largest for name, value in weights.items()},
        "ooms": terminal,
        "absorbed": absorbed,
        "unguarded": {"status": alone.status, "exception": exception_of(alone)},
        "checks": [{"holds": check.holds, "text": check.text} for check in checks],
    }
    (enough.folder.parent / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return 0 if all(check.holds for check in checks) else 1
