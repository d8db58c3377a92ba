"""bsguard manual: all of --help on one page, for docs/command.md and docs/man/bsguard.1."""

from __future__ import annotations

import click


@click.command("manual", hidden=True)
@click.option("--man", is_flag=True, help="As a manual page, bsguard(1).")
def command(man: bool) -> None:
    """Print all of --help as one page of Markdown."""
    from bsguard_cli.manual import man_page, manual

    click.echo(man_page() if man else manual(), nl=False)
