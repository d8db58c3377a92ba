"""The other machine: cross-built for aarch64, its look-ups and routes run under qemu-user."""

from __future__ import annotations

import fcntl
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Optional

import pytest

COMPILER = "aarch64-linux-gnu-gcc"
SYSROOT = Path("/usr/aarch64-linux-gnu")  # where Debian's libc6-dev-arm64-cross has it
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

pytestmark = [
    pytest.mark.skipif(platform.machine() == "aarch64", reason="this is the other machine"),
    pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER} (package gcc-aarch64-linux-gnu)"),
    pytest.mark.skipif(not QEMU, reason="no qemu-aarch64 (package qemu-user-static)"),
]


def from_cache(build: Path, name: str) -> Optional[str]:
    """What CMake was told when the build folder was made."""
    found = re.search(rf"^{name}:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found.group(1) if found else None


@pytest.fixture(scope="module")
def arm(repo: Path, build: Path) -> Path:
    """A build folder for aarch64, within the build folder."""
    folder = build / "aarch64"
    cmake = from_cache(build, "CMAKE_COMMAND") or "cmake"
    headers = from_cache(build, "BSG_CUDA_INCLUDE")
    options = [f"-DCMAKE_TOOLCHAIN_FILE={repo / 'cmake' / 'aarch64.cmake'}", f"-DBSG_CUDA_INCLUDE={headers}"]
    targets = [
        "bsguard",
        "simgpu_driver",
        "lookups",
        "versions",
        "matrix_O0",
        "matrix_O2",
        "life",
        "job",
        "test_routes",
    ]
    folder.mkdir(exist_ok=True)
    lock = (folder / "lock").open("w")  # several workers may want it at once
    fcntl.flock(lock, fcntl.LOCK_EX)
    for command in (
        [cmake, "-S", repo, "-B", folder, *(options if headers else options[:1])],
        [cmake, "--build", folder, "--parallel", "2", "--target", *targets, "test_agreement"],
    ):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lock.close()
    return folder


@pytest.fixture
def emulated(run_plain, arm: Path):
    """Runs a program of that build: emulated(path, *arguments, preload=True, **environment) -> Job."""

    def run(path: str, *arguments: object, preload: bool = True, **variables: str):
        variables["LD_LIBRARY_PATH"] = str(arm / "simgpu" / "lib")
        if preload:
            variables["LD_PRELOAD"] = str(arm / "libbsguard.so")
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        command = [QEMU, "-L", SYSROOT, *given, arm / path, *map(str, arguments)]
        return run_plain(command, timeout=300)

    return run


@pytest.mark.parametrize("way", ["handle", "gpa1 11030 0", "gpa2 3020 0", "gpa2 12000 2", "cudart 12000 0"])
def test_way(emulated, way: str) -> None:
    job = emulated("tests/shim/lookups", *way.split())
    assert job.returncode == 0, job
    assert job.result == {"seen": 3 << 20, "driver": 3 << 20, "left": 0, "peak": 3 << 20, "driver_left": 0}


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_matrix(emulated, level: str) -> None:
    """Every look-up finds the function that it finds without us."""
    arguments = (f"tests/shim/matrix_{level}", "handle", "next", "default", "linked", "table")
    plain, guarded = emulated(*arguments, preload=False), emulated(*arguments)
    assert plain.returncode == guarded.returncode == 0, guarded
    ours = 0
    assert plain.stdout.count("\n") == guarded.stdout.count("\n"), guarded
    for one, other in zip(plain.stdout.splitlines(), guarded.stdout.splitlines()):
        if one.startswith("linked ") and one.endswith("- -"):
            continue
        assert one.replace("libcuda.so.1", "FILE") == re.sub("libcuda.so.1|libbsguard.so", "FILE", other)
        ours += other.endswith("libbsguard.so")
    assert ours > 1000


def test_versions_of_dlsym(emulated) -> None:
    job = emulated("tests/shim/versions")
    assert job.returncode == 0 and job.stdout.split() and all(line.endswith("=1") for line in job.stdout.split()), job


def test_routes(emulated) -> None:
    job = emulated("tests/cuda/test_routes", preload=False, SIMGPU_MEMORY="64MiB")
    assert job.returncode == 0, job
    job = emulated("tests/cuda/test_agreement", 8, 2000, preload=False, SIMGPU_MEMORY="96MiB", SIMGPU_FAIL_CALLS="all")
    assert job.returncode == 0, job


def test_marked_as_protected(arm: Path) -> None:
    notes = subprocess.run(["readelf", "-nW", arm / "libbsguard.so"], capture_output=True, text=True, check=True).stdout
    assert "AArch64 feature: BTI" in notes, notes
