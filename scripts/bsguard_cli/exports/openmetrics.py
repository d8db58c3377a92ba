"""OpenMetrics, for node_exporter's textfile collector: no time stamps, a handful of series a rank, names in docs/metrics.md.

The text is made by prometheus_client. What a run did not record is left out rather than called 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from bsguard_cli.fit import of_rank
from bsguard_cli.runs import Rank, Run
from bsguard_cli.words import clean

# name -> (type, unit, help, value of a rank)
SERIES = {
    "bsguard_up": ("gauge", "", "1 while the job's process is there, seen from where this was written.",
        lambda rank: int(rank.alive)),
    "bsguard_device_capacity": ("gauge", "bytes", "Memory of the device.", lambda rank: rank.capacity),
    "bsguard_device_peak": ("gauge", "bytes", "The most that the process held at the driver.", lambda rank: rank.peak),
    "bsguard_framework_allocated_peak": ("gauge", "bytes", "The most that the framework had in use in a step.",
        lambda rank: rank.allocated_peak),
    "bsguard_batch": ("gauge", "samples", "Batch of a step.", lambda rank: rank.split[0]),
    "bsguard_micro_batch": ("gauge", "samples", "Samples of one forward and backward.", lambda rank: rank.split[1]),
    "bsguard_accumulation_steps": ("gauge", "", "Pieces that a batch is run in.", lambda rank: rank.split[2]),
    "bsguard_fit_fixed": ("gauge", "bytes", "Memory that no micro-batch lowers, by the fit.",
        lambda rank: _fitted(rank, "fixed")),
    "bsguard_fit_per_sample": ("gauge", "bytes", "Memory of each sample, by the fit.",
        lambda rank: _fitted(rank, "per_sample")),
    "bsguard_last_event_timestamp": ("gauge", "seconds", "When the run last wrote an event.",
        lambda rank: _unix_time(rank)),
    "bsguard_steps": ("counter", "", "Training steps.", lambda rank: rank.total("step")),
    "bsguard_ooms": ("counter", "", "Out-of-memory errors that reached the framework's user.", lambda rank: rank.ooms),
    "bsguard_ooms_absorbed": ("counter", "", "Failed allocations that the framework got over by itself.",
        lambda rank: rank.absorbed),
    "bsguard_ooms_unrescued": ("counter", "", "Out-of-memory errors that could not be helped.",
        lambda rank: rank.unrescued),
    "bsguard_steps_rescued": ("counter", "", "Steps that were run again in pieces.", lambda rank: rank.rescued_steps),
    "bsguard_decisions": ("counter", "", "Changes of control.json.", lambda rank: rank.total("decision")),
}  # fmt: skip


def _fitted(rank: Rank, name: str):
    fit = of_rank(rank)
    return getattr(fit, name) if fit and fit.exact else None


def _unix_time(rank: Rank):
    from datetime import datetime, timezone

    times = [record.time for record in (rank.last, rank.control, rank.report) if record and record.time]
    try:
        found = [datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc).timestamp() for text in times]
    except ValueError:
        return None
    return max(found) if found else None


class _Collector:
    def __init__(self, run: Run) -> None:
        self.run = run

    def describe(self) -> list:
        return []

    def collect(self) -> Iterator:
        base = ["run", "rank"]
        info = InfoMetricFamily("bsguard_run", "What ran.", labels=base)
        families = {}
        for name, (kind, unit, text, _) in SERIES.items():
            family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
            families[name] = family(f"{name}_{unit}" if unit else name, text, labels=base, unit=unit)
        for rank in self.run.ranks:
            labels = [clean(self.run.name, 200), "" if rank.number is None else str(rank.number)]
            report, start = rank.report, rank.start
            facts = {
                "command": (start and start.command) or (report and report.command),
                "framework": (start and start.framework) or (report and report.framework),
                "device": rank.device_name,
                "mode": (start and start.mode) or (report and report.mode),
            }
            info.add_metric(labels, {name: clean(value, 200) for name, value in facts.items() if value})
            for name, (*_, value_of) in SERIES.items():
                value = value_of(rank)
                if value is not None:
                    families[name].add_metric(labels, float(value))
        yield info
        yield from (family for family in families.values() if family.samples)


def export(run: Run) -> bytes:
    """The state of a run as it is now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(run))
    return generate_latest(registry)
