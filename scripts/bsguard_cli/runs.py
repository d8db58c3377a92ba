"""A run and its ranks: which folder is meant, and what its files say. Depends on reading.py; writes nothing.

A run is a folder with control.json, events.jsonl or report.json, or with folders rank<N>/ that have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from bsguard_cli.errors import BadInput
from bsguard_cli.reading import Place, read_control, read_events, read_report
from bsguard_cli.records import Control, Event, Report, Site

FILES = ("control.json", "events.jsonl", "report.json")
MOST_RANKS = 4096
KEPT = 4096  # events of one type that are kept; of more, neighbours are merged

_RUN_NAME = re.compile(r"^\d{8}T\d{6}Z-(\d+)")
_RANK_NAME = re.compile(r"^rank(\d{1,6})$")


class Kept:
    """Events in order, few enough to draw: where there are too many, of two neighbours the larger stays."""

    def __init__(self, larger: Callable[[Event], int]) -> None:
        self.events: list[Event] = []
        self.total = 0
        self._every = 1
        self._pending: list[Event] = []
        self._larger = larger

    def add(self, event: Event) -> None:
        self.total += 1
        self._pending.append(event)
        if len(self._pending) < self._every:
            return
        self.events.append(max(self._pending, key=self._larger))
        self._pending.clear()
        if len(self.events) >= 2 * KEPT:
            pairs = zip(self.events[::2], self.events[1::2])
            self.events = [max(pair, key=self._larger) for pair in pairs]
            self._every *= 2

    def __iter__(self):
        return iter([*self.events, *self._pending])

    def __len__(self) -> int:
        return len(self.events) + len(self._pending)


def _peak(event: Event) -> int:
    return event.allocated_peak_bytes or event.peak_bytes or event.live_bytes or 0


@dataclass
class Rank:
    """What one process of a run left behind. number: its rank; None where the run has none."""

    folder: Path
    number: Optional[int]
    control: Optional[Control] = None
    report: Optional[Report] = None
    start: Optional[Event] = None
    stop: Optional[Event] = None
    first: Optional[Event] = None
    last: Optional[Event] = None
    kept: dict[str, Kept] = field(default_factory=dict)
    _all_peaks: dict[int, int] = field(default_factory=dict)
    _grown_peaks: dict[int, int] = field(default_factory=dict)
    _peak_before: int = 0
    _peaks_fall: bool = False
    _oom_in_step: bool = False
    notes: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Takes one more event in."""
        self.first = self.first or event
        self.last = event
        if event.type == "start":
            self.start = event
        elif event.type == "stop":
            self.stop = event
        self.kept.setdefault(event.type, Kept(_peak)).add(event)
        if event.type == "oom":
            self._oom_in_step = True
        if event.type == "step":
            self._take_peak(event)

    def _take_peak(self, event: Event) -> None:
        """A point of the fit. Not at the first step: an optimizer makes its state at its end, which no later step is
        without. Not at a step with an OOM: what was tried in vain is in its peak."""
        peak, size = event.allocated_peak_bytes or 0, event.micro_batch or 0
        self._peaks_fall |= 0 < peak < self._peak_before
        if peak and size and (event.step or 0) > 1 and not self._oom_in_step:
            self._all_peaks[size] = max(peak, self._all_peaks.get(size, 0))
            if peak > self._peak_before:
                self._grown_peaks[size] = peak
        self._peak_before = peak or self._peak_before
        self._oom_in_step = False

    @property
    def micro_batch_peaks(self) -> dict[int, int]:
        """Micro-batch -> the most bytes that the framework had in use at it. Where the figure is that of the whole run so
        far, and so never falls, only the steps in which it grew say anything about their own size."""
        return self._all_peaks if self._peaks_fall else self._grown_peaks

    def events(self, *types: str) -> list[Event]:
        """The events of these types, in the order of time."""
        found = [event for kind in types for event in self.kept.get(kind, ())]
        return sorted(found, key=lambda event: (event.mono_ns, event.seq or 0))

    def total(self, kind: str) -> int:
        """How many events of a type there were."""
        return self.kept[kind].total if kind in self.kept else 0

    @property
    def name(self) -> str:
        return "" if self.number is None else f"rank {self.number}"

    @property
    def pid(self) -> Optional[int]:
        for source in (self.start, self.control, self.report):
            if source and source.pid:
                return source.pid
        return None

    @property
    def alive(self) -> bool:
        """Whether the process is, as far as one sees from here, still at it."""
        if self.stop is not None or self.pid is None:
            return False
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return True

    @property
    def capacity(self) -> Optional[int]:
        """Bytes of the device that the run is about."""
        memory = self.report.memory if self.report else None
        if memory and memory.capacity_bytes:
            return memory.capacity_bytes
        device = self.report.device if self.report else None
        if device and device.total_bytes:
            return device.total_bytes
        sizes = [device.total_bytes for device in (self.start.devices if self.start else []) if device.total_bytes]
        return max(sizes) if sizes else None

    @property
    def device_name(self) -> Optional[str]:
        device = self.report.device if self.report else None
        if device is None and self.start and self.start.devices:
            device = self.start.devices[0]
        return device.name if device else None

    @property
    def peak(self) -> Optional[int]:
        """The most bytes that the process held at the driver."""
        peaks = [event.peak_bytes for event in self.events("mark", "step", "stop") if event.peak_bytes]
        memory = self.report.memory if self.report else None
        if memory and memory.peak_bytes:
            peaks.append(memory.peak_bytes)
        return max(peaks) if peaks else None

    @property
    def allocated_peak(self) -> Optional[int]:
        peaks = [event.allocated_peak_bytes for event in self.kept.get("step", ()) if event.allocated_peak_bytes]
        return max(peaks) if peaks else None

    @property
    def ooms(self) -> int:
        return (self.stop.ooms if self.stop else None) or self.total("oom")

    @property
    def absorbed(self) -> int:
        return (self.stop.absorbed if self.stop else None) or self.total("absorbed")

    @property
    def rescued_steps(self) -> int:
        if self.stop and self.stop.rescued_steps is not None:
            return self.stop.rescued_steps
        totals = self.report.totals if self.report else None
        told = (totals.rescued_steps if totals else None) or 0
        # While it runs, or where it was cut off, its steps say so: memory ran out in them, and they ended.
        ran_out = {event.step for event in self.events("oom") if event.phase != "evaluation"}
        return max(told, len(ran_out & {event.step for event in self.events("step")}))

    @property
    def unrescued(self) -> int:
        """OOMs that ended the job, or a part of it."""
        report = self.report
        if report is None:
            return 0
        if report.totals and report.totals.unrescued is not None:
            return report.totals.unrescued
        return int(report.oom is not None and report.oom.verdict == "unrescued")

    @property
    def seconds(self) -> Optional[float]:
        return (self.last.mono_ns - self.first.mono_ns) / 1e9 if self.first and self.last else None

    @property
    def split(self) -> tuple[Optional[int], Optional[int], Optional[int]]:
        """(batch, micro-batch, accumulation steps) in force."""
        steps = self.kept.get("step")
        last = list(steps)[-1] if steps else None
        source = self.control or last
        return (source.batch, source.micro_batch, source.accumulation_steps) if source else (None, None, None)

    def site(self, number: Optional[int]) -> Optional[Site]:
        """The stack of an allocation site, where the report has it."""
        sites = self.report.sites if self.report else []
        return next((site for site in sites if number is not None and site.site == number), None)

    @property
    def advice(self) -> list[str]:
        """What would help, as the report says it."""
        pieces = self.report.advice if self.report else []
        return [piece if isinstance(piece, str) else piece.text for piece in pieces]


@dataclass
class Run:
    """A run: its folder, and its ranks in order (one without a number where it has none)."""

    folder: Path
    ranks: list[Rank]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def notes(self) -> list[str]:
        return [note for rank in self.ranks for note in rank.notes]

    @property
    def narrowest(self) -> Optional[Rank]:
        """The rank that has the least room: that runs in the most chunks, then that left the least free at its peak.
        None where it is one alone, or where nothing tells the ranks apart."""

        def room(rank: Rank) -> tuple[int, int]:
            return -(rank.split[2] or 1), rank.capacity - rank.peak

        known = sorted((rank for rank in self.ranks if rank.capacity and rank.peak is not None), key=room)
        return known[0] if len(known) > 1 and room(known[0]) != room(known[1]) else None

    @property
    def worst(self) -> Rank:
        """The rank that a person has to look at first."""
        return max(self.ranks, key=lambda rank: (rank.unrescued, rank.ooms, rank.peak or 0))


def parent_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where runs lie: BSGUARD_DIR, or ./bsguard."""
    return Path(environment.get("BSGUARD_DIR") or "bsguard")


def _is_link(path: Path) -> bool:
    return os.path.islink(path)


def _rank_folders(folder: Path) -> list[tuple[int, Path]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _RANK_NAME.match(entry.name)
                if match and entry.is_dir(follow_symlinks=False):
                    found.append((int(match[1]), Path(entry.path)))
    except OSError as error:
        raise BadInput(f"{folder} cannot be read: {error.strerror}") from None
    if len(found) > MOST_RANKS:
        raise BadInput(f"{folder} has {len(found)} ranks: more than the {MOST_RANKS} that are read")
    return sorted(found)


def _has_files(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in FILES)


def is_run(folder: Path) -> bool:
    """Whether a folder is one of a run."""
    return folder.is_dir() and (_has_files(folder) or any(_has_files(path) for _, path in _rank_folders(folder)))


def runs_below(parent: Path) -> list[Path]:
    """The runs of a folder, oldest first. Links are left out."""
    try:
        names = [name for name in os.listdir(parent) if _RUN_NAME.match(name)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise BadInput(f"{parent} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return [parent / name for name in sorted(names) if not _is_link(parent / name) and is_run(parent / name)]


def folder_of_pid(pid: int, parents: list[Path]) -> Optional[Path]:
    """The newest run of a process, or of a launcher of that pid, or that has a rank of that pid."""
    for parent in parents:
        runs = runs_below(parent)
        for run in reversed(runs):
            match = _RUN_NAME.match(run.name)
            if match and int(match[1]) == pid:
                return run
        for run in reversed(runs):
            for _, folder in _rank_folders(run):
                control = read_control(folder)
                if control and control.pid == pid:
                    return folder
    return None


def find(argument: Optional[str]) -> Path:
    """The folder that RUN means: a run, the newest run of a folder of runs, the name of a run; None: the newest run."""
    parent = parent_folder()
    if argument is None:
        runs = runs_below(parent)
        if not runs:
            raise BadInput(f"there is no run below {parent}: name one, or set BSGUARD_DIR to where the runs are")
        return runs[-1]
    try:
        given = Path(argument)
        if not given.is_dir() and (parent / argument).is_dir() and os.sep not in argument:
            given = parent / argument
        if not given.exists():
            raise BadInput(
                f"{argument} is not there: name the folder of a run, or leave RUN out for the newest below {parent}"
            )
        if not given.is_dir():
            raise BadInput(f"{argument} is not a folder: name the folder of a run")
        if is_run(given):
            return given
    except (OSError, ValueError) as error:
        raise BadInput(f"{argument!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    runs = runs_below(given)
    if not runs:
        raise BadInput(f"{argument} is no run of bsguard: there is none of {', '.join(FILES)} in it")
    return runs[-1]


class Followed:
    """A process's files that grow while one looks on: what was read once is not read again."""

    def __init__(self, folder: Path, number: Optional[int]) -> None:
        self.folder, self.number = folder, number
        self._place = Place()
        self._rank = Rank(folder, number)

    def read(self) -> Rank:
        """All that is known by now. The same object each time, until another file of events takes the place of the first."""
        rank = self._rank
        for event in read_events(self.folder, rank.notes, self._place):
            if self._place.lines == 1 and rank.last is not None:
                rank = self._rank = Rank(self.folder, self.number)  # another file, or one that was begun anew
            rank.take(event)
        rank.control, rank.report = read_control(self.folder), read_report(self.folder)
        return rank


def load_rank(folder: Path, number: Optional[int]) -> Rank:
    """Reads the files of one process."""
    rank = Rank(folder, number, control=read_control(folder), report=read_report(folder))
    for event in read_events(folder, rank.notes):
        rank.take(event)
    return rank


def load(folder: Path, one: Callable[[Path, Optional[int]], Rank] = load_rank) -> Run:
    """Reads a run, all its ranks. one: reads the files of one process."""
    ranks = _rank_folders(folder)
    loaded = [one(path, number) for number, path in ranks if _has_files(path)]
    if _has_files(folder) or not loaded:
        match = _RANK_NAME.match(folder.name)
        loaded.insert(0, one(folder, int(match[1]) if match else None))
    if not any(rank.control or rank.report or rank.last for rank in loaded):
        raise BadInput(f"{folder} says nothing yet: its files are empty")
    return Run(folder, loaded)
