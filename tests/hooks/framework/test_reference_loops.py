"""The loops that tutorials teach: unchanged under the preload, and rescued, with the same losses and weights."""

import pathlib

import pytest

JOBS = pathlib.Path(__file__).parent / "jobs"
JOB = JOBS / "reference_loops.py"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "loop", [pytest.param("batch16", marks=SLOW), "batch64", "accumulate", "amp", pytest.param("warmup", marks=SLOW)]
)
def test_unchanged_and_rescued(run_job, loop):
    plain = run_job(JOB, loop, preload=False)
    guarded = run_job(JOB, loop)
    assert guarded.returncode == 0 and guarded.result == plain.result
    assert guarded.lines_of_bsguard == []
    # The first forward is told to run out of memory until it runs in four chunks or more; later on it may grow back.
    split = run_job(JOBS / "already_split.py", "4", JOB, loop)
    assert split.returncode == 0, split
    pieces = [event["accumulation_steps"] for event in split.events_of("step")]
    assert max(pieces) >= 4 and len([count for count in pieces if count > 1]) >= 2, pieces
    assert split.result["steps"] == plain.result["steps"] and split.result["rate"] == plain.result["rate"]
    tolerance = 1e-4 if loop == "amp" else 1e-10
    for name in ("losses", "weights"):
        for mine, reference in zip(split.result[name], plain.result[name]):
            assert abs(mine - reference) <= tolerance * abs(reference), (name, mine, reference)
