"""bsguard lib: the path of the library."""

from __future__ import annotations

import click

from bsguard_cli.errors import Bad
from bsguard_cli.place import NAME, candidates, find_library
from bsguard_cli.screen import json_option


@click.command("lib")
@json_option
def command(as_json: bool) -> None:
    """Print the path of libbsguard.so.

    \b
    LD_PRELOAD=$(bsguard lib) python train.py

    Exit status: 0; 1 where the library is nowhere.
    """
    path = find_library()
    if path is None:
        looked = ", ".join(str(candidate.parent) for candidate in candidates())
        raise Bad(f"{NAME} is not there; looked in {looked}. Install the package again, or build it with scripts/setup")
    if as_json:
        from bsguard_cli.screen import print_json

        print_json({"library": str(path)})
    else:
        click.echo(path)
