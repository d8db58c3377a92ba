"""scripts/test: its last line and its exit status tell the truth, whatever the tests did."""

import pytest

CASES = {
    "passes": ("def test_a(): pass\ndef test_b(): pass\n", "2 passed, 0 failed", 0),
    "fails": ("def test_a(): pass\ndef test_b(): assert False\n", "1 passed, 1 failed", 1),
    "skips": (
        "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no')\n",
        "1 passed, 0 failed, 1 skipped",
        0,
    ),
    "cannot_be_collected": ("import no_such_module\n", "0 passed, 1 failed", 1),
    "holds_nothing": ("", "0 passed, 0 failed", 1),
    "dies": ("import os, signal\ndef test_a(): os.kill(os.getpid(), signal.SIGKILL)\n", "0 passed, 1 failed", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_last_line_and_status(run_plain, repo, tmp_path, case):
    text, last_line, status = CASES[case]
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_case.py").write_text(text)
    command = [repo / "scripts" / "test", "--stage", "paddle-3.3.1", "--results", tmp_path / "results"]
    alone = [] if case == "dies" else ["-n", "0"]  # two workers for two tests take longer to start than to work
    job = run_plain([*command, *alone, "-c", tmp_path / "pytest.ini", tmp_path / "test_case.py"])
    assert job.stdout.splitlines()[-1] == last_line, str(job)
    assert job.returncode == status, str(job)


def test_what_passes_only_when_tried_again_is_named(run_plain, repo, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_case.py").write_text(
        "import pathlib\n"
        "def test_a():\n"
        "    seen = pathlib.Path(__file__).with_name('seen')\n"
        "    first = not seen.exists()\n"
        "    seen.touch()\n"
        "    assert not first\n"
        "def test_b(): assert False\n"
        "def test_c(): pass\n"
    )
    command = [repo / "scripts" / "test", "--stage", "paddle-3.3.1", "--results", tmp_path / "results"]
    job = run_plain([*command, "-c", tmp_path / "pytest.ini", tmp_path / "test_case.py"])
    assert [line for line in job.stdout.splitlines() if line.startswith("passed only when tried again")] == [
        "passed only when tried again: test_case::test_a"
    ], str(job)
    assert job.stdout.splitlines()[-1] == "2 passed, 1 failed", str(job)
    assert job.returncode == 1, str(job)


def test_ci_runs_all_of_it(repo):
    commands = [line for line in (repo / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "exec scripts/test"
