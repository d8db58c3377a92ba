"""Several jobs on one card: what one gives back the other may take, and neither decides without end."""

import concurrent.futures
import importlib.metadata
import pathlib

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "shared_card.py"
MOST_DECISIONS = 8  # a step: halvings from the whole to one sample, and what grew back


def test_two_jobs_that_do_not_fit_together_both_end(run_job, tmp_path):
    if importlib.metadata.version("paddlepaddle").startswith("2."):
        pytest.skip("on a custom device Paddle 2.6 keeps its cache: neither job could give anything back")

    def run(me):
        # A whole step takes 20 to 23 MiB, what is left of a job between two steps 8: a step finds room once the other
        # has given back what it does not use, and not before.
        return run_job(
            JOB,
            tmp_path,
            str(me),
            memory="36MiB",
            simgpu=["--shared", tmp_path / "card"],
            env={"BSGUARD_ARM": "always", "BSGUARD_WAIT": "120"},
            timeout=300,
            name=f"job{me}",
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(run, (0, 1)))
    for job in jobs:
        assert job.returncode == 0, job
        assert job.result["losses"] == pytest.approx(jobs[0].result["alone"], rel=1e-9), job
        assert job.events_of("oom"), job
        decisions = [event for event in job.events_of("decision") if event["reason"] != "start"]
        assert len(decisions) <= MOST_DECISIONS * len(job.result["losses"]), job
