"""Several jobs on one card: what one gives back the other may take, and neither decides without end."""

import concurrent.futures
import pathlib

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "shared_card.py"
MOST_DECISIONS = 10  # in twelve steps: halvings, and what grew back


def test_two_jobs_that_do_not_fit_together_both_end(run_job, tmp_path):
    names = [str(tmp_path / "one"), str(tmp_path / "two")]
    alone = run_job(JOB, names[0], names[0], memory="64MiB", preload=False)
    assert alone.returncode == 0, alone
    pathlib.Path(names[0]).unlink()

    def run(name, other):
        return run_job(
            JOB,
            name,
            other,
            memory="30MiB",
            simgpu=["--shared", tmp_path / "card"],
            env={"BSGUARD_ARM": "always"},
            name=pathlib.Path(name).name + "-job",
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(run, names, reversed(names)))
    for job in jobs:
        assert job.returncode == 0, job
        assert job.result == pytest.approx(alone.result, rel=1e-9), job
        assert len([e for e in job.events_of("decision") if e["reason"] != "start"]) <= MOST_DECISIONS, job
        assert len(job.lines_of_bsguard) <= 2 * MOST_DECISIONS, job
    assert any("OOM in" in line for job in jobs for line in job.lines_of_bsguard), jobs
