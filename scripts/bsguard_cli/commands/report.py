"""bsguard report: what became of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import click

from bsguard_cli.errors import BAD, OK, BadInput
from bsguard_cli.screen import json_option, print_json, run_argument

MOST_LINES = 12  # of a table; the rest is counted


@click.command("report")
@run_argument
@click.option("--html", metavar="FILE", help="Write it as one page, complete in itself, for a browser or a phone.")
@click.option("--text", is_flag=True, help="Print report.txt as the job wrote it.")
@json_option
def command(run: Optional[str], html: Optional[str], text: bool, as_json: bool) -> None:
    """Say what became of RUN: who held the memory, what was decided, what would help.

    Exit status: 0; 1 where an out-of-memory error could not be helped; 2 for a RUN that cannot be read.
    """
    from bsguard_cli.runs import find, load
    from bsguard_cli.summary import is_bad, of_run

    if sum([html is not None, text, as_json]) > 1 and not (html is not None and as_json):
        raise click.UsageError("--text stands alone: leave out --html and --json")
    loaded = load(find(run))
    if html is not None:
        from bsguard_cli.page import render
        from bsguard_cli.writing import write_atomically

        path = Path(html)
        if path.is_dir():
            raise BadInput(f"{html} is a folder: name the file to write")
        data = render(loaded).encode("utf-8", "replace")
        write_atomically(path, data)
        if not as_json:
            click.echo(path)
    if as_json:
        print_json(of_run(loaded))
    elif text:
        _print_text(loaded)
    elif html is None:
        _print(loaded)
    raise SystemExit(BAD if any(is_bad(rank) for rank in loaded.ranks) else OK)


def _print_text(run) -> None:
    from bsguard_cli.reading import read_text
    from bsguard_cli.words import clean

    found = False
    for rank in run.ranks:
        text = read_text(rank.folder / "report.txt")
        if text is not None:
            found = True
            for line in text.splitlines():
                click.echo(clean(line, 4000))
    if not found:
        raise BadInput(f"{run.folder} has no report.txt: a run without an out-of-memory error writes none")


def _print(run) -> None:
    from rich.console import Group
    from rich.text import Text

    from bsguard_cli.screen import console, row, say, table
    from bsguard_cli.summary import narrowest_line, verdict
    from bsguard_cli.words import clean, known, seconds, size, split

    out = console()
    styles = {"unrescued": "bold red", "open": "bold red", "rescued": "bold yellow"}
    for rank in run.ranks:
        word, line = verdict(rank)
        text = Text(clean(f"{rank.name}: {line}" if rank.name else line), style=styles.get(word, "bold green"))
        out.print(text, soft_wrap=True)
    narrowest = narrowest_line(run)
    if narrowest:
        say(narrowest)
    facts = table("", *[rank.name or "run" for rank in run.ranks[:8]])
    lines = {
        "folder": lambda rank: rank.folder,
        "command": lambda rank: known(
            (rank.start and rank.start.command) or (rank.report and rank.report.command) or None
        ),
        "device": lambda rank: f"{known(rank.device_name, 60)}, {size(rank.capacity)}",
        "highest at the driver": lambda rank: size(rank.peak) + _share(rank.peak, rank.capacity),
        "highest in the framework": lambda rank: size(rank.allocated_peak) + _share(rank.allocated_peak, rank.capacity),
        "batch": lambda rank: split(*rank.split),
        "steps": lambda rank: f"{rank.total('step')} in {seconds(rank.seconds)}",
        "OOMs": lambda rank: f"{rank.ooms}, absorbed {rank.absorbed}, not helped {rank.unrescued}",
    }
    for name, of in lines.items():
        row(facts, name, *[of(rank) for rank in run.ranks[:8]])
    out.print(Group(facts))
    if len(run.ranks) > 8:
        say(f"and {len(run.ranks) - 8} more ranks: bsguard report {run.folder}/rank<N>")
    _print_rank(run.worst, out)
    for note in run.notes:
        say(f"note: {note}")


def _share(part: Optional[int], whole: Optional[int]) -> str:
    return f" ({part / whole:.0%})" if part is not None and whole else ""


def _print_rank(rank, out) -> None:
    from bsguard_cli.screen import row, say, table
    from bsguard_cli.summary import accounting, decisions, fit_line, holders, own_frames
    from bsguard_cli.words import clean, known, of_batch, plural, size, split

    title = f" ({rank.name})" if rank.name else ""
    oom = rank.report.oom if rank.report else None
    if oom:
        say(f"The last OOM{title}", style="bold")
        say(
            f"  {size(oom.request_bytes)} by {known(oom.api)}, refused {plural(oom.attempts or 0, 'time')}; "
            f"phase {known(oom.phase)}, step {known(oom.step)}, {known(oom.boundary)}, "
            f"{of_batch(oom.batch, oom.micro_batch, oom.accumulation_steps)}: {known(oom.verdict)}"
        )
        if oom.exception:
            say(f"  {oom.exception}")
        frames, others = own_frames(oom.python_stack)
        for frame in frames[:MOST_LINES]:
            say(f"    {frame}")
        if others:
            say(f"    ({plural(others, 'frame')} of libraries left out: bsguard report --text)")
        out.print()
    parts = accounting(rank)
    if parts:
        made = table("the device at that moment", "", right=(1,))
        for what, count in parts:
            row(made, what, size(count) + _share(count, rank.capacity))
        out.print(made)
    lines = holders(rank)
    if lines:
        made = table("bytes", "count", "phase", "who", title="Largest live allocations", right=(0, 1))
        for line in lines[:MOST_LINES]:
            who = line["where"] or f"{line['api'] or ''} (site not recorded)".strip()
            row(made, size(line["bytes"]), line["count"], known(line["phase"]), clean(who, 120))
        out.print(made)
    fit = fit_line(rank)
    if fit:
        say(f"Memory: {fit}; see bsguard plan")
    report = rank.report
    if report and report.growth and report.growth.trend not in (None, "unknown", "flat"):
        grown = report.growth
        rate = f", {size(grown.bytes_per_step)} a step" if grown.bytes_per_step else ""
        say(f"Between steps: {grown.trend}, {size(grown.held_first_bytes)} -> {size(grown.held_last_bytes)}{rate}")
    for held in report.held[:MOST_LINES] if report else []:
        say(f"Held from step to step: {held.what}: {known(held.tensors)} tensors, {size(held.bytes)}")
    made = table("#", "reason", "batch", "why", title="Decisions", right=(0,))
    every = decisions(rank)
    for line in every[-MOST_LINES:]:
        row(made, known(line["sequence"]), known(line["reason"]),
            split(line["batch"], line["micro_batch"], line["accumulation_steps"]), line["why"] or "")  # fmt: skip
    if every:
        out.print(made)
    if len(every) > MOST_LINES:
        say(f"({len(every) - MOST_LINES} earlier ones are left out)")
    if rank.advice:
        say("What would help", style="bold")
        for number, advice in enumerate(rank.advice, 1):
            say(f"  {number}. {advice}")
    if report and report.missing:
        say("Not recorded: " + "; ".join(report.missing))
