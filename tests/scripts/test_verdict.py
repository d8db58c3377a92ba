"""What `bench sweep` calls right and wrong, on runs made up of files."""

import json

import numpy
import pytest

from benchmarks import verdict
from benchmarks.warm import Ended

DEATH = """W1130 23:29:00.711270 20063 backward.cc:697] While running Node raises a std::exception
Traceback (most recent call last):
  File "train.py", line 3, in <module>
MemoryError:
Out of memory error on gpu:0. Cannot allocate 1.406250MB memory on gpu:0, available memory is only 844.000000kB.
"""
TOLD = "bsguard: OOM in forward at step 1 could not be saved (gpu:0 refused 1.4 MiB): see report.txt\n"
PLAIN = {"losses": numpy.array([1.0, 0.5]), "state_w": numpy.array([2.0, 3.0])}


@pytest.fixture
def ended(tmp_path):
    def make(code=0, err="", out=None, events=(), report=False, hung=False):
        run = tmp_path / "bsguard" / "1"
        run.mkdir(parents=True)
        (tmp_path / "stdout").write_text("")
        (tmp_path / "stderr").write_text(err)
        (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if report:
            (run / "report.txt").write_text("who held it")
        if out is not None:
            numpy.savez(tmp_path / "out.npz", **out)
        return Ended(code, hung, 1.0, tmp_path)

    return make


def outcome(run):
    return verdict.judge(run, run.folder / "out.npz", PLAIN, verdict.raised(DEATH)).outcome


def applied(exactness):
    return {"type": "applied", "exactness": exactness, "because": ["dropout"]}


def test_equal_to_rounding_is_exact(ended):
    near = dict(PLAIN, state_w=PLAIN["state_w"] * (1 + 1e-12))
    assert outcome(ended(out=near, events=[applied("exact")])) == verdict.EXACT_RUN


@pytest.mark.parametrize(("said", "expected"), [("exact", verdict.SILENT), ("approximate", verdict.SAID)])
def test_a_difference_must_have_been_said(ended, said, expected):
    far = dict(PLAIN, state_w=PLAIN["state_w"] + 1e-6)
    assert outcome(ended(out=far, events=[applied(said)])) == expected


def test_a_missing_array_is_a_difference(ended):
    assert outcome(ended(out={"losses": PLAIN["losses"]})) == verdict.SILENT


def test_the_original_exception_with_a_report_is_a_legal_end(ended):
    other_sizes = DEATH.replace("1.406250MB", "3.000000kB").replace("844.000000kB", "12.500000MB")
    assert outcome(ended(1, other_sizes + TOLD, report=True)) == verdict.DIED


@pytest.mark.parametrize(
    ("code", "text"), [(1, "MemoryError: another"), (1, "RuntimeError: x"), (-11, DEATH), (3, DEATH)]
)
def test_another_end_is_odd(ended, code, text):
    assert outcome(ended(code, text + TOLD, report=True)) == verdict.ODD


@pytest.mark.parametrize(("err", "report"), [(DEATH, True), (DEATH + TOLD, False)])
def test_a_death_without_a_word_or_a_report_is_a_fault(ended, err, report):
    assert outcome(ended(1, err, report=report)) == verdict.NO_REPORT


def test_a_run_without_end_is_a_fault(ended):
    assert outcome(ended(-9, hung=True)) == verdict.HUNG
