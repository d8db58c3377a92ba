"""The HTML page of a run: one file, nothing fetched, no script. Every text of a run is escaped by the template engine, and
cleaned before; what a browser may load is nothing at all, which the page itself says (Content-Security-Policy)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jinja2
from markupsafe import Markup

from bsguard_cli import charts
from bsguard_cli.flame import stacks
from bsguard_cli.runs import Rank, Run
from bsguard_cli.summary import accounting, decisions, fit_line, holders, is_bad, own_frames, verdict
from bsguard_cli.words import clean, known, of_batch, seconds, size, split

MOST_RANKS = 16  # that are shown in full
SMALLEST = 0.003  # of the whole: a narrower piece of the flame graph is no wider than a line
MOST_LINES = 40  # of a table
_COLOURS = ("#f6c28b", "#f4a582", "#fddc9b", "#e9b384", "#f7b267")
_PART_COLOURS = ("#2f6db3", "#a9c8ea", "#8e6bb0", "#7f8c8d", "#d98c5f", "#b7a08a")


@dataclass
class Node:
    """A frame of the flame graph, its bytes those of all above it."""

    name: str
    bytes: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    def shown(self, whole: int) -> list[Node]:
        """The children that are wide enough to be seen, the widest first."""
        wide = [child for child in self.children.values() if child.bytes >= whole * SMALLEST]
        return sorted(wide, key=lambda child: -child.bytes)


def _tree(rank: Rank) -> Node:
    root = Node("live bytes")
    for frames, count in stacks(rank):
        root.bytes += count
        node = root
        for frame in frames:
            node = node.children.setdefault(frame, Node(frame))
            node.bytes += count
    return root


def _flame(node: Node, whole: int, depth: int = 0) -> Markup:
    """A node and what is below it, as boxes inside boxes."""
    inner = Markup("").join(
        Markup('<div class="piece" style="width:{:.3f}%">{}</div>').format(
            100 * child.bytes / max(node.bytes, 1), _flame(child, whole, depth + 1)
        )
        for child in node.shown(whole)
    )
    label = Markup('<span class="frame" tabindex="0" style="background:{}" title="{}, {}">{}</span>').format(
        _COLOURS[depth % len(_COLOURS)], node.name, size(node.bytes), node.name
    )
    return label + (Markup('<div class="pieces">{}</div>').format(inner) if inner else Markup(""))


def _parts(rank: Rank) -> list[dict[str, Any]]:
    parts = [part for part in accounting(rank) if part[1] > 0]
    whole = sum(count for _, count in parts)
    colours = iter(_PART_COLOURS * (len(parts) // len(_PART_COLOURS) + 1))
    return [
        {
            "what": what,
            "size": size(count),
            "share": 100 * count / whole,
            "colour": "#e8e8e8" if what == "free" else next(colours),
        }
        for what, count in parts
    ]


def _section(rank: Rank) -> dict[str, Any]:
    report = rank.report
    tree = _tree(rank)
    word, line = verdict(rank)
    facts = {
        "command": known((rank.start and rank.start.command) or (report and report.command) or None),
        "framework": known((rank.start and rank.start.framework) or (report and report.framework) or None),
        "device": f"{known(rank.device_name)}, {size(rank.capacity)}",
        "highest at the driver": size(rank.peak),
        "highest in the framework": size(rank.allocated_peak),
        "batch": split(*rank.split),
        "steps": f"{rank.total('step')} in {seconds(rank.seconds)}",
        "OOMs": f"{rank.ooms}, absorbed {rank.absorbed}, steps rescued {rank.rescued_steps}, not helped {rank.unrescued}",
    }
    return {
        "name": rank.name,
        "verdict": word,
        "line": clean(line),
        "bad": is_bad(rank),
        "facts": facts,
        "oom": report.oom if report else None,
        "stack": own_frames(report.oom.python_stack)[0] if report and report.oom else [],
        "fit": fit_line(rank),
        "parts": _parts(rank),
        "memory": Markup(charts.memory(rank) or ""),
        "micro_batch": Markup(charts.micro_batch(rank) or ""),
        "flame": _flame(tree, tree.bytes) if tree.bytes else None,
        "holders": holders(rank)[:MOST_LINES],
        "decisions": decisions(rank)[-MOST_LINES:],
        "growth": report.growth if report else None,
        "held": report.held[:MOST_LINES] if report else [],
        "advice": rank.advice,
        "missing": report.missing if report else [],
        "notes": rank.notes,
    }


def render(run: Run) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bsguard_cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean("" if value is None else value, 2000),
    )
    environment.filters.update(size=size, known=known)
    environment.globals.update(split=split, of_batch=of_batch)
    worst = run.worst
    ranks = sorted(run.ranks, key=lambda rank: rank is not worst)  # the rest keep their order
    return environment.get_template("report.html.j2").render(
        name=run.name,
        folder=str(run.folder),
        sections=[_section(rank) for rank in ranks[:MOST_RANKS]],
        left_out=max(0, len(ranks) - MOST_RANKS),
        legend=list(charts.LEGEND.values()),
    )
