"""The live bytes of a rank at its OOM as stacks: outermost first, the phase at their root. Depends on runs.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Union

from bsguard_cli.records import Group, Holder
from bsguard_cli.runs import Rank, Run
from bsguard_cli.symbols import demangle
from bsguard_cli.words import clean

MOST_DEPTH = 64
_FRAME = re.compile(r"^(?P<symbol>_Z\w+)(?P<rest>.*)$", re.DOTALL)


def readable(frames: list[str]) -> list[str]:
    """Frames with their C++ names as people write them."""
    mangled = sorted({match["symbol"] for frame in frames for match in [_FRAME.match(frame)] if match})
    names = demangle(mangled)
    shown = []
    for frame in frames:
        match = _FRAME.match(frame)
        shown.append(names.get(match["symbol"], match["symbol"]) + match["rest"] if match else frame)
    return shown


def stacks(rank: Rank) -> Iterator[tuple[list[str], int]]:
    """(frames, bytes) of each of the largest live allocations, and what remains of all that was live."""
    report = rank.report
    if report is None:
        return
    listed = 0
    every = {site.site: [*site.python[::-1], *site.frames[::-1]][-MOST_DEPTH:] for site in report.sites}
    flat = [frame for frames in every.values() for frame in frames]
    names = dict(zip(flat, readable(flat)))
    groups = report.groups.rows if report.groups else []
    for holder in groups or report.holders:
        if not holder.bytes:
            continue
        frames = [clean(names[frame], 1000) for frame in every.get(holder.site or 0, [])]
        phase = clean(holder.phase or "phase not recorded", 100)
        end = frames or [f"site not recorded{_by(holder)}"]
        listed += holder.bytes
        yield [phase, *end], holder.bytes
    live = (report.memory.live_bytes if report.memory else None) or 0
    if live > listed:
        yield ["smaller allocations"], live - listed


def _by(holder: Union[Holder, Group]) -> str:
    api = getattr(holder, "api", None)
    return f" ({clean(api, 100)})" if api else ""


def of_run(run: Run) -> Iterator[tuple[list[str], int]]:
    """The stacks of all ranks, the rank at the root where there is one."""
    for rank in run.ranks:
        for frames, size in stacks(rank):
            yield ([rank.name] if rank.name else []) + frames, size
