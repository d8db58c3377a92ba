"""What holds for every report that any test makes: its schema, an accounting that adds up to the device's capacity, and the
figures that the simulated driver itself had at the refused call (SIMGPU_REFUSALS)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = Path(__file__).resolve().parents[1] / "docs" / "formats" / "report.schema.json"
TOLERANCE = 2 << 20  # bytes: the unit in which a real driver hands out memory


@cache
def _schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def check_report(report: Mapping[str, Any]) -> None:
    """One report.json by itself."""
    _schema().validate(report)
    memory, accounting = report["memory"], report["accounting"]
    capacity = memory["capacity_bytes"]
    if accounting is not None:
        total = sum(part["bytes"] for part in accounting["parts"])
        assert total == accounting["sum_bytes"], accounting
        assert abs(total - capacity) <= TOLERANCE, (accounting, memory)
        parts = {part["part"]: part["bytes"] for part in accounting["parts"]}
        ours = sum(parts[name] for name in ("framework_live", "framework_cached", "process_other"))
        assert abs(ours - memory["live_bytes"]) <= TOLERANCE, (accounting, memory)
        assert abs(parts["free"] - memory["free_bytes"]) <= TOLERANCE, (accounting, memory)
    else:
        assert None in (capacity, memory["free_bytes"], memory["live_bytes"]), memory
    assert report["holders_bytes"] == sum(holder["bytes"] for holder in report["holders"])
    if report["groups"]:
        assert report["groups"]["listed_bytes"] == sum(row["bytes"] for row in report["groups"]["rows"])


def _agrees(report: Mapping[str, Any], refusal: Mapping[str, Any]) -> bool:
    """The ledger has what was asked for, the driver what it rounded that up to: a unit more an allocation at most, and one
    for each kind whose small ones share units."""
    memory, unit = report["memory"], refusal["unit"]
    if memory["capacity_bytes"] != refusal["capacity"]:
        return False
    if not refusal["shared"] and memory["free_bytes"] != refusal["free"]:
        return False  # where it is shared, a neighbour may have taken or given back more since the refusal
    return abs(refusal["held"] - memory["live_bytes"]) <= unit * ((memory["live_count"] or 0) + 8)


def check_against_driver(report: Mapping[str, Any], refusals: list[Mapping[str, int]]) -> bool:
    """Whether there was something to compare: an OOM that this driver refused, in a process where nobody else could change
    the figures between the refusal and the picture that was taken of it."""
    oom = report["oom"]
    if oom is None or not oom["request_bytes"] or report["memory"]["free_bytes"] is None:
        return False
    same = [
        refusal
        for refusal in refusals
        if (refusal["pid"], refusal["device"], refusal["bytes"]) == (report["pid"], oom["device"], oom["request_bytes"])
    ]
    if not same or any(refusal["threads"] > 1 for refusal in same):
        return False
    if any(refusal["resized"] for refusal in same):
        return False  # by the job itself, as it ran: a report speaks of the size that the device had at first
    assert any(_agrees(report, refusal) for refusal in same), (report["memory"], same[-3:])
    return True


def check_folder(folder: Path, refusals: Path, limited: bool) -> int:
    """Every report below a folder; how many could be compared with the driver. limited: BSGUARD_MEMORY_LIMIT was set, so
    the library spoke of a smaller card than the driver's."""
    lines = refusals.read_text().splitlines() if refusals.is_file() else []
    known = [json.loads(line) for line in lines]
    compared = 0
    for path in folder.rglob("report.json"):
        report = json.loads(path.read_text())
        try:
            check_report(report)
            compared += not limited and check_against_driver(report, known)
        except (AssertionError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{path} does not hold: {error}") from error
    return compared
