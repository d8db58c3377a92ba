"""Every Python that is at hand, in every way it may be started: it finds the Python half, or is left alone, and never notices.

A stand-in for paddle shows where the half waits; what it does inside the true one is tested with each supported Paddle.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
OLDEST = (3, 7)  # of the Python half; Paddle itself needs 3.8

# Runs under any Python: what is armed, what the user's own start-up file did, and what others would see of us.
SHOW = """
import json, os, sys
armed = [f for f in sys.meta_path if type(f).__module__.split(".")[0] == "bsguard_paddle"]
ours = [e for e in sys.path + os.environ.get("PYTHONPATH", "").split(os.pathsep) if e.endswith(os.path.join("bsguard", "inject"))]
print(json.dumps({"armed": len(armed), "seen": ours, "own": getattr(sys, "own_start", 0), "name": __name__,
                  "path": os.environ.get("PYTHONPATH"), "version": list(sys.version_info[:2])}))
"""


def find(version: str) -> Optional[Path]:
    """A Python of this version: on PATH, of pyenv, or the one that runs the tests."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    found = shutil.which(f"python{version}")
    if found and "/shims/" not in found:
        places.append(Path(found))
    return next((path for path in places if subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0), None)


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    """A Python of each version that is at hand."""
    found = find(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    return found


def test_each_way_to_start_it(python: Path, library: Path, tmp_path: Path, run_plain) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.own_start = getattr(sys, 'own_start', 0) + 1\n")
    (tmp_path / "job.py").write_text(SHOW)
    env = {"LD_PRELOAD": str(library), "PYTHONPATH": str(tmp_path / "own"), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(*words: str, stdin: Optional[str] = None):
        job = run_plain([python, *words], env=env, stdin=stdin)
        assert job.returncode == 0 and job.stderr == "", job
        return job.result

    for words in (["job.py"], ["-m", "job"], ["-c", SHOW], ["-"], ["-u", "-W", "ignore", "job.py"]):
        got = start(*words, stdin=SHOW if words == ["-"] else None)
        assert got["armed"] == (tuple(got["version"]) >= OLDEST), (words, got)
        assert got["seen"] == [] and got["own"] == 1 and got["name"] == "__main__", (words, got)
        assert got["path"] == str(tmp_path / "own"), got
    for flags in (["-E"], ["-S"], *([["-I"]] if got["version"][0] == 3 else [])):
        deaf = start(*flags, "job.py")
        assert deaf["armed"] == 0, (flags, deaf)  # and nothing is said before there is a device: doctor says it


def test_the_half_can_be_parsed_and_steps_aside(
    python: Path, library: Path, repo: Path, tmp_path: Path, run_plain
) -> None:
    """A paddle that is none is imported: the half finds nothing that it knows, says so in a line, and the job goes on."""
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").write_text("__version__ = '0.0.0'\nimported = 1\n")
    files = sorted(str(path) for path in (repo / "hooks" / "framework").rglob("*.py"))
    code = (
        "import sys\n"
        "if sys.version_info >= (3, 7):\n"
        f"    for name in {files!r}:\n"
        "        compile(open(name, 'rb').read(), name, 'exec')\n"
        "import paddle\nprint(paddle.imported)\n"
    )
    job = run_plain([python, "-c", code], env={"LD_PRELOAD": str(library), "PYTHONPATH": str(tmp_path)})
    assert job.returncode == 0 and job.stdout.strip() == "1", job
    assert len(job.stderr.splitlines()) <= 1 and job.stderr.count("bsguard") == len(job.stderr.splitlines()), job


@pytest.mark.parametrize("kind", ["symlinks", "copies"])
def test_a_virtual_environment(kind: str, library: Path, tmp_path: Path, run_plain) -> None:
    """One that was made before, whose own folder has a sitecustomize: a prefix of its own, as conda's are."""
    python = find("3.12") or Path(sys.executable)
    subprocess.run([python, "-m", "venv", "--without-pip", f"--{kind}", tmp_path / "prefix"], check=True)
    (site,) = (tmp_path / "prefix").glob("lib/python3*/site-packages")
    (site / "sitecustomize.py").write_text("import sys\nsys.own_start = 1\n")
    job = run_plain([tmp_path / "prefix" / "bin" / "python", "-c", SHOW], env={"LD_PRELOAD": str(library)})
    assert job.returncode == 0, job
    assert job.result["armed"] == 1 and job.result["own"] == 1 and job.result["path"] is None, job


def test_another_preload_and_children(build: Path, library: Path, tmp_path: Path, run_plain) -> None:
    """Another library in LD_PRELOAD, on either side; a child of Python's, and one behind a shell, are found by us too."""
    other = build / "tests" / "shim" / "libfailing.so"
    code = f"import subprocess, sys\nsys.exit(subprocess.call(['sh', '-c', 'exec \"$@\"', 'sh', sys.executable, '-c', {SHOW!r}]))"
    for preload in (f"{library}:{other}", f"{other} {library}"):
        job = run_plain([sys.executable, "-c", code], env={"LD_PRELOAD": preload})
        assert job.returncode == 0 and job.stderr == "" and json.loads(job.stdout)["armed"] == 1, job


NOTEBOOK = """
import nbclient, nbformat

cells = [
    '''import paddle, paddle.nn as nn; paddle.set_device('gpu')
net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())])
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())''',
    '''for step in range(2):
    net(paddle.ones([1024, 256])).square().mean().backward(); optimizer.step(); optimizer.clear_grad()
print('finished')''',
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(notebook, timeout=200).execute()
print("".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs))
"""


@pytest.mark.slow
def test_a_notebook(build: Path, repo: Path, library: Path, tmp_path: Path, run_plain) -> None:
    """A kernel that a notebook starts is guarded. Whether its lines are in the notebook or behind it is a race of theirs."""
    folder = build / "clients" / f"notebook-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not (folder / "nbclient").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", folder]
        done = subprocess.run(
            [*pip, "-r", repo / "requirements" / "notebook.txt"], capture_output=True, text=True, timeout=280
        )
        if done.returncode != 0:
            pytest.skip(f"no notebook can be fetched here: {done.stderr.strip().splitlines()[-1]}")
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    env = {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(folder),
        "SIMGPU_BUILD": str(build / "simgpu"),
        "HOME": str(tmp_path),
    }
    job = run_plain([repo / "scripts/simgpu", "--memory", "10MiB", "--", sys.executable, script], env=env, timeout=280)
    assert job.returncode == 0 and "finished" in job.stdout, job
    assert "Sequential now runs 1024 as" in job.stdout + job.stderr and job.events_of("applied"), job
