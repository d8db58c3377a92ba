"""Several networks and several optimizers in one step."""

import pathlib

import pytest

JOBS = pathlib.Path(__file__).parent / "jobs"


@pytest.mark.parametrize("pieces", [1, 4])
def test_gan(run_job, pieces):
    plain = run_job(JOBS / "gan.py", preload=False)
    job = run_job(JOBS / "already_split.py", str(pieces), JOBS / "gan.py", env={"BSGUARD_ARM": "always"})
    assert job.returncode == 0 and not job.events_of("refused", "disarmed"), job
    assert {entry["boundary"] for entry in job.control["entries"]} >= ({"Generator", "Critic"} if pieces > 1 else set())
    assert all(abs(a - b) <= 1e-10 * abs(b) for a, b in zip(job.result, plain.result)), (job.result, plain.result)
