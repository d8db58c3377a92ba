"""An OOM outside of the layers: reclaimed, tried once more, told in one line; nothing is lost, repeated or out of turn."""

import importlib.metadata
import pathlib

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "places.py"
MODES = ["loader", "loader:workers", "loader:workers:shared", "loader:workers:persistent", "loader:stream"]

needs_3 = pytest.mark.skipif(
    importlib.metadata.version("paddlepaddle").startswith("2."),
    reason="on a custom device Paddle 2.6 keeps its cache, and what has run once never asks the device for memory again",
)


@needs_3
@pytest.mark.parametrize("mode", MODES)
def test_loader(run_job, mode):
    job = run_job(JOB, mode, memory="64MiB")
    assert job.returncode == 0, job
    for epochs in job.result[mode]:
        assert epochs == [list(range(30))] * len(epochs), job
    retried = job.events_of("retried")
    assert retried, job
    assert {(event["phase"], event["what"]) for event in retried} == {("data", "the next batch of the DataLoader")}
    assert len([line for line in job.lines_of_bsguard if "went through at the next try" in line]) == 1


@needs_3
def test_loader_left_in_the_middle(run_job):
    job = run_job(JOB, "caught", memory="64MiB")
    assert job.returncode == 0, job
    assert job.result["caught"] == [True, list(range(30))], job


def test_workers_do_not_wait_for_a_reader_of_the_parent(run_job):
    job = run_job(JOB, "cycles", memory="64MiB", timeout=60)
    assert job.returncode == 0, job
    assert job.result["cycles"] == list(range(30)), job


@needs_3
def test_other_places(run_job):
    job = run_job(JOB, "to_tensor", "copy", "save", "construction", "metric", memory="64MiB")
    assert job.returncode == 0, job
    assert job.result["to_tensor"] == job.result["copy"] == 2.0 * 512 * 512
    assert job.result["save"] == [True, True, "head", 4]
    assert job.result["construction"] is True and job.result["metric"] is True
    told = {event["what"]: event["phase"] for event in job.events_of("retried")}
    assert told["to_tensor"] == told["a copy to another device"] == "data"
    assert told["paddle.save"] == "save" and told["a new parameter"] == "init", told
    assert told["accuracy"] == "other"


@needs_3
def test_unguarded_it_dies(run_job):
    """What the tests above inject is what kills a job."""
    job = run_job(JOB, "to_tensor", memory="64MiB", preload=False)
    assert job.returncode == 1 and "MemoryError" in job.stderr, job
