"""CSV, one line an event, the columns those of records.Event. A text that a spreadsheet could take for a formula gets an
apostrophe in front."""

from __future__ import annotations

import csv
import io

from bsguard_cli.errors import Bad
from bsguard_cli.runs import Run
from bsguard_cli.words import clean

# fmt: off
COLUMNS = (
    "rank", "seq", "time", "mono_ns", "type", "step", "phase", "device", "live_bytes", "peak_bytes",
    "allocated_peak_bytes", "free_bytes", "request_bytes", "api", "attempts", "site", "sequence", "reason", "batch",
    "micro_batch", "accumulation_steps", "boundary", "exactness", "obeyed", "why",
)
# fmt: on
_FORMULA = ("=", "+", "-", "@")


def _cell(value: object) -> object:
    if value is None:
        return ""
    if not isinstance(value, str):
        return int(value) if isinstance(value, bool) else value
    text = clean(value, 4000)
    return "'" + text if text.startswith(_FORMULA) else text


def export(run: Run) -> bytes:
    """All events that are kept of all ranks."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    lines = 0
    for rank in run.ranks:
        for event in rank.events(*rank.kept):
            values = [rank.number if column == "rank" else getattr(event, column) for column in COLUMNS]
            writer.writerow([_cell(value) for value in values])
            lines += 1
    if not lines:
        raise Bad(f"{run.folder} has no events: was it made by a job that has just begun, or is it another folder?")
    return out.getvalue().encode()
