"""bsguard diff: two runs beside each other."""

from __future__ import annotations

from typing import Any, Optional

import click

from bsguard_cli.errors import BAD, OK
from bsguard_cli.screen import json_option, print_json

TOLERANCE = 0.02  # of a peak: what allocators differ by from run to run

# field of a summary -> (what it is called, unit, whether more is worse)
FIELDS = {
    "verdict": ("verdict", "", False),
    "ooms": ("OOMs", "", True),
    "unrescued": ("OOMs not helped", "", True),
    "absorbed": ("OOMs absorbed by the framework", "", False),
    "peak_bytes": ("highest at the driver", "bytes", True),
    "allocated_peak_bytes": ("highest in the framework", "bytes", True),
    "capacity_bytes": ("capacity of the device", "bytes", False),
    "batch": ("batch", "", False),
    "micro_batch": ("micro-batch", "", False),
    "accumulation_steps": ("accumulation steps", "", False),
    "steps": ("steps", "", False),
    "seconds": ("seconds", "", False),
    "command": ("command", "", False),
    "framework": ("framework", "", False),
    "device_name": ("device", "", False),
}


@click.command("diff")
@click.argument("before")
@click.argument("after")
@json_option
def command(before: str, after: str, as_json: bool) -> None:
    """Show two runs beside each other, and what is worse in AFTER than in BEFORE.

    Of a run with ranks the one that is worst off is shown.

    Exit status: 0; 1 where AFTER is worse: more OOMs, or a peak more than 2 % higher.
    """
    from bsguard_cli.runs import find, load
    from bsguard_cli.summary import of_rank_as_values

    runs = [load(find(argument)) for argument in (before, after)]
    one, two = (of_rank_as_values(run.worst) for run in runs)
    worse = [name for name in FIELDS if _is_worse(name, one[name], two[name])]
    if as_json:
        changes = {name: {"before": one[name], "after": two[name]} for name in FIELDS if one[name] != two[name]}
        answer = {"schema": "bsguard.diff/1", "before": str(runs[0].folder), "after": str(runs[1].folder)}
        print_json({**answer, "changes": changes, "worse": worse})
    else:
        _print([run.name for run in runs], one, two, worse)
    raise SystemExit(BAD if worse else OK)


def _is_worse(name: str, one: Optional[float], two: Optional[float]) -> bool:
    if not FIELDS[name][2] or one is None or two is None:
        return False
    return two > one * (1 + TOLERANCE) if FIELDS[name][1] == "bytes" else two > one


def _print(names: list[str], one: dict[str, Any], two: dict[str, Any], worse: list[str]) -> None:
    from bsguard_cli.screen import console, row, table
    from bsguard_cli.words import clean, known, size

    made = table("", *[clean(name, 60) for name in names], "change", right=(1, 2, 3))
    for name, (label, unit, _) in FIELDS.items():
        values = [one[name], two[name]]
        shown = [size(value) if unit == "bytes" else _short(value) for value in values]
        change = ""
        if values[0] != values[1]:
            change = "differs"
            if all(isinstance(value, (int, float)) for value in values):
                change = f"{values[1] / values[0] - 1:+.1%}" if values[0] else f"+{_short(values[1])}"
        row(made, label, *[known(text, 60) for text in shown], change, style="red" if name in worse else None)
    console().print(made)


def _short(value: Any) -> Optional[str]:
    if isinstance(value, float):
        return f"{value:.1f}"
    return None if value is None else str(value)
