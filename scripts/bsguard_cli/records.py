"""The files of a run, as types: what a field is called, its unit and what it may hold. Data only.

Sizes in bytes, batches in samples, times RFC 3339 in UTC, `mono_ns` from CLOCK_MONOTONIC. Unknown fields are ignored, and
one that is missing or null is None: a file of a newer or an older bsguard is read as far as it goes. A field that is there
with a wrong type or an impossible value makes the file unusable. The schemas are in docs/formats.
"""

from __future__ import annotations

from typing import Annotated, Any, Optional, Union

from msgspec import Meta, Struct

MOST = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Device = Annotated[int, Meta(ge=0, le=63)]
Word = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=65536)]
Texts = Annotated[list[Text], Meta(max_length=4096)]
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$")]


class Previous(Struct, frozen=True):
    sequence: Optional[Count] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None


class Trigger(Struct, frozen=True):
    api: Optional[Word] = None
    bytes: Optional[Count] = None
    device: Optional[Device] = None
    phase: Optional[Word] = None
    step: Optional[Count] = None
    site: Optional[Count] = None


class Entry(Struct, frozen=True):
    device: Optional[Device] = None
    boundary: Optional[Text] = None
    signature: Optional[Text] = None
    batch: Optional[Positive] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None


class Control(Struct, frozen=True):
    """control.json: what is in force now."""

    schema: Word
    sequence: Positive
    pid: Positive
    rank: Optional[Count] = None
    time: Optional[Time] = None
    reason: Optional[Word] = None
    batch: Optional[Positive] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None
    previous: Optional[Previous] = None
    trigger: Optional[Trigger] = None
    exactness: Optional[Word] = None
    entries: Annotated[list[Entry], Meta(max_length=4096)] = []


class DeviceFact(Struct, frozen=True):
    device: Optional[Device] = None
    name: Optional[Text] = None
    total_bytes: Optional[Count] = None
    driver: Optional[Count] = None


class Event(Struct, frozen=True):
    """A line of events.jsonl, whatever its type: `type` says which of the fields are there."""

    schema: Word
    type: Word
    time: Time
    mono_ns: Annotated[int, Meta(ge=0, le=MOST)]
    seq: Optional[Count] = None
    pid: Optional[Positive] = None
    rank: Optional[Count] = None
    version: Any = None  # of bsguard (start), or of a driver call (unhooked)
    command: Optional[Text] = None
    driver: Optional[Count] = None
    devices: Annotated[list[DeviceFact], Meta(max_length=64)] = []
    framework: Optional[Text] = None
    mode: Optional[Word] = None
    device: Optional[Device] = None
    live_bytes: Optional[Count] = None
    peak_bytes: Optional[Count] = None
    allocated_peak_bytes: Optional[Count] = None
    free_bytes: Optional[Count] = None
    request_bytes: Optional[Count] = None
    step: Optional[Count] = None
    phase: Optional[Word] = None
    site: Optional[Count] = None
    api: Optional[Word] = None
    attempts: Optional[Count] = None
    sequence: Optional[Count] = None
    reason: Optional[Word] = None
    batch: Optional[Positive] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None
    why: Optional[Text] = None
    boundary: Optional[Text] = None
    signature: Optional[Text] = None
    exactness: Optional[Word] = None
    obeyed: Optional[bool] = None
    ooms: Optional[Count] = None
    absorbed: Optional[Count] = None
    rescued_steps: Optional[Count] = None


class Oom(Struct, frozen=True):
    time: Optional[Time] = None
    verdict: Optional[Word] = None
    answer: Optional[Word] = None
    device: Optional[Device] = None
    step: Optional[Count] = None
    phase: Optional[Word] = None
    api: Optional[Word] = None
    request_bytes: Optional[Count] = None
    attempts: Optional[Count] = None
    site: Optional[Count] = None
    boundary: Optional[Text] = None
    batch: Optional[Positive] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None
    exactness: Optional[Word] = None
    because: Optional[Text] = None
    exception: Optional[Text] = None
    signature: Optional[Text] = None
    thread: Optional[Count] = None
    python_stack: Texts = []


class Memory(Struct, frozen=True):
    capacity_bytes: Optional[Count] = None
    free_bytes: Optional[Count] = None
    live_bytes: Optional[Count] = None
    peak_bytes: Optional[Count] = None
    not_in_ledger_bytes: Optional[Count] = None
    live_count: Optional[Count] = None


class Process(Struct, frozen=True):
    pid: Optional[Positive] = None
    name: Optional[Text] = None
    bytes: Optional[Count] = None


class Others(Struct, frozen=True):
    total: Optional[Count] = None
    processes: Annotated[list[Process], Meta(max_length=4096)] = []


class Holder(Struct, frozen=True):
    bytes: Count
    api: Optional[Word] = None
    step: Optional[Count] = None
    phase: Optional[Word] = None
    site: Optional[Count] = None
    count: Optional[Count] = None


class Site(Struct, frozen=True):
    site: Count
    frames: Annotated[list[Text], Meta(max_length=1024)] = []
    python: Annotated[list[Text], Meta(max_length=1024)] = []


class Decision(Struct, frozen=True):
    sequence: Optional[Count] = None
    time: Optional[Time] = None
    reason: Optional[Word] = None
    boundary: Optional[Text] = None
    batch: Optional[Positive] = None
    micro_batch: Optional[Positive] = None
    accumulation_steps: Optional[Positive] = None
    why: Optional[Text] = None


class Verdict(Struct, frozen=True):
    outcome: Optional[Word] = None
    cause: Optional[Word] = None
    culprit: Optional[Text] = None
    cause_bytes: Optional[Count] = None
    fits_micro_batch: Optional[Count] = None


class Part(Struct, frozen=True):
    part: Word
    bytes: Count


class Accounting(Struct, frozen=True):
    """Parts of the device that add up to its capacity."""

    capacity_bytes: Optional[Count] = None
    parts: Annotated[list[Part], Meta(max_length=64)] = []
    sum_bytes: Optional[Count] = None


class State(Struct, frozen=True):
    parameter_bytes: Optional[Count] = None
    gradient_bytes: Optional[Count] = None
    optimizer_bytes: Optional[Count] = None


class Point(Struct, frozen=True):
    micro_batch: Count
    peak_bytes: Count
    steps: Optional[Count] = None


class Fit(Struct, frozen=True):
    """peak = fixed_bytes + per_sample_bytes x micro-batch."""

    fixed_bytes: Count
    per_sample_bytes: Count
    method: Optional[Word] = None
    peaks_of: Optional[Word] = None
    points: Annotated[list[Point], Meta(max_length=4096)] = []
    margin_bytes: Optional[Count] = None
    error_permille: Optional[Count] = None
    available_bytes: Optional[Count] = None
    largest_micro_batch: Optional[Count] = None


class Group(Struct, frozen=True):
    """Live allocations of one site and phase."""

    bytes: Count
    site: Optional[Count] = None
    phase: Optional[Word] = None
    allocations: Optional[Count] = None
    first_step: Optional[Count] = None
    last_step: Optional[Count] = None


class Groups(Struct, frozen=True):
    total_bytes: Optional[Count] = None
    listed_bytes: Optional[Count] = None
    with_site_bytes: Optional[Count] = None
    rows: Annotated[list[Group], Meta(max_length=4096)] = []


class Growth(Struct, frozen=True):
    """What was allocated since the last good step, and what happened between steps over the run."""

    trend: Optional[Word] = None
    steps: Optional[Count] = None
    held_first_bytes: Optional[Count] = None
    held_last_bytes: Optional[Count] = None
    bytes_per_step: Optional[Annotated[int, Meta(ge=-MOST, le=MOST)]] = None
    last_good_step: Optional[Count] = None
    since_bytes: Optional[Count] = None


class Held(Struct, frozen=True):
    """A container of the program that holds device tensors from step to step."""

    what: Text
    tensors: Optional[Count] = None
    bytes: Optional[Count] = None


class Advice(Struct, frozen=True):
    text: Text
    measure: Optional[Word] = None
    source: Optional[Text] = None


class Totals(Struct, frozen=True):
    ooms: Optional[Count] = None
    absorbed: Optional[Count] = None
    rescued_steps: Optional[Count] = None
    unrescued: Optional[Count] = None


class Report(Struct, frozen=True):
    """report.json: one OOM and what surrounded it. `oom` is None in a summary of a run without one."""

    schema: Word
    pid: Positive
    why: Optional[Word] = None
    time: Optional[Time] = None
    rank: Optional[Count] = None
    version: Optional[Word] = None
    mode: Optional[Word] = None
    command: Optional[Text] = None
    framework: Optional[Text] = None
    device: Optional[DeviceFact] = None
    oom: Optional[Oom] = None
    memory: Optional[Memory] = None
    others: Optional[Others] = None
    holders: Annotated[list[Holder], Meta(max_length=4096)] = []
    holders_bytes: Optional[Count] = None
    sites: Annotated[list[Site], Meta(max_length=4096)] = []
    decisions: Annotated[list[Decision], Meta(max_length=4096)] = []
    totals: Optional[Totals] = None
    verdict: Optional[Verdict] = None
    accounting: Optional[Accounting] = None
    state: Optional[State] = None
    fit: Optional[Fit] = None
    groups: Optional[Groups] = None
    growth: Optional[Growth] = None
    held: Annotated[list[Held], Meta(max_length=4096)] = []
    advice: Annotated[list[Union[Text, Advice]], Meta(max_length=256)] = []
    missing: Texts = []
