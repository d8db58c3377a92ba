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
pytestmark = pytest.mark.timeout(1300)


def check(run_job, tmp_path, seeds, ways):
    """Runs seeds in several ways; fails with the seed and with how to run it alone."""
    common = (JOBS / "ways.py", JOBS / "generated.py")
    plain = run_job(*common, tmp_path / "plain", "--ways", "plain", *seeds, preload=False, timeout=600)
    assert plain.returncode == 0, plain
    job = run_job(*common, tmp_path / "guarded", "--ways", ways, *seeds, memory="512MiB", timeout=600)
    assert job.returncode == 0, job
    assert not [line for line in job.lines_of_bsguard if "internal error" in line], job
    reference = pickle.loads((tmp_path / "plain").read_bytes())
    wrong, exact = [], 0
    for seed, found in pickle.loads((tmp_path / "guarded").read_bytes()).items():
        for way, other in found.items():
            right, apart, said = exactness.judge(reference[seed]["plain"], way, other)
            if not right:
                wrong.append(
                    f"seed {seed}, {way}: {apart:.1e}, said {said or 'nothing'} (BSG_SEEDS={seed} pytest {__file__})"
                )
            exact += right and not said
    assert not wrong, "\n".join(wrong)
    return exact


def test_seeds(run_job, tmp_path):
    """The first 40, or those of BSG_SEEDS, in every way; most of what can be exact is."""
    seeds = os.environ.get("BSG_SEEDS", "").split() or [str(seed) for seed in range(40)]
    exact = check(run_job, tmp_path, seeds, "armed,2,16,forward,backward")
    if "BSG_SEEDS" not in os.environ:
        assert exact > 100, exact


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, AT_ONCE))
def test_many_seeds(run_job, tmp_path, first):
    seeds = [str(seed) for seed in range(first, first + AT_ONCE)]
    check(run_job, tmp_path, seeds, "armed,disarmed,2,4,16,forward,backward")
