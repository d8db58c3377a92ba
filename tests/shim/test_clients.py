"""Real clients of the driver, from the package index, on the simulated GPU: NVIDIA's runtimes, cuda-bindings, numba-cuda."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

MIB = 1 << 20

# Release: what marks it in cudart/lookups.txt, the package and its version, the library's name, the oldest driver for it.
RUNTIMES = {
    "11.8": ("a", "nvidia-cuda-runtime-cu11", "11.8", "libcudart.so.11.0", "lib-11.8"),
    "12.4": ("b", "nvidia-cuda-runtime-cu12", "12.4", "libcudart.so.12", "lib-12.4"),
    "12.9": ("c", "nvidia-cuda-runtime-cu12", "12.9", "libcudart.so.12", "lib-13.0"),
    "13.0": ("d", "nvidia-cuda-runtime", "13.0", "libcudart.so.13", "lib-13.0"),
}


class Lookup(NamedTuple):
    """What a runtime asks cuGetProcAddress() for."""

    name: str
    version: int
    flags: int


def lookups(repo: Path, release: str) -> Iterator[Lookup]:
    """The look-ups of a release of libcudart, in order."""
    mark = RUNTIMES[release][0]
    for line in (repo / "tests" / "shim" / "cudart" / "lookups.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        marks, name, *forms = line.split()
        if mark in marks:
            for form in forms:
                yield Lookup(name, int(form.rstrip("*")), 2 if form.endswith("*") else 0)


def hooked(repo: Path) -> set[str]:
    table = (repo / "hooks" / "cuda" / "hooks.def").read_text()
    return {line.split("(")[1].split(",")[0] for line in table.splitlines() if line.startswith("BSG_HOOK(")}


@pytest.mark.parametrize("release", RUNTIMES)
def test_recorded_lookups(program, repo: Path, build: Path, release: str) -> None:
    """The look-ups of each libcudart, call by call: the driver's answer, and ours in front of it where it is hooked."""
    asked = list(lookups(repo, release))
    assert len(asked) > 350
    ours = hooked(repo)
    text = "".join(f"{ask.name} {ask.version} {ask.flags}\n" for ask in asked)
    env = {"LD_LIBRARY_PATH": str(build / "simgpu" / RUNTIMES[release][4])}
    plain = program("matrix_opener_O2", "replay", preload=False, driver=False, env=env, stdin=text)
    guarded = program("matrix_opener_O2", "replay", driver=False, env=env, stdin=text)
    assert plain.returncode == guarded.returncode == 0, guarded
    assert plain.stdout.count("\n") == guarded.stdout.count("\n"), guarded
    answers = list(zip(plain.stdout.splitlines(), guarded.stdout.splitlines()))
    assert len(answers) == len(asked) + 1
    replaced = 0
    for one, other in answers:
        question, symbol, file = one.rsplit(" ", 2)
        expected = "libbsguard.so" if symbol in ours and file == "libcuda.so.1" else file
        assert other == f"{question} {symbol} {expected}"
        replaced += expected == "libbsguard.so"
    assert replaced > 30


@pytest.mark.parametrize("release", RUNTIMES)
def test_real_runtime(program, client, repo: Path, build: Path, release: str) -> None:
    """The library itself: what it found and keeps is ours, and nothing leads past us."""
    _, package, version, name, driver = RUNTIMES[release]
    library = next(client(package, version).rglob(name))
    env = {"LD_LIBRARY_PATH": str(build / "simgpu" / driver)}
    job = program("cudart_client", library, driver=False, env=env)
    assert job.returncode == 0, job
    assert job.result["past"] == []
    wanted = {
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocManaged",
        "cuMemHostAlloc",
        "cuMemGetInfo_v2",
        "cuArrayDestroy",
    }
    wanted |= {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync", "cuMemPoolCreate", "cuIpcOpenMemHandle_v2"}
    wanted |= {"cuModuleLoadData", "cuStreamCreate", "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphAddMemAllocNode"}
    assert wanted <= set(job.result["ours"]), job
    plain = program("cudart_client", library, preload=False, driver=False, env=env)
    assert plain.result["ours"] == [] and wanted <= set(plain.result["past"])
    for figure in ("driver", "devices", "cudaMalloc"):  # whatever it makes of a simulated driver
        assert plain.result[figure] == job.result[figure]


def run_client(run_plain, build: Path, library: Path, script: str, folders: list[Path]):
    return run_plain(
        [sys.executable, "-c", script],
        env={
            "LD_PRELOAD": str(library),
            "LD_LIBRARY_PATH": str(build / "simgpu" / "lib"),
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "SIMGPU_MEMORY": "64MiB",
        },
    )


def test_cuda_bindings(run_plain, client, build: Path, library: Path) -> None:
    folders = [client("cuda-bindings"), client("cuda-pathfinder")]
    script = """
from cuda.bindings import driver
def call(function, *arguments):
    result, *values = function(*arguments)
    assert result == driver.CUresult.CUDA_SUCCESS, (function, result)
    return values[0] if values else None
call(driver.cuInit, 0)
call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
plain = call(driver.cuMemAlloc, 3 << 20)
pooled = call(driver.cuMemAllocAsync, 1 << 20, 0)
refused, = driver.cuMemAlloc(1 << 30)[:1]
assert refused == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
call(driver.cuMemFreeAsync, pooled, 0)
call(driver.cuMemFree, plain)
"""
    job = run_client(run_plain, build, library, script, folders)
    assert job.returncode == 0, job
    seen = job.events_of("absorbed", "oom")
    assert [(event["api"], event["request_bytes"]) for event in seen] == [("cuMemAlloc_v2", 1 << 30)], job.events
    assert job.events_of("mark")[0]["live_bytes"] == 3 * MIB
    assert job.events_of("stop")[0]["peak_bytes"] == 5 * MIB  # the pool took a piece of 2 MiB


def test_numba(run_plain, client, build: Path, library: Path) -> None:
    names = ["numba-cuda", "numba", "llvmlite", "numpy", "cuda-bindings", "cuda-pathfinder"]
    folders = [client(name) for name in names]
    script = """
import numpy
from numba import cuda
host = numpy.arange(1 << 20, dtype=numpy.float32)
device = cuda.to_device(host)
assert (device.copy_to_host() == host).all()
pinned = cuda.pinned_array(1000, dtype=numpy.float32)
"""
    job = run_client(run_plain, build, library, script, folders)
    assert job.returncode == 0, job
    assert job.events_of("mark")[0]["live_bytes"] == 4 * MIB
    assert job.events_of("stop")[0]["peak_bytes"] == 4 * MIB  # host memory is no device memory
