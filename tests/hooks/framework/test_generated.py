"""Random networks and loops (jobs/generated.py): none may be different in silence, and not all may be refused.

A seed that fails is run alone with
    BSG_SEEDS=17 python -m pytest tests/hooks/framework/test_generated.py -k test_seeds
and `python tests/hooks/framework/jobs/generated.py 17` on the simulated GPU says in words what it is.
"""

import os
import pathlib
import pickle

import pytest

from benchmarks import exactness

JOBS = pathlib.Path(__file__).parent / "jobs"
AT_ONCE = 50  # seeds a process
TIMES = 32  # as many samples where memory is short: there must be something to save by splitting
pytestmark = pytest.mark.timeout(1300)


def check(run_job, tmp_path, seeds, ways):
    """Runs seeds in several ways; fails with the seed and with how to run it alone. Returns (exact, ooms, rescued)."""
    common = (JOBS / "ways.py", JOBS / "generated.py")
    options = {"env": exactness.UNCACHED, "timeout": 600}
    plain = run_job(*common, tmp_path / "plain", "--ways", "plain", *seeds, preload=False, memory="1GiB", **options)
    assert plain.returncode == 0, plain
    job = run_job(*common, tmp_path / "guarded", "--ways", ways, *seeds, memory="1GiB", **options)
    assert job.returncode == 0, job
    assert not [line for line in job.lines_of_bsguard if "internal error" in line], job
    reference = pickle.loads((tmp_path / "plain").read_bytes())
    wrong, exact, ooms, rescued = [], 0, 0, 0
    for seed, found in pickle.loads((tmp_path / "guarded").read_bytes()).items():
        for way, other in found.items():
            right, apart, said = exactness.judge(seed, reference[seed]["plain"], way, other)
            if not right:
                wrong.append(
                    f"seed {seed}, {way}: {apart:.1e}, said {said or 'nothing'} (BSG_SEEDS={seed} pytest {__file__})"
                )
            exact += right and not said
            reference[seed][way] = other
            ooms += other["ooms"] > 0
            rescued += other["ooms"] > 0 and "exception" not in other["result"]
        if {"armed", "disarmed"} <= set(reference[seed]):
            exactness.check_memory(reference[seed])
    assert not wrong, "\n".join(wrong)
    return exact, ooms, rescued


@pytest.mark.slow_on_26
def test_seeds(run_job, tmp_path):
    """The first 40, or those of BSG_SEEDS, in every way; most of what can be exact is."""
    seeds = os.environ.get("BSG_SEEDS", "").split() or [str(seed) for seed in range(40)]
    ways = "memory" if any("x" in seed for seed in seeds) else "armed,2,3,16,forward,backward"
    exact, _, _ = check(run_job, tmp_path, seeds, ways)
    if "BSG_SEEDS" not in os.environ:
        assert exact > 120, exact


@pytest.mark.slow_on_26
def test_random_memory(run_job, tmp_path):
    """The first 20 with as much memory as chance gives, between what they hold at their end and their peak."""
    seeds = [f"{seed}x{TIMES}" for seed in range(20)]
    _, ooms, rescued = check(run_job, tmp_path, seeds, "armed,disarmed,memory")
    assert ooms >= 5 and rescued >= 2, (ooms, rescued)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, AT_ONCE))
def test_many_seeds(run_job, tmp_path, first):
    seeds = [str(seed) for seed in range(first, first + AT_ONCE)]
    check(run_job, tmp_path, seeds, "armed,disarmed,2,3,4,16,forward,backward")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, AT_ONCE))
def test_many_seeds_under_random_memory(run_job, tmp_path, first):
    check(run_job, tmp_path, [f"{seed}x{TIMES}" for seed in range(first, first + AT_ONCE)], "memory")
