"""The manual page in docs/command.md: the help of every command, as it is. `scripts/bsguard manual` prints it."""

from __future__ import annotations

import click

from bsguard_cli.main import COMMANDS, command

HEAD = """# The command `bsguard`

What `--help` says, of the command and of each subcommand; a test holds this page to it. How the files look that it reads is
told in [formats](formats/README.md), what `export --format openmetrics` writes in [metrics](metrics.md).

`--json` answers are documents with a `schema` ("bsguard.summary/1" of `report`, "bsguard.diff/1", "bsguard.plan/1",
"bsguard.watch/1", "bsguard.set/1", "bsguard.doctor/1"). Sizes are integers in bytes, `null` stands for "not recorded", and
readers ignore members that they do not know.
"""


def _help(made: click.Command, context: click.Context) -> str:
    return f"\n## {context.command_path}\n\n```text\n{made.get_help(context).rstrip()}\n```\n"


def manual() -> str:
    """The whole page."""
    settings = {**command.context_settings, "terminal_width": 100}
    context = click.Context(command, info_name="bsguard", **settings)
    pages = [_help(command, context)]
    for name in COMMANDS:
        made = command.get_command(context, name)
        pages.append(_help(made, click.Context(made, info_name=name, parent=context, terminal_width=100)))
    return HEAD + "".join(pages)
