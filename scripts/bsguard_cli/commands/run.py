"""bsguard run: a job under bsguard."""

from __future__ import annotations

import json
import os
import sys
from typing import Optional

import click

from bsguard_cli.errors import BadInput
from bsguard_cli.screen import json_option


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--restarts", type=click.IntRange(0, 1000), default=0, metavar="N",
    help="Start a job that died of an out-of-memory error again, up to N times, with a size that fits.")  # fmt: skip
@click.option("--restart-argument", "restart_arguments", multiple=True, metavar="TEXT",
    help="Added to the command at a restart, {micro_batch} and {accumulation_steps} put in. May be repeated.")  # fmt: skip
@click.option("--restart-env", "restart_variables", multiple=True, metavar="NAME=TEXT",
    help="Set at a restart, filled in the same way. May be repeated.")  # fmt: skip
@click.option("--observe", is_flag=True, help="Record and report only; never touch the framework (BSGUARD=observe).")
@click.option("--dir", "folder", metavar="FOLDER", help="Parent of the run folders (BSGUARD_DIR).")
@click.option("--log", type=click.Choice(["quiet", "normal", "debug"]), help="What is said on stderr (BSGUARD_LOG).")
@click.option("--memory-limit", metavar="SIZE", help="Behave like a card of this size (BSGUARD_MEMORY_LIMIT).")
@click.option("--arm", type=click.Choice(["auto", "always", "never"]),
    help="When a step is prepared for being split (BSGUARD_ARM).")  # fmt: skip
@click.option("--boundary", metavar="MODULE:FUNCTION", help="Where a batch is split (BSGUARD_BOUNDARY).")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...", required=True)
@json_option
def command(
    restarts: int,
    restart_arguments: tuple[str, ...],
    restart_variables: tuple[str, ...],
    observe: bool,
    folder: Optional[str],
    log: Optional[str],
    memory_limit: Optional[str],
    arm: Optional[str],
    boundary: Optional[str],
    command_line: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run COMMAND under bsguard.

    It gets LD_PRELOAD, next to what is in it already, and the options as BSGUARD_* variables; variables that are set
    hold where no option is given. Without --restarts this process becomes COMMAND, so signals and the exit status are
    its own.

    With --restarts a COMMAND that was ended by an out-of-memory error that bsguard could not help, is started again:
    the known-good size of the dead run is asked for in the new run's request.json, and put into --restart-argument and
    --restart-env for a script that has an option for it. What cannot be split inside, such as a static graph, gets half
    its batch by its own option, and its last checkpoint: those of PaddleOCR, PaddleDetection, PaddleClas, PaddleSeg and
    PaddleNLP are known, and any --batch-size N or BATCH_SIZE that is there. Each restart is told on stderr, as JSON with
    --json: what was changed, what became of the batch, from where it goes on, and the command line.

    \b
    bsguard run -- python train.py
    bsguard run --restarts 2 --restart-argument=--batch-size={micro_batch} -- python train.py

    Exit status: that of COMMAND, or its signal; 126 where it cannot be run, 127 where it is not found, 2 for a wrong
    option.
    """
    from bsguard_cli import launch
    from bsguard_cli.place import find_library
    from bsguard_cli.words import SIZE_FORMS, clean, parse_size

    library = find_library()
    if library is None:
        raise BadInput("libbsguard.so is not there: bsguard lib says where it was looked for")
    if memory_limit is not None and parse_size(memory_limit) is None:
        raise click.BadParameter(
            f"{memory_limit!r} is not a size: {SIZE_FORMS}",
            param_hint="'--memory-limit'",
        )
    if boundary is not None and not all(part for part in boundary.partition(":")):
        raise click.BadParameter(f"{boundary!r} is not allowed: MODULE:FUNCTION", param_hint="'--boundary'")
    if (restart_arguments or restart_variables) and not restarts:
        raise click.UsageError("--restart-argument and --restart-env are for --restarts N: give that too")
    for text in restart_variables:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not allowed: NAME=TEXT", param_hint="'--restart-env'")
    chosen = {
        "BSGUARD": "observe" if observe else None,
        "BSGUARD_DIR": folder,
        "BSGUARD_LOG": log,
        "BSGUARD_MEMORY_LIMIT": memory_limit,
        "BSGUARD_ARM": arm,
        "BSGUARD_BOUNDARY": boundary,
    }
    options = {name: value for name, value in chosen.items() if value is not None}
    environment = launch.environment_for(library, options, os.environ)
    if os.environ.get("BSGUARD") == "0":
        click.echo("bsguard: BSGUARD=0 is set: the job runs unguarded; take it out to guard it", err=True)
    if not restarts:
        sys.exit(launch.become(command_line, environment))

    def say(text: str) -> None:
        line = json.dumps({"bsguard": text}) if as_json else f"bsguard: {clean(text, 4000)}"
        click.echo(line, err=True)

    launch.end_as(launch.Supervisor(command_line, environment, say).run(restarts, restart_arguments, restart_variables))
