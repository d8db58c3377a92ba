"""Reads files that anybody may have written: a run folder can come from another machine, a full disk or a joker.

Only plain files are opened, links are not followed, sizes are bounded, and whatever is wrong is one BadInput that names the
file. Nothing here trusts a name, a size or a number that a file holds. Depends on records.py.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Optional, TypeVar

import msgspec

from bsguard_cli.errors import BadInput
from bsguard_cli.records import Control, Event, Report
from bsguard_cli.words import a

MOST_BYTES = 16 << 20  # of a file that is read whole: what the library writes stays below 1 MiB
MOST_LINE = 1 << 20
MOST_EVENTS_BYTES = 4 << 30  # some months of steps

T = TypeVar("T")


def open_plain(path: Path, most: int) -> Optional[BinaryIO]:
    """A plain file, opened; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise BadInput(f"{path} cannot be read: {what}") from None
    except ValueError as error:  # a NUL in the name
        raise BadInput(f"{path} cannot be read: {error}") from None
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise BadInput(f"{path} is not a plain file: a run has only such, is it another folder?")
    if state.st_size > most:
        os.close(handle)
        raise BadInput(f"{path} has {state.st_size} bytes: more than the {most} that are read")
    return os.fdopen(handle, "rb")


def _read(path: Path) -> Optional[bytes]:
    file = open_plain(path, MOST_BYTES)
    if file is None:
        return None
    with file:
        try:
            data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise BadInput(f"{path} grows while it is read, past {MOST_BYTES} bytes")
    return data


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, where: str, kind: str) -> T:
    """A record of a schema "bsguard.KIND/1"."""
    try:
        record = decoder.decode(data)
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be {a(kind)} of bsguard") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{where} is not {a(kind)} of bsguard: {error}") from None
    schema: str = record.schema  # type: ignore[attr-defined]
    if schema != f"bsguard.{kind}/1":
        newer = schema.startswith(f"bsguard.{kind}/")
        way_out = "update bsguard to read it" if newer else "is it another file?"
        raise BadInput(f'{where} has the schema "{schema}", not "bsguard.{kind}/1": {way_out}')
    return record


_CONTROL = msgspec.json.Decoder(Control)
_REPORT = msgspec.json.Decoder(Report)
_EVENT = msgspec.json.Decoder(Event)


def read_control(folder: Path) -> Optional[Control]:
    """control.json of a folder; None where there is none."""
    path = folder / "control.json"
    data = _read(path)
    return None if data is None else _decode(_CONTROL, data, str(path), "control")


def read_report(folder: Path) -> Optional[Report]:
    """report.json of a folder; None where there is none."""
    path = folder / "report.json"
    data = _read(path)
    return None if data is None else _decode(_REPORT, data, str(path), "report")


def read_text(path: Path) -> Optional[str]:
    """A text file, what is no UTF-8 in it replaced; None where there is none."""
    data = _read(path)
    return None if data is None else data.decode("utf-8", "replace")


@dataclass
class Place:
    """How far the events of a growing file were read."""

    inode: int = 0
    offset: int = 0
    lines: int = 0


def read_events(folder: Path, notes: list[str], place: Optional[Place] = None) -> Iterator[Event]:
    """The events of a folder, one at a time. A last line that was cut off is told in `notes`: its job was killed.

    With a place only those behind it, and the place moves with them; a last line that is not whole is then read when it is.
    Another file in its stead, or a shorter one, is read from its beginning, and the place says so: its lines count from 0.
    """
    path = folder / "events.jsonl"
    file = open_plain(path, MOST_EVENTS_BYTES)
    if file is None:
        return
    with file:
        number = 0
        if place is not None:
            state = os.fstat(file.fileno())
            if place.inode != state.st_ino or place.offset > state.st_size:
                place.inode, place.offset, place.lines = state.st_ino, 0, 0
            number = place.lines
            file.seek(place.offset)
        while True:
            try:
                line = file.readline(MOST_LINE + 1)
            except OSError as error:
                raise BadInput(f"{path} cannot be read: {error.strerror}") from None
            if not line:
                return
            number += 1
            if len(line) > MOST_LINE:
                raise BadInput(f"{path}, line {number}: longer than {MOST_LINE} bytes")
            if not line.endswith(b"\n") and place is not None:
                return
            if not line.endswith(b"\n") and number > 1:
                notes.append(f"{path}: the last line is cut off; it is left out")
                return
            event = _decode(_EVENT, line, f"{path}, line {number}", "event")
            if place is not None:
                place.offset, place.lines = place.offset + len(line), number
            yield event
