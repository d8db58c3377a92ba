"""A few points of `bench sweep`: memory runs out here and there in a CNN, a Transformer, an LSTM with CTC and a detector.

The whole of it, some ten thousand points, is run by `scripts/bench sweep`. A point that fails is run alone by the command
in the message.
"""

import sys
from pathlib import Path

import pytest

from benchmarks import soak, sweep, verdict

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.slow_on_26,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("sweep"),
]

SOME = [
    # model, kind, every which point
    ("cnn", "capacity", 9),
    ("transformer", "capacity", 10),
    ("lstm-ctc", "capacity", 9),
    ("detector", "capacity", 9),
    ("cnn", "terminal", 101),
    ("transformer", "again", 463),
    ("lstm-ctc", "terminal", 83),
    ("detector", "third", 97),
    ("detector", "absorbed", 151),
]


@pytest.fixture(scope="module")
def bench(build, tmp_path_factory):
    """Processes that have Paddle imported, for all tests here."""
    with sweep.Bench(tmp_path_factory.mktemp("sweep"), Path(sys.executable), build) as bench:
        yield bench


def outcomes(judged):
    """{outcome: values of its points}; fails where one is a fault."""
    found = {}
    for point, one in judged:
        assert not one.fault, f"{one.outcome}: {one.why or one.apart}\n{point.by_hand}"
        found.setdefault(one.outcome, []).append(point.value)
    return found


@pytest.mark.parametrize(("model", "kind", "every"), SOME)
def test_every_run_ends_and_none_is_different_in_silence(bench, model, kind, every):
    points = bench.points(model, kind, every)
    found = outcomes((point, bench.guarded(point)) for point in points)
    saved = found.get(verdict.EXACT_RUN, []) + found.get(verdict.SAID, [])
    assert len(points) >= 3, found
    if kind == "terminal":
        assert saved, found
    if kind == "absorbed":
        assert len(saved) == len(points), found
    if kind == "capacity":  # the job with all its memory is among them
        assert len(saved) >= 2, found


@pytest.mark.parametrize(("model", "kind", "every"), [("cnn", "capacity", 13), ("lstm-ctc", "terminal", 127)])
def test_observed_runs_end_as_they_do_without_the_preload(bench, model, kind, every):
    points = bench.points(model, kind, every)
    found = outcomes((point, bench.observed(point)) for point in points)
    assert found[verdict.DIED], found
    assert kind != "capacity" or found[verdict.EXACT_RUN] == [points[0].value], found


@pytest.mark.slow
def test_random_cases(build, tmp_path):
    """Some seeds of `bench soak`, and those that once were faults."""
    with soak.Soak(tmp_path, Path(sys.executable), build) as cases:
        found = [cases.case(seed) for seed in (*range(201, 213), 25, 48)]
    wrong = {case.seed: (case.found.outcome, case.found.why, case.environment) for case in found if case.found.fault}
    assert not wrong, wrong
    assert any(case.found.outcome == verdict.EXACT_RUN for case in found)
