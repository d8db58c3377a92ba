"""What the command says of runs that are in order: report, diff, plan, watch, lib, and which run is meant."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_support import RECORDED, REPO, RESCUED, full_report, started, write_run
from jsonschema import Draft202012Validator

from bsguard_cli import runs
from bsguard_cli.summary import own_frames
from support.environ import job_environment

GB = 10**9


def test_the_made_up_report_is_one_that_the_library_may_write() -> None:
    schema = json.loads((REPO / "docs" / "formats" / "report.schema.json").read_text())
    errors = Draft202012Validator(schema).iter_errors(full_report())
    # The library may come to say more: what is missing here is no matter to a reader that takes it for not recorded.
    assert [error.message for error in errors if error.validator != "required"] == []


def test_report_of_a_rescued_run(bsguard) -> None:
    said = bsguard("report", RESCUED)
    assert said.status == 0
    assert said.stdout.startswith("met 3 OOMs, 1 step rescued, batch 256 as 4 x 64\n")
    for text in ("12.1 MiB (98%)", "3.0 MiB by cuMemAlloc_v2, refused 4 times", "30 in 9.0 s", "micro-batch was 128"):
        assert text in said.stdout, text
    assert "\x1b" not in said.stdout


def test_report_of_an_unrescued_run_names_cause_holders_and_advice(bsguard, unrescued: Path) -> None:
    said = bsguard("report", unrescued)
    assert said.status == 1
    first = said.stdout.splitlines()[0]
    assert first == (
        "ran out of memory, and could not be helped: memory is held from step to step, and ever more of it: "
        "list kept at train.py:31, 8.8 GiB (1 OOM)"
    )
    texts = ("train.py:60 in main", "phi::Copy<phi::DeviceContext>", "1. Keep numbers, not tensors", "77.0 MiB a step")
    for text in (*texts, "idle inside the framework", "Not recorded: fragmentation"):
        assert text in said.stdout, text


def test_the_users_own_lines_are_shown_of_a_stack() -> None:
    own = 'File "/home/me/train.py", line 9 in forward'
    libraries = ['File "/v/lib/python3.11/site-packages/paddle/nn/layer/layers.py", line 1833 in __call__',
                 'File "/b/bsguard/bsguard_paddle/boundary.py", line 20 in layer_call']  # fmt: skip
    assert own_frames([libraries[0], own, libraries[1]]) == ([own], 2)
    assert own_frames(libraries) == (libraries, 0)


def test_report_as_json_agrees_with_the_files(bsguard, unrescued: Path) -> None:
    said = bsguard("report", "--json", unrescued)
    assert said.status == 1
    (rank,) = said.json["ranks"]
    report = full_report()
    assert said.json["schema"] == "bsguard.summary/1" and said.json["verdict"] == "unrescued"
    assert rank["cause"] == "leak" and rank["steps"] == 116 and rank["ooms"] == 1
    assert sum(part["bytes"] for part in rank["accounting"]) == rank["capacity_bytes"] == 24 << 30
    assert rank["oom"]["request_bytes"] == report["oom"]["request_bytes"]
    assert rank["advice"] == [piece["text"] for piece in report["advice"]]
    assert rank["fit"]["fixed_bytes"] == report["fit"]["fixed_bytes"]


def test_report_text_is_what_the_job_wrote(bsguard) -> None:
    said = bsguard("report", "--text", RESCUED)
    assert said.stdout.splitlines() == (RESCUED / "report.txt").read_text().splitlines()


def test_a_run_that_says_little_is_shown_as_far_as_it_goes(bsguard, tmp_path: Path) -> None:
    run = write_run(tmp_path / "20261130T183012Z-1", [started(), {"type": "of-a-later-version", "what": 1}])
    said = bsguard("report", run)
    assert said.status == 0 and said.stdout.startswith("no OOM") and "not recorded" in said.stdout


def test_steps_that_were_rescued_are_counted_before_the_end(bsguard, tmp_path: Path) -> None:
    """Of a run that goes on, or that was killed."""
    oom = {"type": "oom", "device": 0, "phase": "forward"}
    step = {"type": "step", "phase": "optimizer", "device": 0}
    events = [started(), {**oom, "step": 1}, {**oom, "step": 1}, {**step, "step": 1}, {**step, "step": 2},
              {**oom, "step": 3, "phase": "evaluation"}, {**step, "step": 3}, {**oom, "step": 4}]  # fmt: skip
    run = write_run(tmp_path / "20261130T183012Z-1", events)
    assert bsguard("report", "--json", run).json["ranks"][0]["rescued_steps"] == 1


def test_a_record_that_is_not_whole_is_not_shown_as_a_whole_one(bsguard, tmp_path: Path) -> None:
    run = write_run(tmp_path / "20261130T183012Z-1", [started()], batch=8, micro_batch=4, accumulation_steps=2)
    assert "no end: the job was killed, or the disk was full" in bsguard("report", run).stdout
    (run / "events.jsonl").unlink()
    assert "events.jsonl is missing" in bsguard("report", run).stdout


def test_the_summary_of_a_run_without_an_oom_is_read(bsguard, tmp_path: Path) -> None:
    report = {**full_report(), "oom": None, "why": "end", "verdict": {"outcome": "none", "cause": "none"}}
    report["totals"] = {"ooms": 0, "absorbed": 0, "rescued_steps": 0, "unrescued": 0}
    run = write_run(tmp_path / "20261130T183012Z-1", [started()], report)
    said = bsguard("report", run)
    assert said.status == 0 and said.stdout.startswith("no OOM")


def test_the_newest_run_is_meant_where_none_is_named(bsguard, tmp_path: Path) -> None:
    for name in (
        "20261130T183012Z-9",
        "20261130T183013Z-10",
        "20261129T183012Z-99999",
        "not-a-run",
        "20261230T183012Z-1",
    ):
        write_run(tmp_path / "runs" / name, [started()])
    (tmp_path / "runs" / "20261230T183012Z-1" / "events.jsonl").unlink()  # an empty folder
    (tmp_path / "runs" / "20270101T000000Z-1").symlink_to(tmp_path / "runs" / "not-a-run")
    for arguments, env in (
        ([], {"BSGUARD_DIR": "runs"}),
        ([tmp_path / "runs"], {}),
        (["20261130T183013Z-10"], {"BSGUARD_DIR": "runs"}),
    ):
        said = bsguard("report", "--json", *arguments, env=env)
        assert said.status == 0 and Path(said.json["run"]).name == "20261130T183013Z-10", (arguments, said)


def test_ranks_stand_beside_each_other_and_the_worst_is_told(bsguard, tmp_path: Path) -> None:
    run = tmp_path / "20261130T183012Z-1"
    for rank in range(3):
        write_run(run / f"rank{rank}", [started()], full_report() if rank == 1 else None)
    said = bsguard("report", run)
    assert said.status == 1
    assert [line[:7] for line in said.stdout.splitlines()[:3]] == ["rank 0:", "rank 1:", "rank 2:"]
    assert "The last OOM (rank 1)" in said.stdout
    assert [rank["rank"] for rank in bsguard("report", "--json", run).json["ranks"]] == [0, 1, 2]
    assert bsguard("report", run / "rank2").status == 0


def test_the_narrowest_of_the_ranks_is_named(bsguard, tmp_path: Path) -> None:
    run = tmp_path / "20261130T183012Z-1"
    for rank, peak in enumerate((20 << 30, 23 << 30, 22 << 30)):
        mark = {"type": "mark", "device": 0, "live_bytes": peak, "peak_bytes": peak}
        write_run(run / f"rank{rank}", [started(), mark])
    line = "narrowest: rank 1, 1.0 GiB of 24.0 GiB left at its peak"
    assert line in bsguard("report", run).stdout and line in bsguard("watch", "--once", run).stdout
    assert bsguard("report", "--json", run).json["narrowest"] == 1
    split = {"device": 0, "batch": 8, "micro_batch": 4, "accumulation_steps": 2}
    write_run(run / "rank0", [started(), mark], **split, reason="oom")
    assert "narrowest: rank 0, " in bsguard("report", run).stdout  # it runs in chunks, the others do not
    write_run(run / "rank2", [started(), mark], **split, reason="oom")
    assert "narrowest: " not in bsguard("report", run).stdout  # as narrow as another


def test_diff_says_what_is_worse(bsguard, unrescued: Path) -> None:
    assert bsguard("diff", RESCUED, RESCUED).status == 0
    said = bsguard("diff", "--json", RESCUED, unrescued)
    assert said.status == 1
    assert {"unrescued", "peak_bytes", "allocated_peak_bytes"} == set(said.json["worse"])
    assert said.json["changes"]["ooms"] == {"before": 3, "after": 1}
    shown = bsguard("diff", unrescued, RESCUED)
    assert shown.status == 1 and "OOMs" in shown.stdout and "+200.0%" in shown.stdout  # 1 OOM, then 3
    assert "Traceback" not in shown.stderr


# The measurements of an OCR detector (ResNet-18, 800 x 800, FP32): batch -> MB; 32 ran out of memory on 24 GB.
DETECTOR = {1: 2148, 4: 5892, 8: 10365, 16: 18940}


def test_the_plan_of_measured_peaks(bsguard) -> None:
    peaks = [word for n, mb in DETECTOR.items() for word in ("--peak", f"{n}:{mb}MB")]
    said = bsguard("plan", "--json", *peaks, "--batch", "32", "--lr", "0.028")
    assert said.status == 0
    cards = {round(line["card_bytes"] / GB): line for line in said.json["cards"]}
    assert list(cards) == [6, 8, 12, 16, 24, 40, 80]
    assert cards[24]["whole_batch_fits"] is False and cards[24]["largest"] < 32
    assert cards[40]["whole_batch_fits"] is True and cards[40]["accumulation_steps"] == 1
    for line in cards.values():
        n = line["micro_batch"]
        assert n >= 1 and line["predicted_bytes"] <= 0.95 * line["card_bytes"]
        assert n * line["accumulation_steps"] >= 32 > n * (line["accumulation_steps"] - 1)
        assert line["learning_rate"] == 0.028
    assert cards[8]["largest"] < 8 and cards[12]["largest"] >= 8 and cards[24]["largest"] >= 16  # as it was measured
    assert bsguard("plan", *peaks, "--card", "1GB").status == 1


def test_each_measured_peak_is_predicted_from_the_others(bsguard) -> None:
    errors = []
    for n, mb in DETECTOR.items():
        peaks = [word for other, size in DETECTOR.items() if other != n for word in ("--peak", f"{other}:{size}MB")]
        plan = bsguard("plan", "--json", *peaks).json
        errors.append(abs(plan["fixed_bytes"] + n * plan["per_sample_bytes"] - mb * 10**6) / (mb * 10**6))
    assert sorted(errors)[len(errors) // 2] <= 0.05, errors


def test_the_plan_of_a_run(bsguard, unrescued: Path) -> None:
    said = bsguard("plan", "--json", unrescued)
    assert said.json["measured"] is True and said.json["batch"] == 32
    table = bsguard("plan", unrescued)
    assert table.status == 0 and "40 GB" in table.stdout and "stays" in table.stdout


def test_a_run_that_says_too_little_is_no_plan(bsguard) -> None:
    said = bsguard("plan", RESCUED)
    assert said.status == 1 and "bsguard set --micro-batch" in said.stderr


def test_one_measured_size_is_a_bound(bsguard) -> None:
    plan = bsguard("plan", "--json", "--peak", "8:10365MB").json
    assert plan["measured"] is False
    cards = {round(line["card_bytes"] / GB): line["largest"] for line in plan["cards"]}
    assert cards[8] is None and cards[12] == 8 and cards[24] == 17  # 24e9 * 0.95 / (10365e6 / 8)


@pytest.mark.parametrize("peak", ["8", "8:", ":1GB", "0:1GB", "8:nonsense", "-1:1GB", "1e3:1GB", "9" * 400 + ":1GB"])
def test_a_peak_that_is_none_is_refused(bsguard, peak: str) -> None:
    assert bsguard("plan", "--peak", peak).status == 2


@pytest.mark.parametrize(
    "words",
    [["report", RESCUED], ["export", "--format", "csv", RESCUED], ["lib"], ["--help"], ["diff", RESCUED, RESCUED],
     ["watch", "--once", RESCUED]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_output_that_cannot_be_written(words: list) -> None:
    from cli_support import arguments_of, process_environment

    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments_of(*words), stdout=full, stderr=subprocess.PIPE, env=process_environment(),
                              text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "bsguard: the output could not be written: No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(arguments_of(*words), stdout=write, stderr=subprocess.PIPE, env=process_environment(),
                          text=True, timeout=60)  # fmt: skip
    os.close(write)
    assert done.returncode == 0 and done.stderr == ""


def test_the_messages_are_english_and_name_the_way_out(bsguard, tmp_path: Path) -> None:
    said = bsguard("report", "nowhere")
    assert "leave RUN out for the newest below" in said.stderr
    assert "such as 24GB or 8GiB" in bsguard("plan", "--card", "24 gigs", "--peak", "1:1GB").stderr
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_text("nonsense\n" * 3)
    said = bsguard("report", folder)
    assert " a event" not in said.stdout + said.stderr
    from bsguard_cli.words import a, of_batch

    assert a("event") == "an event" and a("report") == "a report"
    assert of_batch(None, None, None) == "batch not recorded" and of_batch(8, 4, 2) == "batch 8 as 2 x 4"


def test_watch_once(bsguard, unrescued: Path) -> None:
    said = bsguard("watch", "--once", unrescued, RESCUED)
    assert said.status == 0 and "%)" in said.stdout and "OOM in forward" in said.stdout
    (one, two) = bsguard("watch", "--once", "--json", unrescued, RESCUED).json["jobs"]
    assert one["step"] == 116 and one["running"] is False and two["micro_batch"] == 64
    said = bsguard("watch", "--once")
    assert said.status == 1 and "no run is going on at" in said.stderr and "waiting" not in said.stdout
    assert bsguard("watch", "--once", "--json").status == 1


def test_a_run_that_grows_is_read_on_from_where_it_was(unrescued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unrescued / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    followed = runs.Followed(unrescued, None)
    rank = followed.read()
    assert rank.total("step") == 1 and rank.last.step == 1
    taken: list[str] = []
    monkeypatch.setattr(
        runs.Rank, "take", lambda self, event, take=runs.Rank.take: (taken.append(event.type), take(self, event))
    )
    assert followed.read() is rank and taken == []  # half a line is none
    with open(path, "ab") as file:
        file.write(lines[3][20:] + b"".join(lines[4:]))
    assert followed.read() is rank
    assert taken == [json.loads(line)["type"] for line in lines[3:]]
    whole = runs.load_rank(unrescued, None)
    assert (rank.total("step"), rank.peak, rank.ooms) == (whole.total("step"), whole.peak, whole.ooms)
    path.unlink()
    path.write_bytes(lines[0])  # another run in its place
    assert followed.read().total("step") == 0


def test_watch_ends_with_the_runs_that_were_named(bsguard) -> None:
    assert bsguard("watch", "--json", RESCUED).json["jobs"][0]["ooms"] == 3
    assert "3 OOMs" in bsguard("watch", RESCUED).stdout


def test_lib_prints_the_library(bsguard, library: Path) -> None:
    assert bsguard("lib").stdout == f"{REPO / 'build' / library.name}\n"
    assert bsguard("lib", "--json").json["library"].endswith("/libbsguard.so")


def test_the_executable_of_the_repository(library: Path) -> None:
    done = subprocess.run(
        [REPO / "scripts" / "bsguard", "lib"], env=job_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.endswith("build/libbsguard.so\n"), done


def test_no_library_is_said(bsguard, monkeypatch: pytest.MonkeyPatch) -> None:
    from bsguard_cli import place

    monkeypatch.setattr(place, "candidates", list)
    said = bsguard("lib")
    assert said.status == 1 and "scripts/setup" in said.stderr


def test_a_wrong_command_is_told_with_a_near_one(bsguard) -> None:
    said = bsguard("reprot")
    assert said.status == 2 and "did you mean report?" in said.stderr


def test_the_wheel_asks_for_what_the_command_needs() -> None:
    import re

    wanted = (REPO / "requirements" / "command.in").read_text()
    lines = [line.split("#")[0].replace(" ", "") for line in wanted.splitlines()]
    project = (REPO / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert listed and sorted(filter(None, lines)) == sorted(re.findall(r'^  "(.*)",', listed[1], re.MULTILINE))


def test_many_events_are_thinned_and_counted(bsguard, tmp_path: Path) -> None:
    events = [started()]
    events += [
        {"type": "step", "step": n, "micro_batch": 8, "batch": 8, "peak_bytes": n, "allocated_peak_bytes": n}
        for n in range(1, 30_001)
    ]
    run = write_run(tmp_path / "20261130T183012Z-1", events)
    (rank,) = bsguard("report", "--json", run).json["ranks"]
    assert rank["steps"] == 30_000 and rank["peak_bytes"] == 30_000
    lines = bsguard("export", "--format", "csv", run).stdout.count("\n")
    assert 4_000 < lines < 10_000


def test_a_recorded_run_is_copied_whole(tmp_path: Path, bsguard) -> None:
    shutil.copytree(RECORDED, tmp_path / "copy")
    assert bsguard("report", "--json", tmp_path / "copy").json["ranks"][0]["ooms"] == 3
