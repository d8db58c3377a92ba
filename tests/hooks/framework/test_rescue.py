"""The main job: a training loop that runs out of memory finishes, with the gradient of the whole batch.

The reference is the same loop with enough memory and without the preload. Capacities are fractions of what it took then.
"""

import importlib.util
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
JOB = HERE / "jobs" / "training.py"
_spec = importlib.util.spec_from_file_location("comparing", HERE / "comparing.py")
comparing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(comparing)

_references = {}


@pytest.fixture
def reference(run_job, tmp_path_factory):
    """reference(*options) -> (file of a plain run with enough memory, its peak in bytes), made once for each."""

    def make(*options):
        if options not in _references:
            folder = tmp_path_factory.mktemp("reference")
            observed = run_job(JOB, folder / "out.npz", *options, env={"BSGUARD": "observe"}, name="observed")
            assert observed.returncode == 0, observed
            plain = run_job(JOB, folder / "plain.npz", *options, preload=False, name="reference")
            assert plain.returncode == 0, plain
            assert comparing.identical(folder / "plain.npz", folder / "out.npz"), "observing changed the result"
            _references[options] = folder / "plain.npz", observed.events_of("stop")[0]["peak_bytes"]
        return _references[options]

    return make


def guarded(run_job, tmp_path, options, memory, **more):
    """Runs the job with `memory` bytes under the preload; returns (job, file)."""
    out = tmp_path / "guarded.npz"
    job = run_job(JOB, out, *options, memory=str(int(memory)), **more)
    assert job.returncode == 0, job
    return job, out


def test_float64_gradients_in_2_to_16_chunks_with_oom_in_forward_and_backward(run_job, tmp_path, reference):
    plain, peak = reference()
    seen, phases = set(), set()
    for fraction in (0.85, 0.62, 0.4, 0.27):
        job, out = guarded(run_job, tmp_path, (), peak * fraction)
        assert comparing.difference(plain, out, "gradient_") <= 1e-10, job
        assert comparing.difference(plain, out, "state_") <= 1e-10, job
        assert {event["exactness"] for event in job.events_of("applied")} == {"exact"}
        seen |= {event["accumulation_steps"] for event in job.events_of("step")}
        phases |= {event["phase"] for event in job.events_of("oom")}
    # Halved; far down where half did not fit either; then what fits, where Paddle can measure that.
    assert {2, 16} <= seen, seen
    assert {"forward", "backward"} <= phases


def test_unguarded_it_dies(run_job, tmp_path, reference):
    _, peak = reference()
    job = run_job(JOB, tmp_path / "x.npz", memory=str(int(peak * 0.6)), preload=False)
    assert job.returncode == 1
    assert "MemoryError" in job.stderr and "ResourceExhaustedError" in job.stderr
    assert not (tmp_path / "x.npz").exists()


def test_the_signal(run_job, tmp_path, reference):
    """control.json goes from (batch, 1) to (batch/2, 2) and on, each sequence once; oom, decision, applied in order."""
    _, peak = reference()
    job, _ = guarded(run_job, tmp_path, (), peak * 0.3)
    decisions = job.events_of("decision")
    assert [event["sequence"] for event in decisions] == list(range(1, len(decisions) + 1))
    sizes = [(event["micro_batch"], event["accumulation_steps"]) for event in decisions]
    assert sizes[:3] == [(32, 1), (16, 2), (2, 16)]
    reasons = [event["reason"] for event in decisions]
    assert reasons[:3] == ["start", "oom", "oom"] and set(reasons[3:]) <= {"regrow"}, job
    order = [event["type"] for event in job.events_of("oom", "decision", "applied")][1:]
    assert order == ["oom", "decision", "applied"] * 2 + ["decision", "applied"] * (len(sizes) - 3)
    control = job.control
    assert control["sequence"] == len(sizes) and (control["micro_batch"], control["accumulation_steps"]) == sizes[-1]
    assert control["entries"][0]["boundary"] == "Convolutional"
    assert control["previous"]["micro_batch"] == sizes[-2][0]
    told = [line for line in job.lines_of_bsguard if "now runs" in line]
    assert len(told) == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--loss", "layer", "--optimizer", "Momentum"),
        ("--accumulate", "2"),
        ("--clear", "drop"),
        ("--clear", "never", "--optimizer", "SGD"),
        ("--penalty",),
        ("--look",),
        ("--last-batch", "5"),
        ("--model", "transformer"),
        ("--model", "loss-inside"),
    ],
    ids=" ".join,
)
def test_loops(run_job, tmp_path, reference, options):
    """However the loop treats its gradients, they come out the same."""
    plain, peak = reference(*options)
    job, out = guarded(run_job, tmp_path, options, peak * 0.55)
    assert job.events_of("applied"), job
    assert comparing.difference(plain, out, "gradient_") <= 1e-10, job
    assert comparing.difference(plain, out, "losses") <= 1e-10, job


def test_a_short_last_batch_is_not_split_needlessly(run_job, tmp_path):
    job, _ = guarded(run_job, tmp_path, ("--last-batch", "5"), 20 << 20)
    steps = job.events_of("step")
    assert steps[-2]["batch"] == 32 and steps[-2]["accumulation_steps"] > 1, job
    assert steps[-1]["batch"] == 5 and steps[-1]["accumulation_steps"] == 1, job


def test_batchnorm_is_called_approximate(run_job, tmp_path, reference):
    options = ("--model", "batchnorm", "--steps", "2")
    plain, peak = reference(*options)
    job, out = guarded(run_job, tmp_path, options, peak * 0.6)
    applied = job.events_of("applied")
    assert applied and {event["exactness"] for event in applied} == {"approximate"}
    assert all("batch_norm" in event["because"] for event in applied)
    # Statistics count once, and are those of the whole batch: they differ by the batch that each layer saw, no more.
    assert comparing.difference(plain, out, "state_body.1._") < 0.05


def test_dropout_is_called_equivalent(run_job, tmp_path, reference):
    options = ("--model", "dropout", "--steps", "2")
    _, peak = reference(*options)
    job, _ = guarded(run_job, tmp_path, options, peak * 0.6)
    for event in job.events_of("applied"):
        expected = "approximate" if event["phase"] == "backward" else "equivalent"
        assert event["exactness"] == expected and "dropout" in event["because"], event
    assert job.events_of("applied")


def test_evaluation_is_split_apart_from_training(run_job, tmp_path, reference):
    options = ("--evaluate", "160", "--batch", "4")
    plain, peak = reference(*options)
    job, out = guarded(run_job, tmp_path, options, peak * 0.5)
    assert {event["phase"] for event in job.events_of("oom")} == {"evaluation"}, job
    assert comparing.difference(plain, out, "evaluations") <= 1e-10
    assert comparing.difference(plain, out, "state_") <= 1e-12
    assert (job.control["sequence"], job.control["micro_batch"]) == (1, 4)
    assert {event["accumulation_steps"] for event in job.events_of("step")} == {1}


def test_enough_memory_changes_nothing(run_job, tmp_path, reference):
    """Bit-identical results; disarmed after the first step; the same peak."""
    plain, peak = reference()
    job, out = guarded(run_job, tmp_path, (), peak * 2)
    assert comparing.identical(plain, out)
    assert job.lines_of_bsguard == []
    (disarmed,) = job.events_of("disarmed")
    assert disarmed["for_good"] is False
    after_first = [event["type"] for event in job.events].index("disarmed")
    assert [event["type"] for event in job.events[:after_first]].count("step") == 1
    assert job.events_of("stop")[0]["peak_bytes"] <= peak * 1.02
    assert job.control["sequence"] == 1


def test_an_absorbed_oom_shrinks_nothing(run_job, tmp_path, reference):
    plain, _ = reference()
    job, out = guarded(run_job, tmp_path, (), 256 << 20, simgpu=("--fail-at", "9"))
    assert comparing.identical(plain, out)
    assert len(job.events_of("absorbed")) == 1 and not job.events_of("oom")
    assert job.control["sequence"] == 1


def test_observe_only_records(run_job, tmp_path, reference):
    _, peak = reference()
    job = run_job(JOB, tmp_path / "x.npz", memory=str(int(peak * 0.6)), env={"BSGUARD": "observe"})
    plain = run_job(JOB, tmp_path / "x.npz", memory=str(int(peak * 0.6)), preload=False)
    assert job.returncode == plain.returncode == 1
    assert job.stderr.strip().splitlines()[-1] == plain.stderr.strip().splitlines()[-1] or "MemoryError" in job.stderr
    assert len(job.events_of("oom")) == 1 and not job.events_of("decision", "applied")
    assert job.control is None and (job.run / "report.txt").exists()
