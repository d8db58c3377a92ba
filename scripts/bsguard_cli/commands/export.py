"""bsguard export: a run in the formats of other tools."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Optional

import click

from bsguard_cli.errors import BadInput
from bsguard_cli.screen import json_option, print_json, run_argument

FORMATS = {
    "collapsed": "live bytes by site at the last OOM, for flamegraph.pl, speedscope, inferno",
    "perfetto": "memory, steps, OOMs and decisions over time, a trace for ui.perfetto.dev",
    "openmetrics": "the state of the run, for node_exporter's textfile collector",
    "csv": "one line an event, for a spreadsheet",
}


@click.command("export")
@run_argument
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), required=True, help="See above.")
@click.option(
    "-o", "--output", metavar="FILE", help="Where to: replaced at once, never seen half-written. Left out: stdout."
)
@json_option
def command(run: Optional[str], kind: str, output: Optional[str], as_json: bool) -> None:
    """Write RUN in the format of another tool.

    \b
    collapsed    live bytes by site at the last OOM: flamegraph.pl, speedscope, inferno
    perfetto     memory, steps, OOMs and decisions over time: ui.perfetto.dev
    openmetrics  the state of the run: node_exporter's textfile collector, Prometheus
    csv          one line an event: a spreadsheet

    With --output, --json says what was written. Exit status: 0; 1 where RUN has nothing for this format.
    """
    from bsguard_cli.runs import find, load

    if as_json and output is None:
        raise click.UsageError("--json says what was written to a file: give --output FILE too")
    loaded = load(find(run))
    data: bytes = import_module(f"bsguard_cli.exports.{kind}").export(loaded)
    if output is not None:
        from bsguard_cli.writing import write_atomically

        path = Path(output)
        if path.is_dir():
            raise BadInput(f"{output} is a folder: name the file to write")
        write_atomically(path, data)
        if as_json:
            print_json({"run": str(loaded.folder), "format": kind, "output": str(path), "bytes": len(data)})
        return
    if kind == "perfetto" and sys.stdout.isatty():
        raise click.UsageError("a trace is no text for a terminal: give --output FILE, or a pipe")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
