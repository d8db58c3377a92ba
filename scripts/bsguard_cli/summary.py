"""One rank of a run as plain values: what `bsguard report`, `diff` and the HTML page show, and what --json prints."""

from __future__ import annotations

import re
from typing import Any, Optional

import msgspec

from bsguard_cli.fit import HEADROOM, Fit, of_rank
from bsguard_cli.flame import readable
from bsguard_cli.runs import Rank, Run
from bsguard_cli.words import clean, of_batch, plural, size, split

SCHEMA = "bsguard.summary/1"


def verdict(rank: Rank) -> tuple[str, str]:
    """(one of "unrescued", "open", "rescued", "running", "fine", what happened in one line)."""
    ooms = plural(rank.ooms, "OOM")
    report = rank.report
    oom = report.oom if report else None
    if rank.unrescued and not (oom and oom.verdict == "rescued"):
        cause = _cause(rank)
        if cause:
            return "unrescued", f"ran out of memory, and could not be helped: {cause} ({ooms})"
        asked = f" asking for {size(oom.request_bytes)}" if oom and oom.request_bytes else ""
        where = f" in {oom.phase} at step {oom.step}" if oom and oom.phase and oom.step else ""
        return "unrescued", f"ran out of memory{where}{asked}, and could not be helped ({ooms})"
    if rank.unrescued:
        return "unrescued", f"{plural(rank.unrescued, 'OOM')} of {rank.ooms} could not be helped"
    if rank.ooms:
        batch = f", batch {split(*rank.split)}" if rank.split[0] else ""
        if oom and oom.verdict == "open" and not rank.alive:
            return "open", f"met {ooms}, and ended without a word about the last one{batch}"
        return "rescued", f"met {ooms}, {plural(rank.rescued_steps, 'step')} rescued{batch}{_ending(rank)}"
    absorbed = f" ({rank.absorbed} absorbed by the framework)" if rank.absorbed else ""
    if rank.alive:
        return "running", f"runs, no OOM so far{absorbed}"
    return "fine", f"no OOM{absorbed}{_ending(rank)}"


def _ending(rank: Rank) -> str:
    """A word where the record says less than all."""
    if rank.alive or rank.stop:
        return ""
    if rank.first is None:
        return "; events.jsonl is missing or empty, so what happened is not known"
    return "; the record has no end: the job was killed, or the disk was full"


_CAUSES = {
    "framework_limit": "the framework's own limit is reached",
    "other_process": "another process holds the memory",
    "fragmentation": "free memory lies in pieces that are too small",
    "one_request": "one request is too large by itself",
    "leak": "memory is held from step to step, and ever more of it",
    "growing_cache": "a cache grows",
    "optimizer_state": "the optimizer's state is too large",
    "fixed_part": "what no batch size lowers is too large",
    "evaluation": "evaluation takes too much",
    "activations": "the activations of a batch are too large",
}


def _cause(rank: Rank) -> Optional[str]:
    """What was measured to be in the way."""
    found = rank.report.verdict if rank.report else None
    if found is None or found.cause in (None, "none", "unknown"):
        return None
    text = _CAUSES.get(found.cause, found.cause)
    if found.culprit:
        text += f": {found.culprit}"
    return f"{text}, {size(found.cause_bytes)}" if found.cause_bytes else text


def is_bad(rank: Rank) -> bool:
    """Whether the job, or a part of it, was lost to an OOM."""
    return verdict(rank)[0] in ("unrescued", "open")


def _fit(fit: Optional[Fit]) -> Optional[dict[str, Any]]:
    if fit is None:
        return None
    return {
        "fixed_bytes": round(fit.fixed),
        "per_sample_bytes": round(fit.per_sample),
        "measured": fit.exact,
        "source": fit.source,
        "points": [list(point) for point in fit.points],
    }


def fit_line(rank: Rank) -> Optional[str]:
    """Fixed or per sample, and what fits, in words; None where it was not measured."""
    fit = of_rank(rank)
    if fit is None or not fit.exact:
        return None
    brought = rank.report.fit if rank.report else None
    most = brought.largest_micro_batch if brought else None
    if most is None and rank.capacity:
        most = fit.largest(rank.capacity * (1 - HEADROOM))
    told = f"{size(fit.fixed)} fixed + {size(fit.per_sample)} a sample ({fit.source})"
    return told if most is None else f"{told}; {plural(most, 'sample')} at once fit"


def holders(rank: Rank) -> list[dict[str, Any]]:
    """The largest live allocations at the OOM, equal ones together, with the innermost frame that says something."""
    found: dict[tuple, dict[str, Any]] = {}
    who = _who_asked(rank)
    groups = rank.report.groups if rank.report else None
    if groups and groups.rows:
        rows = [
            {
                "bytes": row.bytes,
                "count": row.allocations,
                "phase": row.phase,
                "api": None,
                "site": row.site,
                "where": who.get(row.site or 0),
            }
            for row in groups.rows
        ]
        return sorted(rows, key=lambda line: -line["bytes"])
    for holder in rank.report.holders if rank.report else []:
        key = (holder.site, holder.phase, holder.api, holder.bytes if holder.site is None else None)
        line = found.setdefault(
            key,
            {
                "bytes": 0,
                "count": 0,
                "phase": holder.phase,
                "api": holder.api,
                "site": holder.site,
                "where": who.get(holder.site or 0),
            },
        )
        line["bytes"] += holder.bytes
        line["count"] += holder.count or 1
    return sorted(found.values(), key=lambda line: -line["bytes"])


_PARTS = {
    "framework_live": "the framework's tensors",
    "framework_cached": "idle inside the framework",
    "process_other": "this process, not the framework",
    "driver_own": "the driver's own",
    "other_processes": "other processes",
    "not_told_apart": "the driver's own and others",
    "free": "free",
}

# Functions that only hand a request on: the code that asked is further out.
_HANDS_ON = re.compile(r"alloc|Alloc|^0x|^cu[A-Z]|^cuda[A-Z]|^phi::DenseTensor|^phi::DeviceContext")

# Paddle's name of an operation, forward and backward: says more than the copy or the kernel inside it.
_OPERATION = re.compile(r"^\w+_ad_func$|^\w+GradNode::operator")


def _without_arguments(frame: str) -> str:
    """ "phi::Copy<phi::CPUContext> (libphi.so)" of a frame with its arguments and its offset."""
    name = frame.partition("(")[0].partition("+0x")[0].strip()
    module = frame[frame.rfind("(") :] if frame.endswith(")") else ""
    return f"{name} {module}".strip() if name else frame


def _who_asked(rank: Rank) -> dict[int, str]:
    """The frame of each site that says most."""
    sites = rank.report.sites if rank.report else []
    names = iter(readable([frame for site in sites for frame in site.frames]))
    found = {}
    for site in sites:
        frames = [*site.python, *(next(names) for _ in site.frames)]
        called = [frame.partition("(")[0].partition("+0x")[0] for frame in frames]
        operation = [frame for frame, name in zip(frames, called) if _OPERATION.search(name)]
        telling = [frame for frame, name in zip(frames, called) if not _HANDS_ON.search(name)]
        if frames:
            found[site.site] = _without_arguments((operation or telling or frames)[0])
    return found


_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/bsguard_paddle/|<frozen |/lib/python3\.\d+/")


def own_frames(stack: list[str]) -> tuple[list[str], int]:
    """The frames of a Python stack that are the user's own code, and how many others there are; all, where none is."""
    own = [frame.strip() for frame in stack if not _NOT_THE_USERS.search(frame)]
    return (own, len(stack) - len(own)) if own else ([frame.strip() for frame in stack], 0)


def accounting(rank: Rank) -> list[tuple[str, int]]:
    """Parts of the device at the OOM that add up to its capacity; empty where that is not known."""
    told = rank.report.accounting if rank.report else None
    if told and told.parts:
        return [
            (_PARTS.get(part.part, part.part), part.bytes) for part in told.parts if part.bytes or part.part == "free"
        ]
    memory = rank.report.memory if rank.report else None
    if memory is None or memory.capacity_bytes is None or memory.live_bytes is None:
        return []
    parts = [("live, this process", memory.live_bytes)]
    others = rank.report.others if rank.report else None
    named = 0
    for process in others.processes if others else []:
        if process.bytes:
            parts.append((f"{clean(process.name or 'process', 60)} (pid {process.pid})", process.bytes))
            named += process.bytes
    if memory.not_in_ledger_bytes is not None and memory.not_in_ledger_bytes > named:
        parts.append(("the driver's own and others", memory.not_in_ledger_bytes - named))
    if memory.free_bytes is not None:
        parts.append(("free", memory.free_bytes))
    return parts


def of_rank_as_values(rank: Rank) -> dict[str, Any]:
    """Everything about a rank, for JSON."""
    word, line = verdict(rank)
    report, start = rank.report, rank.start
    oom = report.oom if report else None
    batch, micro_batch, steps = rank.split
    return {
        "rank": rank.number,
        "pid": rank.pid,
        "running": rank.alive,
        "verdict": word,
        "verdict_text": line,
        "command": (start and start.command) or (report and report.command) or None,
        "framework": (start and start.framework) or (report and report.framework) or None,
        "mode": (start and start.mode) or (report and report.mode) or None,
        "device_name": rank.device_name,
        "capacity_bytes": rank.capacity,
        "peak_bytes": rank.peak,
        "allocated_peak_bytes": rank.allocated_peak,
        "seconds": rank.seconds,
        "steps": rank.total("step"),
        "ooms": rank.ooms,
        "absorbed": rank.absorbed,
        "rescued_steps": rank.rescued_steps,
        "unrescued": rank.unrescued,
        "batch": batch,
        "micro_batch": micro_batch,
        "accumulation_steps": steps,
        "fit": _fit(of_rank(rank)),
        "oom": None if oom is None else {name: getattr(oom, name) for name in oom.__struct_fields__},
        "accounting": [{"what": what, "bytes": count} for what, count in accounting(rank)],
        "holders": holders(rank),
        "decisions": decisions(rank),
        "cause": report.verdict.cause if report and report.verdict else None,
        "culprit": report.verdict.culprit if report and report.verdict else None,
        "growth": report.growth if report else None,
        "held": report.held if report else [],
        "advice": rank.advice,
        "missing": report.missing if report else [],
        "notes": rank.notes,
    }


def decisions(rank: Rank) -> list[dict[str, Any]]:
    """Every change of control.json that is known, oldest first."""
    sources = list(rank.events("decision")) or (rank.report.decisions if rank.report else [])
    names = ("sequence", "time", "reason", "batch", "micro_batch", "accumulation_steps", "why")
    return [{name: getattr(source, name) for name in names} for source in sources]


def of_run(run: Run) -> dict[str, Any]:
    """A run as JSON has it."""
    return {
        "schema": SCHEMA,
        "run": str(run.folder),
        "verdict": verdict(run.worst)[0],
        "ranks": msgspec.to_builtins([of_rank_as_values(rank) for rank in run.ranks]),
        "narrowest": run.narrowest.number if run.narrowest else None,
    }


def narrowest_line(run: Run) -> Optional[str]:
    """Which rank has the least room, in one line; None where nothing tells the ranks apart."""
    rank = run.narrowest
    if rank is None:
        return None
    left = f"{size(rank.capacity - rank.peak)} of {size(rank.capacity)} left at its peak"
    return f"narrowest: {rank.name}, {left}, {of_batch(*rank.split)}"
