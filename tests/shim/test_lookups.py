"""Every way in which a program finds the driver's functions leads through us, and to the version that it asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

BYTES = 3 << 20

# A way to find cuMemAlloc, as lookups.c names them. Versions and flags are those that libcudart 11.8 to 13.0 ask with;
# flag 2 is the per-thread default stream, 1 the legacy one.
WAYS = [
    ("handle",),
    ("default",),
    ("next",),
    ("self",),
    *(("gpa1", version, flags) for version in (2000, 3020, 11030, 12090) for flags in (0, 1, 2)),
    *(("gpa2", version, flags) for version in (2000, 3020, 12000, 12090, 13000) for flags in (0, 1, 2)),
    *(("cudart", version, flags) for version in (3020, 11030, 12000) for flags in (0, 1, 2)),
]


def check(job) -> None:
    assert job.returncode == 0, job
    seen = job.result
    # What the driver handed out is what we saw, and neither has anything left.
    assert seen == {"seen": BYTES, "driver": BYTES, "left": 0, "peak": BYTES, "driver_left": 0}, job


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_way(program, library: Path, build: Path, way: tuple) -> None:
    env = {}
    if way[0] in ("default", "next", "self"):
        # These search the program's own scope: there, the driver comes after us.
        env["LD_PRELOAD"] = f"{library}:{build / 'simgpu' / 'lib' / 'libcuda.so.1'}"
    check(program("lookups", *way, env=env))


def test_way_handle_of_a_library_that_needs_the_driver(program, build: Path) -> None:
    check(program("lookups", "dependent", build / "simgpu" / "lib" / "libsimgpu-linked.so"))


def test_linked(program) -> None:
    check(program("linked"))


def test_constructor(program) -> None:
    """A library's constructor runs before ours."""
    check(program("early"))


@pytest.mark.parametrize("way", [("handle",), ("gpa2", 3020, 0)], ids=str)
def test_without_the_preload_nothing_is_seen(program, way: tuple) -> None:
    """That the programs can tell: without us they see nothing."""
    job = program("lookups", *way, preload=False)
    assert job.returncode == 0, job
    assert (job.result["seen"], job.result["driver"]) == (0, BYTES)


@pytest.mark.parametrize("way", [("handle",), ("gpa2", 3020, 0)], ids=str)
def test_off(program, way: tuple) -> None:
    job = program("lookups", *way, env={"BSGUARD": "0"})
    assert job.returncode == 0, job
    assert (job.result["seen"], job.result["driver"]) == (0, BYTES)
    assert job.runs == [] and job.stderr == ""


def test_old_and_new_dlsym(program) -> None:
    job = program("versions")
    assert job.returncode == 0, job
    lines = job.stdout.split()
    assert lines and all(line.endswith("=1") for line in lines), job
    if "GLIBC_2.34=1" in lines:
        assert len(lines) == 2


def test_no_driver(program) -> None:
    """Look-ups lead to nothing where they would without us, and dlerror() says why."""
    for arguments, preload in (((), False), (("preloaded",), True)):
        job = program("nodriver", *arguments, preload=preload, driver=False)
        assert job.returncode == 0, job
        assert job.runs == [] and job.stderr == ""
