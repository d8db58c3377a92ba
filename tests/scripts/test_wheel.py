"""The wheel: what is in it, the oldest glibc that it runs on, and that an installed one rescues a job."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # the first build fetches a compiler

INSIDE = "bsguard_cli/native/"

JOB = """
import paddle
import paddle.nn as nn

paddle.set_device("gpu")
net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())])
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
for step in range(2):
    net(paddle.ones([1024, 256])).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
print("finished")
"""


@pytest.fixture(scope="session")
def wheel(repo: Path) -> Path:
    """The wheel, as scripts/wheel makes it."""
    output = repo / "build" / "dist"
    output.mkdir(parents=True, exist_ok=True)
    with open(output / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of these tests may be at it
        done = subprocess.run(
            [repo / "scripts" / "wheel", "--output", output], cwd=repo, capture_output=True, text=True, timeout=800
        )
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.strip().splitlines()[-1])
        copy = output / f".{os.getpid()}" / path.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    yield copy
    copy.unlink()
    copy.parent.rmdir()


def test_the_tag_is_honest(wheel: Path, tmp_path: Path) -> None:
    """No symbol that the library or the program beside it needs is newer than the glibc that the name promises."""
    name = re.fullmatch(r"bsguard-[\d.]+-py3-none-(?:manylinux\w+?\.)?manylinux_(\d+)_(\d+)_\w+\.whl", wheel.name)
    assert name, wheel.name
    promised = tuple(map(int, name.groups()))
    assert promised == (2, 17)
    for binary in ("libbsguard.so", "bsguard-options"):
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(INSIDE + binary, tmp_path))
        needed = subprocess.run(["readelf", "-V", path], capture_output=True, text=True, check=True).stdout
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", needed)}
        assert versions and max(versions)[:2] <= promised, (binary, versions)


def test_it_holds_what_the_repository_holds(wheel: Path, repo: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder, inside in (("hooks/framework", INSIDE + "bsguard/"), ("scripts/bsguard_cli", "bsguard_cli/")):
            files = subprocess.run(
                ["git", "ls-files", folder], cwd=repo, capture_output=True, text=True, check=True
            ).stdout.split()
            for file in files:
                there = inside + str(Path(file).relative_to(folder))
                assert there in names, there
                assert archive.read(there) == (repo / file).read_bytes(), there
        assert archive.read(INSIDE + "bsguard.h") == (repo / "shim" / "bsguard.h").read_bytes()
        assert any(name.endswith(".data/data/share/man/man1/bsguard.1") for name in names)
        assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_its_library_passes_the_tests_of_the_shim(wheel: Path, repo: Path, build: Path, tmp_path: Path) -> None:
    """It was made by another compiler against another C library than the one that all other tests use."""
    folder = tmp_path / "build"
    folder.mkdir()
    for path in build.iterdir():
        if path.name not in ("libbsguard.so", "dist"):
            (folder / path.name).symlink_to(path)
    with zipfile.ZipFile(wheel) as archive:
        (folder / "libbsguard.so").write_bytes(archive.read(INSIDE + "libbsguard.so"))
    tests = [repo / "tests" / "shim" / f"test_{name}.py" for name in ("exports", "lookups", "life", "process")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        cwd=repo,
        env={**os.environ, "BSG_BUILD": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_installed_it_rescues_a_job(wheel: Path, repo: Path, build: Path, tmp_path: Path, run_plain) -> None:
    """In an environment of its own; the job has another Python, as it would have."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    bsguard = environment / "bin" / "bsguard"

    library = run_plain([bsguard, "lib"])
    assert library.returncode == 0 and Path(library.stdout.strip()).is_relative_to(environment), library

    script = tmp_path / "job.py"
    script.write_text(JOB)
    simulated = [repo / "scripts" / "simgpu", "--memory", "10MiB", "--"]
    job = [sys.executable, script]
    env = {"SIMGPU_BUILD": str(build / "simgpu")}
    alone = run_plain([*simulated, *job], env=env)
    assert alone.returncode == 1 and "MemoryError" in alone.stderr, alone
    rescued = run_plain([*simulated, bsguard, "run", "--", *job], env=env)
    assert rescued.returncode == 0 and "finished" in rescued.stdout, rescued
    assert rescued.events_of("applied"), rescued
    told = run_plain([bsguard, "report", rescued.run])
    assert told.returncode == 0 and "1024" in told.stdout, told
