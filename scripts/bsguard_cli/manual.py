"""The manual pages, made of the help of every command as it is: docs/command.md and bsguard(1). `scripts/bsguard manual` prints
them."""

from __future__ import annotations

import inspect
import re

import click

from bsguard_cli.main import COMMANDS, EPILOG, command

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
    """The page in Markdown."""
    settings = {**command.context_settings, "terminal_width": 100}
    context = click.Context(command, info_name="bsguard", **settings)
    pages = [_help(command, context)]
    for name in COMMANDS:
        made = command.get_command(context, name)
        pages.append(_help(made, click.Context(made, info_name=name, parent=context, terminal_width=100)))
    return HEAD + "".join(pages)


def _roff(text: str) -> str:
    """Text that means itself."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def _paragraphs(text: str) -> list[str]:
    """A help text; what stands after a backspace stays in lines, as click has it."""
    made = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b\n"):
            made.append(f".PP\n.nf\n{_roff(inspect.cleandoc(part[2:]))}\n.fi")
        else:
            made.append(f".PP\n{_roff(' '.join(part.split()))}")
    return made


def _options(made: click.Command, context: click.Context) -> list[str]:
    options = (parameter for parameter in made.get_params(context) if isinstance(parameter, click.Option))
    records = [option.get_help_record(context) for option in options]
    return [f".TP\n.B {_roff(names)}\n{_roff(told)}" for names, told in filter(None, records)]


def man_page() -> str:
    """bsguard(1)."""
    context = click.Context(command, info_name="bsguard", **command.context_settings)
    lines = [
        '.TH BSGUARD 1 "" "bsguard" "bsguard"',
        ".SH NAME",
        "bsguard \\- run GPU training jobs so that they survive CUDA out-of-memory, and tell what became of the memory",
        ".SH SYNOPSIS",
        ".B bsguard\n.I command\n.RI [ option ...]\n.RI [ argument ...]",
        ".SH DESCRIPTION",
        *_paragraphs(command.help or "")[1:],
        *_paragraphs(EPILOG),
        ".SH OPTIONS",
        *_options(command, context),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        made = command.get_command(context, name)
        inner = click.Context(made, info_name=name, parent=context)
        usage = " ".join([inner.command_path, *made.collect_usage_pieces(inner)])
        lines += [f".SS {_roff(usage)}", *_paragraphs(made.help or ""), *_options(made, inner)]
    lines += [".SH SEE ALSO", ".BR bsguard (7),", "which tells of the library and its variables"]
    return "\n".join(lines) + "\n"
