"""bsguard manual: all of --help on one page, for docs/command.md."""

from __future__ import annotations

import click


@click.command("manual", hidden=True)
def command() -> None:
    """Print all of --help as one page of Markdown."""
    from bsguard_cli.manual import manual

    click.echo(manual(), nl=False)
