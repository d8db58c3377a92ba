"""The command `bsguard`: its subcommands, found by name and imported only when one is used, and how it ends."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Optional

import click

# name -> module of commands/, whose `command` it is; in the order of the help.
COMMANDS = {
    "run": "run",
    "report": "report",
    "diff": "diff",
    "watch": "watch",
    "plan": "plan",
    "set": "set_",
    "doctor": "doctor",
    "export": "export",
    "lib": "lib",
}

EPILOG = """RUN is the folder of a run, a folder of runs (the newest is taken) or the name of a run below BSGUARD_DIR. Left out,
it is the newest run below BSGUARD_DIR, or ./bsguard.

\b
Exit status:
  0  fine
  1  the thing that was asked about is bad (each command says what that means)
  2  an argument or a file that cannot be used

Colours are shown on a terminal only, and not where NO_COLOR is set. For completion put this into the start-up file of
your shell; zsh_source and fish_source are for those:

\b
  eval "$(_BSGUARD_COMPLETE=bash_source bsguard)"
"""


class Commands(click.Group):
    """A group whose commands are imported when they are needed: `bsguard lib` stands in shell prompts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        module = "manual" if cmd_name == "manual" else COMMANDS.get(cmd_name)
        return import_module(f"bsguard_cli.commands.{module}").command if module else None

    def resolve_command(self, ctx, args):
        if args and args[0] not in (*COMMANDS, "manual") and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from bsguard_cli.place import version

    click.echo(f"bsguard {version()}")
    ctx.exit()


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
def command() -> None:
    """Lets GPU training jobs survive CUDA out-of-memory, and tells what became of the memory.

    \b
    bsguard run -- python train.py    run a job under bsguard
    bsguard report                    what became of the newest run
    bsguard watch                     look on while it runs
    """


def main() -> None:
    """The console script."""
    output = sys.stdout
    try:
        try:
            command(prog_name="bsguard")
        finally:
            output.flush()  # what is still in its buffer may fail too
    except BrokenPipeError:  # the reader of our output has left: nothing is wrong
        _drop_output()
        sys.exit(0)
    except OSError as error:  # of files each command speaks by itself
        _drop_output()
        sys.stderr.write(f"bsguard: the output could not be written: {error.strerror or error}\n")
        sys.exit(2)
    except SystemExit:
        if sys.stdout is output:
            raise
        sys.exit(0)  # click has seen the reader leave: it has put something in the place of the output, and ends with 1


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
