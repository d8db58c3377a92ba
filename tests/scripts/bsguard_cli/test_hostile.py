"""Truncated, alien and hostile files: refused in one line with exit status 2, and no traceback, by every subcommand."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from cli_support import RESCUED, full_report, started, write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Every way in which a run is read.
COMMANDS = {
    "report": ["report"],
    "report-json": ["report", "--json"],
    "report-text": ["report", "--text"],
    "report-html": ["report", "--html", "page.html"],
    "diff": ["diff", RESCUED],
    "watch": ["watch", "--once"],
    "watch-json": ["watch", "--once", "--json"],
    "plan": ["plan"],
    "set": ["set", "--micro-batch", "4", "--wait", "0"],
    "collapsed": ["export", "--format", "collapsed"],
    "perfetto": ["export", "--format", "perfetto", "-o", "trace"],
    "openmetrics": ["export", "--format", "openmetrics"],
    "csv": ["export", "--format", "csv"],
}
EVENT = {"schema": "bsguard.event/1", "time": "2026-11-30T18:30:12.001Z", "mono_ns": 1}


def a_file(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def spoil(run: Path, how: str) -> None:
    """Makes one file of a run unusable."""
    control, events, report = (run / name for name in ("control.json", "events.jsonl", "report.json"))
    head, tail = json.loads(control.read_text()), json.dumps(EVENT)[:-1]
    spoilers = {
        "truncated-control": lambda: a_file(control, control.read_bytes()[:-40]),
        "truncated-report": lambda: a_file(report, report.read_bytes()[:1000]),
        "empty-report": lambda: a_file(report, b""),
        "list": lambda: a_file(report, b"[1, 2]"),
        "null": lambda: a_file(control, b"null"),
        "binary": lambda: a_file(events, bytes(random.Random(1).randbytes(4096))),
        "binary-line": lambda: a_file(events, events.read_bytes() + b"\xff\xfe\x00\n"),
        "elf": lambda: shutil.copy("/bin/true", report),
        "deep-control": lambda: a_file(control, b"[" * 1_000_000),
        "deep-member": lambda: a_file(report, b'{"schema":"bsguard.report/1","pid":1,"more":' + b'{"a":' * 500_000),
        "deep-event": lambda: a_file(events, b'{"a":' * 150_000 + b"\n"),
        "nan": lambda: a_file(control, control.read_bytes().replace(b'"batch": 256', b'"batch": NaN', 1)),
        "infinity": lambda: a_file(report, report.read_bytes().replace(b'"attempts": 4', b'"attempts": Infinity', 1)),
        "float-overflow": lambda: a_file(
            report, report.read_bytes().replace(b'"attempts": 4', b'"attempts": 1e999', 1)
        ),
        "negative": lambda: a_file(control, json.dumps({**head, "batch": -1}).encode()),
        "huge-number": lambda: a_file(control, json.dumps({**head, "batch": 10**300}).encode()),
        "digits": lambda: a_file(
            control, control.read_bytes().replace(b'"batch": 256', b'"batch": ' + b"9" * 20_000, 1)
        ),
        "text-for-number": lambda: a_file(control, json.dumps({**head, "micro_batch": "64"}).encode()),
        "true-for-number": lambda: a_file(control, json.dumps({**head, "micro_batch": True}).encode()),
        "other-schema": lambda: a_file(control, json.dumps({**head, "schema": "somebody.else/1"}).encode()),
        "newer-schema": lambda: a_file(control, json.dumps({**head, "schema": "bsguard.control/2"}).encode()),
        "no-schema": lambda: a_file(report, b'{"pid": 1}'),
        "escape-schema": lambda: a_file(control, json.dumps({**head, "schema": "\x1b[2J\x1b]0;x\x07"}).encode()),
        "wrong-time": lambda: a_file(events, (tail + ',"type":"step","time":"yesterday"}\n').encode()),
        "long-line": lambda: a_file(events, (tail + ',"type":"' + "x" * (2 << 20) + '"}\n').encode()),
        "not-utf-8": lambda: a_file(control, control.read_bytes().replace(b"DigitNet", b"Digit\xff\xfe\xfd", 1)),
        "huge-file": lambda: os.truncate(report, 1 << 40),
        "huge-events": lambda: os.truncate(events, 1 << 40),
        "link": lambda: (report.unlink(), report.symlink_to("/etc/passwd")),
        "dangling-link": lambda: (control.unlink(), control.symlink_to("nowhere")),
        "link-to-itself": lambda: (events.unlink(), events.symlink_to("events.jsonl")),
        "folder": lambda: (report.unlink(), report.mkdir()),
        "fifo": lambda: (events.unlink(), os.mkfifo(events)),
        "device": lambda: (control.unlink(), control.symlink_to("/dev/zero")),
    }
    spoilers[how]()


# fmt: off
HOW = [
    "truncated-control", "truncated-report", "empty-report", "list", "null", "binary", "binary-line", "elf",
    "deep-control", "deep-member", "deep-event", "nan", "infinity", "float-overflow", "negative", "huge-number",
    "digits", "text-for-number", "true-for-number", "other-schema", "newer-schema", "no-schema", "escape-schema",
    "wrong-time", "long-line", "not-utf-8", "huge-file", "huge-events", "link", "dangling-link", "link-to-itself",
    "folder", "fifo", "device",
]
# fmt: on


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A copy of a good run, outside the folder that is written to."""
    return Path(shutil.copytree(RESCUED, tmp_path / "runs" / RESCUED.name))


@pytest.mark.parametrize("how", HOW)
def test_a_spoilt_file_is_refused_by_every_command(bsguard, spoilt: Path, how: str, tmp_path: Path) -> None:
    spoil(spoilt, how)
    for name, arguments in COMMANDS.items():
        said = bsguard(*arguments, spoilt)
        assert said.status == 2, (name, said)
        assert said.stdout == "" and said.stderr.startswith("bsguard: ") and said.stderr.count("\n") == 1, (name, said)
        assert spoilt.name in said.stderr and len(said.stderr) < 2100, (name, said)
        assert not [letter for letter in said.stderr if ord(letter) < 32 and letter != "\n"], (name, said)
    assert not (tmp_path / "page.html").exists() and not (tmp_path / "trace").exists()
    assert not (spoilt / "request.json").exists()


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_what_is_no_run_is_refused(bsguard, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "events.jsonl").touch()
    for run in (
        "empty",
        "file",
        "loop",
        "blank",
        "missing",
        "a\x1b[2Jb",
        "x" * 5000,
        "/dev/zero",
        "/proc/self/mem",
        "",
    ):
        said = bsguard(*arguments, run)
        assert said.status == 2, (run, said)
        assert said.stderr.startswith("bsguard: ") and said.stderr.count("\n") == 1, (run, said)
        assert "\x1b" not in said.stderr, (run, said)
    if not arguments[0].startswith(("diff", "watch", "set")):
        assert bsguard(*arguments).status == 2  # no run at all


def test_an_unreadable_file_is_refused(bsguard, spoilt: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (spoilt / "report.json").chmod(0)
    assert bsguard("report", spoilt).status == 2


def test_the_last_event_of_a_killed_job_may_be_cut_off(bsguard, spoilt: Path) -> None:
    path = spoilt / "events.jsonl"
    a_file(path, path.read_bytes()[:-30])
    said = bsguard("report", spoilt)
    assert said.status == 0 and "the last line is cut off" in said.stdout


def test_escapes_in_texts_do_not_reach_the_terminal(bsguard, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]8;;http://x\x07\x9b31m\u202ered\u2066[bold red]\r\n:smile:"
    report = full_report()
    report["command"] = report["oom"]["exception"] = report["device"]["name"] = evil
    report["advice"] = [evil]
    run = write_run(tmp_path / "20261130T183012Z-1", [{**started(), "command": evil}], report)
    for name, arguments in COMMANDS.items():
        said = bsguard(*arguments, run)
        printed = said.stdout.replace("\n", "") if name != "perfetto" else ""
        assert not [letter for letter in printed if ord(letter) < 32 or letter in "\x7f\x9b\u202e\u2066"], (
            name,
            printed,
        )
    assert "[bold red]" in bsguard("report", run).stdout and ":smile:" in bsguard("report", run).stdout


# Values that no writer of ours would put anywhere, and some that it would.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([0, 1, 2**63 - 1, -1, "", "oom", "bsguard.event/1", "9" * 30]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)),
    max_leaves=12,
)


def members(text: str) -> list[tuple]:
    """The paths of everything inside a document."""
    found = []

    def walk(value, path):
        found.append(path)
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            walk(inner, (*path, key))

    walk(json.loads(text), ())
    return found


def put(document, path: tuple, value):
    """A document with one member replaced."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = put(document[path[0]], path[1:], value)
    return copy


DOCUMENTS = {
    "control.json": (RESCUED / "control.json").read_text(),
    "report.json": json.dumps(full_report()),
    "events.jsonl": (RESCUED / "events.jsonl").read_text().splitlines()[11],  # an OOM
}


@st.composite
def spoilt_files(draw) -> tuple[str, bytes]:
    """(name, content): a file of a run with a member of any kind put anywhere, or with its bytes changed."""
    name = draw(st.sampled_from(sorted(DOCUMENTS)))
    text = DOCUMENTS[name]
    if draw(st.booleans()):
        document = json.loads(text)
        for _ in range(draw(st.integers(1, 3))):
            document = put(document, draw(st.sampled_from(members(json.dumps(document)))), draw(JSON))
        data = json.dumps(document).encode("utf-8", "surrogatepass")
    else:
        data = bytearray(text.encode())
        for _ in range(draw(st.integers(1, 6))):
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 40))] = draw(st.binary(max_size=20))
        data = bytes(data)
    return name, data + (b"\n" if name == "events.jsonl" else b"")


def fuzz(bsguard, run: Path, examples: int) -> None:
    rounds = iter(range(10**9))
    words = list(COMMANDS.values())

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(spoilt_files())
    def each(spoiled: tuple[str, bytes]) -> None:
        name, data = spoiled
        for other in DOCUMENTS:
            (run / other).write_bytes((RESCUED / other).read_bytes())
        (run / name).write_bytes(data)
        arguments = words[next(rounds) % len(words)]
        said = bsguard(*arguments, run)  # a traceback is an AssertionError of the fixture
        assert said.status in (0, 1, 2), said
        if said.status == 2:
            assert said.stderr.startswith("bsguard: ") and said.stderr.count("\n") == 1, said
        assert "\x1b" not in said.stdout + said.stderr or arguments[0] == "export", said

    each()


def test_fuzz(bsguard, spoilt: Path) -> None:
    fuzz(bsguard, spoilt, 150)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fuzz_for_long(bsguard, spoilt: Path) -> None:
    fuzz(bsguard, spoilt, 20_000)
