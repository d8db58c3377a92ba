"""What a preload cannot see is noticed where it can be: one event, and a difference that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

MIB = 1 << 20


@pytest.fixture
def unseen(program, build: Path):
    """Runs the program in one of its ways, with us."""

    def run(way: str):
        job = program("unseen", way, build / "tests" / "shim" / "libdeep.so", env={"SIMGPU_MEMORY": "64MiB"})
        assert job.returncode == 0, job
        return job

    return run


def test_library_bound_past_us(unseen) -> None:
    job = unseen("deepbind")
    assert job.result["seen"] == MIB
    names = [event["name"] for event in job.events_of("unhooked")]
    assert len(names) == 1 and "libdeep.so" in names[0] and "RTLD_DEEPBIND" in names[0], job.events


def test_free_of_a_stranger(unseen) -> None:
    names = [event["name"] for event in unseen("stranger").events_of("unhooked")]
    assert "cuMemFree_v2" in names and len(names) == 2, names


def test_second_copy_of_the_driver(unseen) -> None:
    job = unseen("dlmopen")
    assert job.result["seen"] == MIB
    names = [event["name"] for event in job.events_of("unhooked")]
    assert len(names) == 1 and "second copy" in names[0], job.events


def test_nothing_to_notice(unseen) -> None:
    job = unseen("plain")
    assert job.result["seen"] == 6 * MIB
    assert job.events_of("unhooked") == []


def test_difference_is_shown(program, build: Path) -> None:
    """What the device has lost and the ledger does not hold: 5 MiB past us, next to what the driver took for itself."""
    words = ["deepbind", build / "tests" / "shim" / "libdeep.so"]
    env = {"SIMGPU_MEMORY": "64MiB", "SIMGPU_CONTEXT_MEMORY": "8MiB"}
    job = program("unseen", *words, env=env)
    seen = job.result
    assert seen["total"] - seen["free"] - seen["seen"] == (5 + 8) * MIB, job
