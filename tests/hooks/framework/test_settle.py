"""How soon a job settles: two OOMs at most for inputs of one shape, none in its second run, up again when there is room.

The figures come from the events of real jobs on the simulated GPU; capacities are fractions of what the job takes whole.
"""

import os
import pathlib
import stat

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "training.py"
SIZE = ("--dtype", "float32", "--batch", "64")
_whole = {}
pytestmark = pytest.mark.slow_on_26


@pytest.fixture
def whole(run_job, tmp_path):
    """Bytes that the job takes whole, measured once."""
    if SIZE not in _whole:
        job = run_job(JOB, tmp_path / "w.npz", *SIZE, "--steps", "2", env={"BSGUARD": "observe"}, name="whole")
        assert job.returncode == 0, job
        _whole[SIZE] = job.events_of("stop")[0]["peak_bytes"]
    return _whole[SIZE]


def start(run_job, tmp_path, capacity, steps, name, **options):
    job = run_job(
        JOB, tmp_path / "out.npz", *SIZE, "--steps", str(steps), memory=str(int(capacity)), name=name, **options
    )
    assert job.returncode == 0, job
    return job


@pytest.mark.parametrize("times", [1.3, 3, 9])
def test_two_ooms_at_most_until_settled(run_job, tmp_path, whole, times):
    job = start(run_job, tmp_path, whole / times, 6, "first")
    ooms = job.events_of("oom")
    assert 1 <= len(ooms) <= 2, job
    assert {event["step"] for event in ooms} == {1}, job


def test_the_second_run_meets_no_oom_and_another_job_learns_nothing_from_it(run_job, tmp_path, whole):
    first = start(run_job, tmp_path, whole / 3, 5, "job")
    assert first.events_of("oom"), first
    files = sorted((first.folder / "state" / "bsguard").iterdir())
    assert [path.name for path in files if path.suffix != ".jsonl"] == ["lock"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    state = {"XDG_STATE_HOME": str(first.folder / "state")}
    (first.folder / "bsguard").rename(tmp_path / "first-run")

    second = start(run_job, tmp_path, whole / 3, 5, "job")
    assert not second.events_of("oom"), second
    assert [event["reason"] for event in second.events_of("decision")][:2] == ["start", "restored"], second
    assert any("known from an earlier run" in line for line in second.lines_of_bsguard), second
    assert not any("OOMs met" in line for line in second.lines_of_bsguard), second

    other = start(run_job, tmp_path, whole / 3, 6, "other", env=state)  # another folder, other arguments
    assert other.events_of("oom"), other


def test_a_file_that_is_none_of_ours_is_refused_in_one_line_and_replaced(run_job, tmp_path, whole):
    first = start(run_job, tmp_path, whole / 3, 5, "job")
    (path,) = (first.folder / "state" / "bsguard").glob("*.jsonl")
    good = path.read_text()
    path.write_text("\x00\xff not ours")
    (first.folder / "bsguard").rename(tmp_path / "first-run")
    second = start(run_job, tmp_path, whole / 3, 5, "job")
    assert second.events_of("oom"), second
    told = [line for line in second.lines_of_bsguard if "earlier runs" in line]
    assert len(told) == 1 and "BSGUARD_STORE=0" in told[0], second
    assert path.read_text().splitlines()[0] == good.splitlines()[0]


def test_switched_off_it_leaves_nothing(run_job, tmp_path, whole):
    job = start(run_job, tmp_path, whole / 3, 4, "off", env={"BSGUARD_STORE": "0"})
    assert job.events_of("oom"), job
    assert not (job.folder / "state").exists()


def test_a_job_that_never_runs_out_leaves_no_store(run_job, tmp_path, whole):
    job = start(run_job, tmp_path, whole * 2, 2, "enough")
    assert not job.events_of("oom"), job
    assert not (job.folder / "state").exists()


def test_a_spike_is_over_when_it_is_over(run_job):
    """Memory is short for a few steps, since something else of the job holds most of it; then it is back."""
    job = run_job(
        """
        import paddle

        paddle.set_device("gpu")
        net = paddle.nn.Sequential(*[paddle.nn.Linear(256, 256) for _ in range(8)])
        optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
        held = None
        for step in range(150):
            if step == 6:
                held = paddle.zeros([6 << 20], "float32")
            if step == 10:
                held = None
                paddle.device.cuda.empty_cache()
            net(paddle.ones([1024, 256])).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        print("{}")
        """,
        memory="36MiB",
    )
    assert job.returncode == 0, job
    steps = job.events_of("step")
    assert steps[4]["accumulation_steps"] == 1, job
    assert max(event["accumulation_steps"] for event in steps[6:10]) > 1, job
    assert steps[-1]["accumulation_steps"] == 1, job
    assert len(job.events_of("oom")) <= 3, job
    assert any("whole again" in line for line in job.lines_of_bsguard), job


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_store_of_another_user_is_neither_read_nor_written(run_job, tmp_path, whole):
    folder = tmp_path / "theirs" / "bsguard"
    folder.mkdir(parents=True, mode=0o755)
    os.chown(folder, 12345, 12345)
    job = start(run_job, tmp_path, whole / 3, 4, "job", env={"XDG_STATE_HOME": str(folder.parent)})
    told = [line for line in job.lines_of_bsguard if "another user" in line]
    assert len(told) == 1, job
    assert not list(folder.iterdir())
