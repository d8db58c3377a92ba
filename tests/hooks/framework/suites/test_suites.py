"""Training loops of the Paddle ecosystem, unchanged, at 60 % of the memory that they take.

What needs Paddle alone is run by default. The suites (PaddleClas, PaddleSeg, PaddleDetection, PaddleNLP) are older than
the current Paddle and have requirements of their own: they are slow tests with Paddle 2.6.2, for which packages.txt is
installed, without what those packages ask for beside it, into a folder in the build folder.
"""

import fcntl
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
_spec = importlib.util.spec_from_file_location("comparing", HERE.parent / "comparing.py")
comparing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(comparing)


class Suite:
    """Runs one job plain, unguarded at a part of its peak, and guarded."""

    def __init__(self, run_job, folder, env=None):
        self._run_job, self._folder, self._env = run_job, folder, env or {}
        self.plain, self.guarded = folder / "plain.npz", folder / "guarded.npz"

    def check(self, job, *options, fraction=0.6, exactness, timeout=280):
        """Asserts that it dies unguarded and finishes guarded; returns the guarded Job."""

        def run(out, **more):
            env = dict(self._env, **more.pop("env", {}))
            return self._run_job(HERE / job, out, *options, env=env, timeout=timeout, **more)

        observed = run(self.plain, memory="8GiB", env={"BSGUARD": "observe"})
        assert observed.returncode == 0, observed
        peak = observed.events_of("stop")[0]["peak_bytes"]
        memory = str(int(peak * fraction))
        unguarded = run(self._folder / "none.npz", memory=memory, preload=False)
        assert unguarded.returncode == 1 and "MemoryError" in unguarded.stderr, unguarded
        guarded = run(self.guarded, memory=memory)
        assert guarded.returncode == 0 and guarded.events_of("applied"), guarded
        assert {event["exactness"] for event in guarded.events_of("applied")} == {exactness}, guarded
        assert len(guarded.events_of("step")) == len(observed.events_of("step")), guarded
        assert max(event["accumulation_steps"] for event in guarded.events_of("step")) > 1, guarded
        return guarded

    def difference(self, prefix):
        """Of the guarded run from the plain one."""
        return comparing.difference(self.plain, self.guarded, prefix)


@pytest.fixture
def suite(run_job, tmp_path):
    """A Suite of jobs that need Paddle alone."""
    return Suite(run_job, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        ("--accumulate", "3", "--evaluate", "150"),
        pytest.param(("--amp", "O1", "--evaluate", "40"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_fit_of_lenet(suite, options):
    """paddle.Model.fit with a metric, a schedule, a callback, an evaluation: the same numbers."""
    suite.check("fit.py", "--batch", "64", "--samples", "150", *options, exactness="exact")
    for name in ("losses", "evaluations", "state_"):
        assert suite.difference(name) <= 1e-4, name
    assert suite.difference("rates") == 0


def test_fit_of_mobilenet_says_that_it_is_approximate(suite):
    guarded = suite.check("fit.py", "--model", "mobilenet", "--batch", "32", "--pixels", "64", exactness="approximate")
    assert all(event["because"] == ["batch_norm"] for event in guarded.events_of("applied"))
    assert suite.difference("losses") < 0.1


@pytest.mark.slow
def test_fit_of_resnet(suite):
    options = ("--model", "resnet18", "--batch", "48", "--samples", "112", "--epochs", "1", "--pixels", "80")
    suite.check("fit.py", *options, "--evaluate", "80", "--frozen-statistics", exactness="exact")
    assert suite.difference("losses") <= 1e-4 and suite.difference("state_") <= 1e-3


@pytest.fixture(scope="session")
def packages(build):
    """A folder with the packages of packages.txt for this Python; skips where they cannot be had."""
    if sys.version_info < (3, 9) or not _has_paddle_26():
        pytest.skip("the suites are run with Paddle 2.6.2 and Python 3.9 or newer")
    wanted = HERE / "packages.txt"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = build / "suites" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, "-r", wanted]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if done.returncode != 0:
                pytest.skip("packages.txt could not be installed: " + done.stderr.strip()[-300:])
            (folder / "complete").touch()
    return folder


def _has_paddle_26():
    code = "import json, importlib.metadata as m; print(json.dumps(m.version('paddlepaddle')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and json.loads(done.stdout).startswith("2.6.")


@pytest.fixture
def installed(run_job, tmp_path, packages):
    """A Suite of jobs that need the packages."""
    return Suite(run_job, tmp_path, {"PYTHONPATH": str(packages)})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        ("--model", "unet"),
        ("--model", "fastscnn", "--pixels", "96"),
        ("--model", "segformer", "--batch", "16", "--loss", "mixed"),
    ],
    ids=" ".join,
)
def test_paddleseg(installed, options):
    installed.check("seg.py", *options, exactness="approximate")
    assert installed.difference("losses") < 0.1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_paddledetection(installed):
    """A network that returns a dict of losses, each normalised in a way of its own, and keeps its inputs at hand."""
    guarded = installed.check("det.py", "--model", "ppyoloe", "--pixels", "160", exactness="approximate")
    assert all("loss inside the model" in event["because"] for event in guarded.events_of("applied"))
    assert installed.difference("losses") < 0.1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [(), ("--model", "MobileNetV1", "--recognition")], ids=" ".join)
def test_paddleclas(installed, packages, options):
    """PaddleClas builds on paddle.nn.BatchNorm, which is not of the family of BatchNorm2D."""
    options = ("--ppcls", packages / "PaddleClas", "--batch", "32", *options)
    guarded = installed.check("clas.py", *options, exactness="approximate")
    assert all("batch_norm" in event["because"] for event in guarded.events_of("applied"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_paddlenlp_with_a_loss_outside(installed):
    installed.check("nlp.py", "--model", "bert", exactness="exact")
    for name in ("losses", "evaluations", "state_"):
        assert installed.difference(name) <= 1e-4, name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options", [("--model", "gpt"), ("--model", "llama", "--accumulate", "2", "--save")], ids=" ".join
)
def test_paddlenlp_with_a_loss_over_tokens_inside(installed, options):
    installed.check("nlp.py", *options, exactness="approximate")
    assert installed.difference("losses") < 0.01
