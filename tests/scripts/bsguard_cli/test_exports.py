"""That other tools take what `bsguard export` writes: their own parsers read it."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import REPO, RESCUED, full_report, started, write_run
from google.protobuf.unknown_fields import UnknownFieldSet
from jsonschema import Draft202012Validator
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

RUNS = ["rescued", "unrescued", "fresh"]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Path:
    """A recorded run, one with everything in it, and one that a job has just left."""
    return RESCUED if request.param == "rescued" else request.getfixturevalue(request.param)


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_collapsed_stacks(bsguard, run: Path) -> None:
    said = bsguard("export", "--format", "collapsed", run)
    assert said.status == 0
    # As flamegraph.pl reads a line: everything up to the last blank, then a number.
    stacks = {}
    for line in said.stdout.splitlines():
        match = re.fullmatch(r"(.+) (\d+)", line)
        assert match and all(match[1].split(";")), line
        assert match[1] not in stacks
        stacks[match[1]] = int(match[2])
    report = bsguard("report", "--json", run).json["ranks"][0]
    live = next(part["bytes"] for part in [*report["accounting"], {"bytes": 0}])
    assert sum(stacks.values()) >= live


READ_STACKS = """
import json, logging, sys
from flamegraph_textual.parsers import parse

class Complaints(logging.Handler):
    def emit(self, record):
        sys.exit(record.getMessage())

logging.getLogger("flamegraph_textual").addHandler(Complaints(logging.WARNING))
profile = parse(sys.stdin.buffer.read(), "stacks")
stacks = {}

def walk(frame, above):
    path = [*above, frame.name]
    own = frame.values[0] - sum(child.values[0] for child in frame.children)
    if own:
        stacks[";".join(path[1:])] = own
    for child in frame.children:
        walk(child, path)

walk(profile.root_stack, [])
print(json.dumps([profile.root_stack.values[0], profile.total_sample, stacks]))
"""


@pytest.fixture(scope="module")
def flame_graphs(build: Path) -> Path:
    """A folder with a program of PyPI that shows flame graphs of collapsed stacks in a terminal."""
    folder = build / "clients" / "flamegraph"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--disable-pip-version-check",
                "--target",
                folder,
            ]
            pins = REPO / "requirements" / "flamegraph.txt"
            done = subprocess.run([*pip, "-r", pins], capture_output=True, text=True, timeout=250)
            if done.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"it cannot be fetched here: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return folder


def test_a_flame_graph_program_reads_collapsed_stacks(bsguard, unrescued: Path, flame_graphs: Path) -> None:
    """The tree that it draws has each of our stacks with its bytes, and nothing besides; what is no stack it refuses."""
    text = bsguard("export", "--format", "collapsed", unrescued).stdout

    def read(text: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "PYTHONPATH": str(flame_graphs)}
        words = [sys.executable, "-c", READ_STACKS]
        return subprocess.run(words, input=text, env=env, capture_output=True, text=True, timeout=100)

    done = read(text)
    assert done.returncode == 0, done
    total, lines, stacks = json.loads(done.stdout)
    ours = {stack: int(size) for stack, _, size in (line.rpartition(" ") for line in text.splitlines())}
    assert stacks == ours and total == sum(ours.values()) and lines == len(ours) > 2
    assert read(text + "forward;no size\n").returncode != 0


def test_collapsed_stacks_start_at_the_outermost_frame(bsguard, unrescued: Path) -> None:
    lines = bsguard("export", "--format", "collapsed", unrescued).stdout.splitlines()
    first = next(line for line in lines if "Allocator" in line).rpartition(" ")[0].split(";")
    assert first[0] == "forward" and first[1].startswith("_PyEval") and first[2].startswith("void phi::Copy")
    assert first[-1].startswith("paddle::memory::allocation::Allocator::Allocate(unsigned long)")


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_openmetrics(bsguard, run: Path) -> None:
    said = bsguard("export", "--format", "openmetrics", run)
    assert said.status == 0 and said.stdout.endswith("# EOF\n")
    families = {family.name: family for family in text_string_to_metric_families(said.stdout)}
    report = bsguard("report", "--json", run).json["ranks"][0]
    values = {name: family.samples[0].value for name, family in families.items()}
    for name, field in {
        "bsguard_ooms": "ooms",
        "bsguard_steps": "steps",
        "bsguard_ooms_absorbed": "absorbed",
        "bsguard_ooms_unrescued": "unrescued",
        "bsguard_steps_rescued": "rescued_steps",
        "bsguard_device_capacity_bytes": "capacity_bytes",
        "bsguard_device_peak_bytes": "peak_bytes",
        "bsguard_micro_batch_samples": "micro_batch",
    }.items():
        assert values[name] == report[field], name
    assert families["bsguard_run"].samples[0].labels["command"].endswith("train.py")
    # node_exporter reads the plain text format, and takes no time stamps.
    for family in plain_families(said.stdout):
        assert all(sample.timestamp is None for sample in family.samples)


def test_the_metrics_are_documented(bsguard, unrescued: Path) -> None:
    page = (REPO / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    said = bsguard("export", "--format", "openmetrics", unrescued)
    names = {sample.name for family in text_string_to_metric_families(said.stdout) for sample in family.samples}
    assert told == names


def test_metrics_of_ranks_are_told_apart(bsguard, tmp_path: Path) -> None:
    run = tmp_path / "20261130T183012Z-1"
    for rank in range(2):
        write_run(run / f"rank{rank}", [started()], full_report())
    text = bsguard("export", "--format", "openmetrics", run).stdout
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [sample.labels["rank"] for sample in families["bsguard_ooms"].samples] == ["0", "1"]


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_perfetto(bsguard, run: Path, tmp_path: Path) -> None:
    said = bsguard("export", "--format", "perfetto", "--output", tmp_path / "trace", run)
    assert said.status == 0
    trace = Trace()
    trace.ParseFromString((tmp_path / "trace").read_bytes())
    assert trace.IsInitialized() and len(UnknownFieldSet(trace)) == 0
    assert all(len(UnknownFieldSet(packet)) == 0 for packet in trace.packet)
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet
              if packet.HasField("track_descriptor")}  # fmt: skip
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert all(packet.track_event.track_uuid in tracks for packet in events)
    assert all(
        packet.trusted_packet_sequence_id == trace.packet[0].trusted_packet_sequence_id for packet in trace.packet
    )
    report = bsguard("report", "--json", run).json["ranks"][0]

    def track(name: str) -> list:
        (uuid,) = [uuid for uuid, descriptor in tracks.items() if descriptor.name == name]
        return [packet for packet in events if packet.track_event.track_uuid == uuid]

    ooms = [packet for packet in track("OOMs and decisions") if packet.track_event.name.startswith("OOM in")]
    assert len(ooms) == report["ooms"]
    allocated = [packet.track_event.counter_value for packet in track("allocated by the framework, peak of the step")]
    assert max(allocated) == report["allocated_peak_bytes"]
    assert all(packet.track_event.type == TrackEvent.TYPE_COUNTER for packet in track("micro-batch"))
    depth = 0  # slices that begin also end, one after the other
    for packet in track("steps"):
        depth += {TrackEvent.TYPE_SLICE_BEGIN: 1, TrackEvent.TYPE_SLICE_END: -1}[packet.track_event.type]
        assert 0 <= depth <= 1
    assert depth == 0


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_csv(bsguard, run: Path) -> None:
    said = bsguard("export", "--format", "csv", run)
    lines = list(csv.DictReader(io.StringIO(said.stdout)))
    events = [json.loads(line) for path in run.rglob("events.jsonl") for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines] == [event["type"] for event in events]
    assert [int(line["mono_ns"]) for line in lines] == [event["mono_ns"] for event in events]


def test_no_cell_is_a_formula(bsguard, tmp_path: Path) -> None:
    why = '=HYPERLINK("http://nowhere")\n,"\''
    run = write_run(tmp_path / "20261130T183012Z-1", [started(), {"type": "refused", "why": why, "boundary": "@x"}])
    last = list(csv.DictReader(io.StringIO(bsguard("export", "--format", "csv", run).stdout)))[-1]
    assert last["why"].startswith("'=") and last["boundary"] == "'@x"


def test_output_is_replaced_at_once(bsguard, tmp_path: Path) -> None:
    output = tmp_path / "bsguard.prom"
    output.write_text("old")
    old = output.stat().st_ino
    reader = open(output)  # noqa: SIM115 - whoever has it open keeps the old one whole
    said = bsguard("export", "--format", "openmetrics", "--output", output, "--json", RESCUED)
    assert said.json["bytes"] == output.stat().st_size and output.stat().st_ino != old
    assert reader.read() == "old"
    assert os.listdir(tmp_path) == ["bsguard.prom"]
    assert bsguard("export", "--format", "csv", "-o", tmp_path / "no" / "such", RESCUED).status == 2
    assert bsguard("export", "--format", "csv", "-o", tmp_path, RESCUED).status == 2


def test_what_a_run_does_not_have_is_said(bsguard, tmp_path: Path) -> None:
    run = write_run(tmp_path / "20261130T183012Z-1", [started()])
    said = bsguard("export", "--format", "collapsed", run)
    assert said.status == 1 and "no report" in said.stderr


@pytest.mark.parametrize("kind", ["control", "event", "report"])
def test_what_the_command_reads_is_what_is_documented(fresh: Path, kind: str) -> None:
    schema = json.loads((REPO / "docs" / "formats" / f"{kind}.schema.json").read_text())
    check = Draft202012Validator(schema)
    (path,) = fresh.rglob("events.jsonl" if kind == "event" else f"{kind}.json")
    for text in path.read_text().splitlines() if kind == "event" else [path.read_text()]:
        check.validate(json.loads(text))
