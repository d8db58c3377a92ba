"""The files of a run against their schemas: every scenario that `policy_scenarios` plays, every file that it leaves."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

SCHEMAS = Path(__file__).parents[2] / "docs" / "formats"
SCENARIOS = (
    "quiet",
    "rescued",
    "unrescued",
    "retried",
    "waited",
    "evaluation",
    "inferred",
    "requests",
    "observed",
    "rank",
)

# The fields of each event after schema, seq, type, time and mono_ns, in the order that is documented.
EVENT_FIELDS = {
    "start": "pid rank version command driver devices framework mode",
    "mark": "device live_bytes peak_bytes step phase request_bytes site",
    "absorbed": "device api request_bytes attempts step phase",
    "oom": "device api request_bytes attempts live_bytes free_bytes step phase boundary site",
    "decision": "sequence reason batch micro_batch accumulation_steps why",
    "applied": "sequence step phase exactness because",
    "step": "step phase device batch micro_batch accumulation_steps peak_bytes allocated_peak_bytes",
    "disarmed": "boundary signature why for_good",
    "refused": "boundary why",
    "retried": "device step phase what",
    "waited": "device step phase others_bytes waited_ms free_bytes met",
    "unhooked": "name version",
    "report": "path why",
    "stop": "ooms absorbed rescued_steps peak_bytes",
}
CONTROL_FIELDS = (
    "schema sequence pid rank time reason inferred batch micro_batch accumulation_steps previous trigger exactness "
    "entries"
)


def validator(name: str) -> jsonschema.Draft202012Validator:
    """The validator of docs/formats/NAME.schema.json."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def strict(text: str) -> Any:
    """JSON, but a key twice in one object, NaN or Infinity is an error."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in items}) == len(items), f"a key twice in {items}"
        return dict(items)

    def constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)


@pytest.fixture(scope="module")
def played(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one folder for each scenario."""
    folder = tmp_path_factory.mktemp("scenarios")
    subprocess.run([build / "tests" / "policy" / "policy_scenarios", folder], check=True, timeout=60)
    return folder


@pytest.fixture(params=SCENARIOS)
def run(request: pytest.FixtureRequest, played: Path) -> Path:
    """The run folder of one scenario."""
    (folder,) = (path for path in (played / request.param).iterdir() if path.is_dir())
    return folder / "rank3" if request.param == "rank" else folder


def scenario(played: Path, name: str) -> Path:
    """The run folder of the scenario of this name."""
    (folder,) = (path for path in (played / name).iterdir() if path.is_dir())
    return folder


def events(run: Path) -> list[dict[str, Any]]:
    """All events of a run."""
    text = (run / "events.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [strict(line) for line in text.splitlines()]


def test_every_scenario_was_played(played: Path) -> None:
    assert {path.name for path in played.iterdir()} == set(SCENARIOS)


def test_events_are_valid(run: Path) -> None:
    check = validator("event")
    for number, event in enumerate(events(run), start=1):
        check.validate(event)
        assert event["seq"] == number


def test_events_have_the_documented_order_of_fields(run: Path) -> None:
    for event in events(run):
        expected = ["schema", "seq", "type", "time", "mono_ns"]
        if event["type"] == "request":
            expected += ["micro_batch", "obeyed", "sequence" if event["obeyed"] else "why"]
        else:
            expected += EVENT_FIELDS[event["type"]].split()
        assert list(event) == expected


def test_all_types_of_events_occur(played: Path) -> None:
    runs = [path.parent for path in played.rglob("events.jsonl")]
    assert {event["type"] for run in runs for event in events(run)} == {*EVENT_FIELDS, "request"}


def test_times_never_go_back(run: Path) -> None:
    clocks = [(event["mono_ns"], event["time"]) for event in events(run)]
    assert clocks == sorted(clocks)


def test_control_is_valid_and_is_the_last_decision(run: Path) -> None:
    decisions = [event for event in events(run) if event["type"] == "decision"]
    if not decisions:
        assert not (run / "control.json").exists()
        return
    control = strict((run / "control.json").read_text(encoding="utf-8"))
    validator("control").validate(control)
    assert list(control) == CONTROL_FIELDS.split()
    assert [event["sequence"] for event in decisions] == list(range(1, len(decisions) + 1))
    for field in ("sequence", "reason", "batch", "micro_batch", "accumulation_steps"):
        assert control[field] == decisions[-1][field]
    if len(decisions) > 1:
        before = decisions[-2]
        assert control["previous"] == {
            field: before[field] for field in ("sequence", "micro_batch", "accumulation_steps")
        }
    assert control["inferred"] == (control["reason"] == "inferred")


def test_splits_are_consistent(run: Path) -> None:
    for event in events(run):
        if event.get("batch") is not None:
            assert event["accumulation_steps"] == -(-event["batch"] // event["micro_batch"])


def test_reports_are_valid_and_add_up(run: Path) -> None:
    found = events(run)
    ooms = [event for event in found if event["type"] == "oom"]
    report = strict((run / "report.json").read_text(encoding="utf-8"))
    validator("report").validate(report)
    assert report["holders_bytes"] == sum(holder["bytes"] for holder in report["holders"])
    sizes = [holder["bytes"] for holder in report["holders"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (report["oom"] is None) == (not ooms) == (report["verdict"]["outcome"] == "none")
    accounting, memory = report["accounting"], report["memory"]
    assert sum(part["bytes"] for part in accounting["parts"]) == accounting["sum_bytes"] == memory["capacity_bytes"]
    used = memory["capacity_bytes"] - memory["free_bytes"]
    assert memory["not_in_ledger_bytes"] == used - memory["live_bytes"]
    assert report["totals"]["ooms"] == len(ooms)
    assert report["decisions_total"] == len([event for event in found if event["type"] == "decision"])
    named = {site["site"] for site in report["sites"]} | {None}
    groups, growth = report["groups"], report["growth"]
    for rows in (report["holders"], groups["rows"], growth["since"]):
        assert {row["site"] for row in rows} <= named
    assert sum(phase["bytes"] for phase in groups["phases"]) == groups["total_bytes"] >= groups["listed_bytes"]
    assert groups["listed_bytes"] == sum(row["bytes"] for row in groups["rows"])
    for site in report["sites"]:
        assert len(site["frames"]) == len(site["raw"])
        assert all(raw["module"] is None or raw["module"] < len(report["modules"]) for raw in site["raw"])


def test_the_two_reports_agree(run: Path) -> None:
    report = strict((run / "report.json").read_text(encoding="utf-8"))
    lines = (run / "report.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "===== bsguard report START ====="
    assert lines[-1] == "===== bsguard report END ====="
    verdict = dict(pair.split("=", 1) for pair in lines[1].split())
    assert next(iter(verdict)) == "verdict"
    oom = report["oom"]
    assert verdict["cause"] == report["verdict"]["cause"]
    if oom is None:
        assert verdict["verdict"] == "none" and not report["advice"]
        return
    head = "\n".join(lines[: lines.index("Run")])  # what is seen without scrolling
    if oom["request_bytes"]:
        assert re.search(rf"^Asked: .* in {oom['phase']} of step {oom['step']}, where .* were free\.$", head, re.M), (
            head
        )
    if any("train.py" in frame for frame in oom["python_stack"]):
        assert 'Your code: File "train.py", line 12 in forward' in head
    if report["verdict"]["fits_micro_batch"] is not None:
        assert f"Fits: {report['verdict']['fits_micro_batch']} samples at once, of a batch of {oom['batch']} (" in head
    assert verdict["culprit"] == (report["verdict"]["culprit"] or "unknown").replace(" ", "_")
    for key, value in (
        ("verdict", oom["verdict"]),
        ("answer", oom["answer"] or "none"),
        ("device", oom["device"]),
        ("phase", oom["phase"]),
        ("api", oom["api"] or "none"),
        ("request_bytes", oom["request_bytes"] or "unknown"),
        ("free_bytes", report["memory"]["free_bytes"]),
        ("live_bytes", report["memory"]["live_bytes"]),
        ("capacity_bytes", report["memory"]["capacity_bytes"]),
        ("ooms", report["totals"]["ooms"]),
        ("rescued_steps", report["totals"]["rescued_steps"]),
        ("decisions", report["decisions_total"]),
    ):
        assert verdict[key] == str(value), key


def test_everything_is_private(run: Path) -> None:
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    for path in run.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert not path.name.endswith(".new")
    top = run.parent if run.name.startswith("rank") else run
    assert (top / ".gitignore").read_text() == "*\n"


def test_what_is_said_is_few_short_lines(played: Path) -> None:
    said = {name: (played / name / "lines.txt").read_text(encoding="utf-8").splitlines() for name in SCENARIOS}
    assert said["quiet"] == []
    assert len(said["rescued"]) == 3  # two decisions taken up, and the summary
    assert said["rescued"][-1].startswith(
        "2 OOMs met, 2 steps rescued, micro-batch 8 of 32 (accumulation 4); files in /"
    )
    assert len(said["requests"]) == 2  # the two that were refused
    for line in (line for lines in said.values() for line in lines):
        assert line.isprintable()
        assert len(line) < 500


def test_outcomes(played: Path) -> None:
    def types(name: str) -> list[str]:
        return [event["type"] for event in events(scenario(played, name)) if event["type"] not in ("mark", "unhooked")]

    once = ["oom", "decision", "applied", "step"]
    assert types("quiet") == ["start", "decision", "step", "step", "step", "report", "stop"]
    assert types("rescued") == ["start", "decision", *once, *once, "absorbed", "step", "report", "stop"]
    assert types("observed") == ["start", "oom", "report", "report", "stop"]
    assert types("evaluation") == ["start", "decision", "oom", "applied", "report", "stop"]
    answered = ["request", "decision", "step", "request", "step", "request", "step", "report", "request"]
    assert types("requests") == ["start", "decision", "step", *answered, "report", "stop"]


@pytest.mark.parametrize("field", ["sequence", "micro_batch", "entries", "rank"])
def test_the_schema_of_control_refuses_a_missing_field(played: Path, field: str) -> None:
    control = json.loads((scenario(played, "rescued") / "control.json").read_text())
    del control[field]
    assert not validator("control").is_valid(control)


@pytest.mark.parametrize("type", [*EVENT_FIELDS, "request"])
def test_the_schema_of_events_refuses_what_is_no_event(played: Path, type: str) -> None:
    runs = [path.parent for path in played.rglob("events.jsonl")]
    event = next(event for run in runs for event in events(run) if event["type"] == type)
    check = validator("event")
    assert check.is_valid(event)
    for field in event:
        assert not check.is_valid({name: value for name, value in event.items() if name != field}), field
    assert not check.is_valid({**event, "more": 1})
    assert not check.is_valid({**event, "seq": 0})


def test_the_documented_request_is_valid() -> None:
    check = validator("request")
    assert check.is_valid({"schema": "bsguard.request/1", "micro_batch": 4, "device": 0, "boundary": "ResNet"})
    assert not check.is_valid({"schema": "bsguard.request/1", "micro_batch": 0})
    assert not check.is_valid({"micro_batch": 4})
