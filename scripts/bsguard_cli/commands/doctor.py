"""bsguard doctor: would a job be guarded here?"""

from __future__ import annotations

import os
from typing import Optional

import click

from bsguard_cli.errors import BAD, OK
from bsguard_cli.screen import json_option, print_json


@click.command("doctor", context_settings={"allow_interspersed_args": False})
@click.option("--pid", type=click.IntRange(1, 2**31 - 1), metavar="PID", help="Look at a job that runs already.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND [ARGUMENT]...]")
@json_option
def command(pid: Optional[int], command_line: tuple[str, ...], as_json: bool) -> None:
    """Say whether COMMAND, or the python on PATH, would be guarded here; what is wrong, and how to mend it.

    COMMAND is not run: only its Python is started, with the flags it has there, and asked what it sees.

    \b
    bsguard doctor
    bsguard doctor -- python -I train.py
    bsguard doctor --pid 4711

    Exit status: 0; 1 where something is wrong.
    """
    from bsguard_cli import diagnosis

    if pid is not None:
        if command_line:
            raise click.UsageError("--pid and a COMMAND are two questions: ask one")
        checks = diagnosis.process(pid)
    else:
        checks = [
            *diagnosis.library(),
            *diagnosis.options(os.environ),
            diagnosis.run_folder(os.environ),
            *diagnosis.python(command_line, os.environ),
        ]
    wrong = [check for check in checks if check.state == diagnosis.WRONG]
    if as_json:
        lines = [
            {"name": check.name, "state": check.state, "found": check.found, "mend": check.mend or None}
            for check in checks
        ]
        print_json({"schema": "bsguard.doctor/1", "ok": not wrong, "checks": lines})
    else:
        _print(checks, len(wrong))
    raise SystemExit(BAD if wrong else OK)


def _print(checks, wrong: int) -> None:
    from bsguard_cli.screen import say
    from bsguard_cli.words import plural

    styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        say(f"{check.state:5}  {check.name:{width}}  {check.found}", style=styles[check.state])
        if check.mend and check.state != "ok":
            say(f"       {'':{width}}  -> {check.mend}")
    say("Everything is in place." if not wrong else f"{plural(wrong, 'thing')} to mend.")
