"""An OOM in the optimizer's step: resumed where that is certain, the user's exception where it is not, never updated twice.

RMSProp is not among them: its kernel does not run on the simulated GPU, with or without the preload.
"""

import pathlib

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "optimizers.py"


@pytest.mark.parametrize(
    "arguments",
    [
        ("Adam",),
        ("AdamW", "clip", "groups"),
        ("Adamax", "decay"),
        pytest.param(("Momentum", "clip", "decay"), marks=pytest.mark.slow),
        pytest.param(("Lamb",), marks=pytest.mark.slow),
        pytest.param(("Adagrad",), marks=pytest.mark.slow),
        pytest.param(("Adadelta", "groups"), marks=pytest.mark.slow),
        pytest.param(("NAdam",), marks=pytest.mark.slow),
        pytest.param(("RAdam",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_each_allocation_of_the_first_steps(run_job, arguments):
    job = run_job(JOB, *arguments, memory="64MiB", timeout=240)
    assert job.returncode == 0, job
    assert job.result["different"] == [], job.result
    # The moments are made in the first step: that is where memory is taken, and there it must be resumed.
    if job.result["allocations"][0]:
        assert job.result["equal"] > 0, job.result


def test_each_allocation_of_a_step_that_clips_without_a_cache(run_job):
    """Paddle's cache hides most allocations of a step. A gradient that was scaled half-way must not be scaled again."""
    job = run_job(JOB, "SGD", "clip", memory="64MiB", timeout=240, env={"FLAGS_free_idle_chunk": "1"})
    assert job.returncode == 0, job
    assert job.result["different"] == [] and job.result["equal"] > 0, job.result
    assert min(job.result["allocations"]) > 10, job.result
