"""A trace in Perfetto's own format: counters of memory and micro-batch, slices for steps, instants for OOMs and decisions.

Written with Perfetto's own protobuf messages. One process a rank; times are CLOCK_MONOTONIC, as the events have them.
"""

from __future__ import annotations

from typing import Optional

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BuiltinClock,
    CounterDescriptor,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from bsguard_cli.errors import Bad
from bsguard_cli.records import Event
from bsguard_cli.runs import Rank, Run
from bsguard_cli.words import clean, split

SEQUENCE = 1
MOST_PID = 2**31 - 1
COUNTERS = (
    ("live at the driver", "live_bytes", CounterDescriptor.UNIT_SIZE_BYTES),
    ("high-water mark at the driver", "peak_bytes", CounterDescriptor.UNIT_SIZE_BYTES),
    ("allocated by the framework, peak of the step", "allocated_peak_bytes", CounterDescriptor.UNIT_SIZE_BYTES),
    ("free on the device", "free_bytes", CounterDescriptor.UNIT_SIZE_BYTES),
    ("micro-batch", "micro_batch", CounterDescriptor.UNIT_COUNT),
    ("accumulation steps", "accumulation_steps", CounterDescriptor.UNIT_COUNT),
)
_OF_EVENTS = ("mark", "step", "oom", "decision")
_INSTANTS = ("oom", "absorbed", "decision", "applied", "refused", "disarmed", "request", "report", "start", "stop")


class _Builder:
    def __init__(self) -> None:
        self.trace = Trace()
        self.uuid = 0

    def packet(self, at: Optional[int] = None) -> TracePacket:
        made = self.trace.packet.add()
        made.trusted_packet_sequence_id = SEQUENCE
        if at is not None:
            made.timestamp = at
            made.timestamp_clock_id = BuiltinClock.BUILTIN_CLOCK_MONOTONIC
        return made

    def track(self, name: str, parent: Optional[int] = None) -> TrackDescriptor:
        self.uuid += 1
        descriptor = self.packet().track_descriptor
        descriptor.uuid = self.uuid
        descriptor.name = name
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor


def _title(event: Event) -> str:
    if event.type == "decision":
        return f"{event.reason or 'decision'}: {split(event.batch, event.micro_batch, event.accumulation_steps)}"
    if event.type == "oom":
        return f"OOM in {event.phase or 'a phase that is not recorded'}"
    return event.type


def _instant(builder: _Builder, track: int, event: Event) -> None:
    made = builder.packet(event.mono_ns).track_event
    made.type = TrackEvent.TYPE_INSTANT
    made.track_uuid = track
    made.name = clean(_title(event), 200)
    for field in (
        "step",
        "request_bytes",
        "free_bytes",
        "live_bytes",
        "attempts",
        "api",
        "boundary",
        "why",
        "exactness",
    ):
        value = getattr(event, field)
        if value is None:
            continue
        note = made.debug_annotations.add()
        note.name = field
        if isinstance(value, int):
            note.uint_value = value
        else:
            note.string_value = clean(value, 1000)


def _steps(builder: _Builder, track: int, rank: Rank) -> None:
    """A step ends at its event and is taken to begin at the one before."""
    begun: Optional[int] = None
    for event in rank.events("step"):
        if begun is not None and begun < event.mono_ns:
            for kind, at in ((TrackEvent.TYPE_SLICE_BEGIN, begun), (TrackEvent.TYPE_SLICE_END, event.mono_ns)):
                made = builder.packet(at).track_event
                made.type = kind
                made.track_uuid = track
                if kind == TrackEvent.TYPE_SLICE_BEGIN:
                    made.name = f"step {event.step}" if event.step else "step"
        begun = event.mono_ns


def _rank(builder: _Builder, rank: Rank, number: int) -> None:
    process = builder.track("")
    process.ClearField("name")
    process.process.pid = min(rank.pid or number + 1, MOST_PID)
    process.process.process_name = clean(" ".join(filter(None, ["bsguard", rank.name])), 200)
    steps = builder.track("steps", process.uuid).uuid
    instants = builder.track("OOMs and decisions", process.uuid).uuid
    _steps(builder, steps, rank)
    for event in rank.events(*_INSTANTS):
        _instant(builder, instants, event)
    for name, field, unit in COUNTERS:
        events = [event for event in rank.events(*_OF_EVENTS) if getattr(event, field) is not None]
        if not events:
            continue
        track = builder.track(name, process.uuid)
        track.counter.unit = unit
        for event in events:
            made = builder.packet(event.mono_ns).track_event
            made.type = TrackEvent.TYPE_COUNTER
            made.track_uuid = track.uuid
            made.counter_value = getattr(event, field)


def export(run: Run) -> bytes:
    """The trace of a run."""
    builder = _Builder()
    first = builder.packet()
    first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for number, rank in enumerate(run.ranks):
        _rank(builder, rank, number)
    if not any(rank.last for rank in run.ranks):
        raise Bad(f"{run.folder} has no events")
    return builder.trace.SerializeToString()
