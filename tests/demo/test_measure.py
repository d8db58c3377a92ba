"""The figures of the demo, from made-up runs."""

import json
import math

import pytest

np = pytest.importorskip("numpy")


@pytest.fixture
def measure():
    from demonstration import measure

    return measure


def test_distance_is_over_all_parameters_together(measure, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([3.0, 0.0]), y=np.array([[4.0]]))
    np.savez(tmp_path / "b.npz", y=np.array([[4.5]]), x=np.array([3.0, 1.0]))
    found = measure.distance(tmp_path / "a.npz", tmp_path / "b.npz")
    assert found.relative == pytest.approx(math.sqrt(1.25) / 5)
    assert found.largest == 1.0


def test_distance_refuses_other_parameters(measure, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([3.0]))
    np.savez(tmp_path / "b.npz", z=np.array([3.0]))
    with pytest.raises(ValueError, match="different parameters"):
        measure.distance(tmp_path / "a.npz", tmp_path / "b.npz")


def test_sizes_over_time(measure):
    steps = [(1, 32, 1, 32), (2, 32, 2, 16), (3, 32, 2, 16), (4, 5, 1, 5), (5, 32, 4, 8)]
    events = [
        {"type": "step", "step": step, "batch": batch, "accumulation_steps": number, "micro_batch": size}
        for step, batch, number, size in steps
    ]
    assert measure.sizes_over_time([{"type": "mark"}, *events]) == [
        "batch 32: step 1 in 1 x 32, steps 2 to 3 in 2 x 16, step 5 in 4 x 8",
        "batch 5: step 4 in 1 x 5",
    ]


def test_ooms(measure):
    events = [{"type": "oom", "phase": "forward"}, {"type": "absorbed"}, {"type": "oom", "phase": "forward"}]
    assert measure.ooms(events) == (2, 1, "2 in forward")
    assert measure.ooms([]) == (0, 0, "")


def test_events_and_losses_of_a_run_that_left_none(measure, tmp_path):
    assert measure.read_events(None) == [] and measure.read_events(tmp_path) == []
    assert measure.losses(tmp_path) == []
    (tmp_path / "events.jsonl").write_text(json.dumps({"type": "start"}) + "\n")
    assert measure.read_events(tmp_path) == [{"type": "start"}]
