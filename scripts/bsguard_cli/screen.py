"""What every command prints with: colours on a terminal alone, JSON where it is asked for."""

from __future__ import annotations

import json
from typing import Any, Callable, Optional

import click

from bsguard_cli.words import clean


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json, for a program that reads the answer."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for a program.")(function)


def run_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """RUN, which may be left out."""
    return click.argument("run", required=False)(function)


def print_json(what: Any) -> None:
    """One document. ASCII only: text out of a file cannot act on a terminal in it."""
    click.echo(json.dumps(what, indent=2, allow_nan=False))


def console(stderr: bool = False):
    """A console of rich that takes text as it is: no mark-up, no guessing at colours, no emojis."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:  # rich's own ends the process with status 1
            raise BrokenPipeError

    made = Plain(markup=False, highlight=False, emoji=False, stderr=stderr, soft_wrap=False)
    if not made.is_terminal and made.width < 100:
        made.width = 100  # a log file has no width
    return made


def table(*columns: str, title: Optional[str] = None, right: tuple[int, ...] = ()):
    """An empty table. right: columns of figures."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        made.add_column(
            column, justify="right" if number in right else "left", overflow="fold", no_wrap=number in right
        )
    return made


def row(made, *cells: Any, style: Optional[str] = None) -> None:
    """One line of a table; whatever it is, it is cleaned."""
    from rich.text import Text

    made.add_row(*(Text(clean(cell)) for cell in cells), style=style)


def say(text: str, style: Optional[str] = None, stderr: bool = False) -> None:
    """A line, however long: whoever greps for it finds it whole."""
    console(stderr).print(clean(text, 4000), style=style, soft_wrap=True)
