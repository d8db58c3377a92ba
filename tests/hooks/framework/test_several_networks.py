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


BY_HAND = """
    import paddle, paddle.nn as nn
    paddle.set_device("gpu")
    networks = [nn.Linear(4, 4) for _ in range(9)]
    for network in networks:
        network(paddle.ones([2, 4])).mean().backward()
        with paddle.no_grad():
            for parameter in network.parameters():
                parameter.set_value(parameter - 0.1 * parameter.grad)
                parameter.clear_gradient()
    print(0)
"""


def test_weights_updated_by_hand(run_job):
    """Many networks one after another are no network written as a function of layers, with or without an optimizer."""
    job = run_job(BY_HAND, env={"BSGUARD_ARM": "always"})
    assert job.returncode == 0 and not job.events_of("disarmed"), job
