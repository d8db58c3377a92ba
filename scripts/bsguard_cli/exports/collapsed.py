"""Collapsed stacks, one a line: frames from the outermost inwards with ";" between them, a blank, the bytes."""

from __future__ import annotations

from bsguard_cli.errors import Bad
from bsguard_cli.flame import of_run
from bsguard_cli.runs import Run


def export(run: Run) -> bytes:
    """Live bytes by site at the last OOM of each rank."""
    sums: dict[str, int] = {}
    for frames, size in of_run(run):
        stack = ";".join(frame.replace(";", ",") for frame in frames)
        sums[stack] = sums.get(stack, 0) + size
    if not sums:
        raise Bad(f"{run.folder} names no allocation: it has no report, so no OOM that was not absorbed")
    return "".join(f"{stack} {size}\n" for stack, size in sums.items()).encode()
