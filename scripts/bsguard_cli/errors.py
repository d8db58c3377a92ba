"""How the command ends. Exit status 0: fine; 1: what was asked about is bad; 2: what was given cannot be used."""

from __future__ import annotations

from typing import IO, Any, Optional

import click

from bsguard_cli.words import clean

OK, BAD, UNUSABLE = 0, 1, 2


class BadInput(click.ClickException):
    """A file or an argument that cannot be used: one line that names the thing, what is wrong and the way out."""

    exit_code = UNUSABLE

    def show(self, file: Optional[IO[Any]] = None) -> None:
        click.echo(f"bsguard: {clean(self.message, 2000)}", err=True, file=file)


class Bad(BadInput):
    """What was asked about is bad, and there is nothing to show but that line."""

    exit_code = BAD
