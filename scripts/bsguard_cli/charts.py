"""The plots of the HTML page, as SVG without a script: memory over time with OOMs and decisions marked, and the micro-batch.

Made by pygal; readable at the width of a phone, which is why they are small and say little in text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Optional
from xml.etree import ElementTree

import pygal
from pygal.style import Style

from bsguard_cli.records import Event
from bsguard_cli.runs import Rank
from bsguard_cli.words import clean, size, split

WIDTH, HEIGHT = 480, 260
MOST_POINTS = 600  # of a line: more than a screen has columns
MOST_MARKS = 200

IN_USE, IDLE, CAPACITY, OOM, DECISION, SIZE = "#2f6db3", "#a9c8ea", "#555555", "#c62828", "#ef8e00", "#2e7d32"
LEGEND = {
    "allocated": ("in use by the framework", IN_USE),
    "reserved": ("held at the driver", IDLE),
    "capacity": ("capacity of the device", CAPACITY),
    "oom": ("out of memory", OOM),
    "decision": ("decision", DECISION),
}

Points = list[tuple[float, float]]


def _style(*colours: str) -> Style:
    return Style(
        background="transparent",
        plot_background="transparent",
        font_family="system-ui, sans-serif",
        label_font_size=12,
        major_label_font_size=12,
        no_data_font_size=16,
        opacity="1",
        opacity_hover="1",
        transition="0s",
        colors=colours,
    )


def _chart(colours: list[str], top: float, labels: list[float], end: float, whole: bool) -> pygal.XY:
    return pygal.XY(
        style=_style(*colours),
        js=[],
        width=WIDTH,
        height=HEIGHT,
        margin=4,
        spacing=4,
        show_legend=False,
        show_dots=False,
        range=(0, top),
        include_x_axis=True,
        truncate_label=-1,
        show_minor_x_labels=False,
        x_labels_major_count=4,
        y_labels=labels,
        x_value_formatter=_clock(end),
        value_formatter=(lambda count: f"{count:.0f}") if whole else size,
        no_data_text="not recorded",
    )


def _clock(end: float) -> Callable[[float], str]:
    """How the seconds of an axis that ends at `end` are written."""
    if end < 10:
        return lambda at: f"{at:.1f} s"
    return (lambda at: f"{at:.0f} s") if end < 600 else (lambda at: f"{at / 60:.0f} min")


def _quarters(whole: float) -> list[float]:
    return [whole * part / 4 for part in range(5)]


def _svg(chart: pygal.XY, label: str) -> str:
    """The picture alone: pygal's script and its comments are taken out."""
    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            if not isinstance(child.tag, str) or child.tag.endswith("script"):
                parent.remove(child)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _thin(points: Points) -> Points:
    """Few enough points, the highest of each stretch."""
    if len(points) <= MOST_POINTS:
        return points
    every = -(-len(points) // MOST_POINTS)
    return [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]


def _origin(rank: Rank) -> int:
    return rank.first.mono_ns if rank.first else 0


def _line(rank: Rank, *fields: str, kinds: tuple[str, ...]) -> Points:
    """A figure over the seconds of a run."""
    origin = _origin(rank)
    points = []
    for event in rank.events(*kinds):
        value = next((found for found in (getattr(event, field) for field in fields) if found is not None), None)
        if value is not None:
            points.append(((event.mono_ns - origin) / 1e9, float(value)))
    return points


def _steps(points: Points) -> Points:
    """As stairs: a value holds until the next."""
    stairs: Points = []
    for at, value in points:
        if stairs:
            stairs.append((at, stairs[-1][1]))
        stairs.append((at, value))
    return stairs


def _marks(rank: Rank, kind: str, height: float) -> Iterator[dict]:
    origin = _origin(rank)
    for event in rank.events(kind)[-MOST_MARKS:]:
        yield {"value": ((event.mono_ns - origin) / 1e9, height), "label": _label(event), "formatter": _no_value}


def _no_value(_point: object) -> str:
    """A mark stands where there is room for it: its height is no figure of the run."""
    return ""


def _label(event: Event) -> str:
    if event.type == "oom":
        return clean(f"out of memory in {event.phase} at step {event.step}, {size(event.request_bytes)} asked for", 200)
    what = split(event.batch, event.micro_batch, event.accumulation_steps)
    return clean(f"{event.reason}: {what}: {event.why or ''}", 200)


def memory(rank: Rank) -> Optional[str]:
    """What was held over time, stacked: in use by the framework, held at the driver, capacity; OOMs and decisions marked."""
    reserved = _line(rank, "live_bytes", "peak_bytes", kinds=("mark", "step", "oom"))
    allocated = _line(rank, "allocated_peak_bytes", kinds=("step",))
    if len(reserved) < 2:
        return None
    highest = max(value for _, value in reserved + allocated)
    capacity, end = rank.capacity, max(at for at, _ in reserved)
    top = max(highest, float(capacity or 0)) * 1.08
    chart = _chart(
        [IDLE, IN_USE, CAPACITY, OOM, DECISION], top, _quarters(float(capacity or highest)), end, whole=False
    )
    chart.add("held at the driver", _thin(reserved), fill=True)
    chart.add("in use by the framework", _thin(allocated), fill=True)
    line = [(0.0, float(capacity)), (end, float(capacity))] if capacity else []
    chart.add("capacity", line, stroke_style={"width": 1.5, "dasharray": "6, 4"})
    ooms, decisions = list(_marks(rank, "oom", top * 0.965)), list(_marks(rank, "decision", top * 0.03))
    for name, marks in (("out of memory", ooms), ("decision", decisions)):
        chart.add(name, marks, stroke=False, show_dots=True, dots_size=5)
    return _svg(chart, f"Memory over time: at most {size(highest)} of {size(capacity)}")


def micro_batch(rank: Rank) -> Optional[str]:
    """The micro-batch over time."""
    points = _line(rank, "micro_batch", kinds=("step", "decision"))
    if len(points) < 2:
        return None
    highest = max(value for _, value in points)
    chart = _chart(
        [SIZE], highest * 1.08, sorted({0, *(value for _, value in points[-3:]), highest}), points[-1][0], whole=True
    )
    chart.add("micro-batch", _steps(_thin(points)), stroke_style={"width": 2})
    return _svg(chart, f"Micro-batch over time, at most {highest:.0f}")
