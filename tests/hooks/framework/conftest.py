"""What the tests of the framework half share."""

import pathlib
import pickle

import pytest

from benchmarks import exactness

JOBS = pathlib.Path(__file__).parent / "jobs"


@pytest.fixture
def all_ways(run_job, tmp_path, once):
    """all_ways(script, ways, timeout) -> {case: {way: ...}} of all cases of a script, "plain" among the ways, and
    {"": lines of bsguard that tell of an error of its own}. Run by the first test that asks, for all.

    script: one that jobs/ways.py runs. timeout: in seconds, of each of the two jobs.
    """

    def get(script, ways, timeout):
        def make():
            common, options = (JOBS / "ways.py", script), {"env": exactness.UNCACHED, "timeout": timeout}
            plain = run_job(*common, tmp_path / "plain", preload=False, **options)
            assert plain.returncode == 0, plain
            job = run_job(*common, tmp_path / "guarded", "--ways", ",".join(ways), memory="1GiB", **options)
            assert job.returncode == 0, job
            results = pickle.loads((tmp_path / "plain").read_bytes())
            for case, found in pickle.loads((tmp_path / "guarded").read_bytes()).items():
                results[case].update(found)
            results[""] = [line for line in job.lines_of_bsguard if "internal error" in line]
            return results

        return once(script.stem, make)

    return get
