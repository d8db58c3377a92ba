"""Who else is on the device, in the report of a whole process: by an NVML that says so, by an empty one, and after all."""

from __future__ import annotations

import json
import os
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30


def report_of(program, build: Path, nvml: str) -> tuple[str, dict]:
    """Both reports of a job that ran out of memory, with an NVML from build/tests/NVML."""
    folders = [build / "simgpu" / "lib", build / "tests" / nvml]
    variables = {
        "SIMGPU_MEMORY": "64MiB",
        "LD_LIBRARY_PATH": ":".join(map(str, folders)),
        "FAKE_NVML_FAMILY": "1",
    }
    job = program("job", f"alloc={4 * MIB}", f"alloc={512 * MIB}", "unrescued", "exit=6", env=variables)
    assert job.returncode == 6, job
    return (job.run / "report.txt").read_text(), json.loads((job.run / "report.json").read_text())


def test_named(program, build: Path) -> None:
    """The other process is named, this one is not, and no figure of ours changes."""
    text, report = report_of(program, build, "nvml")
    (other,) = report["others"]["processes"]
    assert report["others"]["total"] == 1 and report["others"]["own_pid_seen"], report
    assert other["pid"] == os.getpid() and other["bytes"] == 2 * GIB, report
    assert other["name"] == Path(f"/proc/{os.getpid()}/comm").read_text().rstrip("\n"), report
    assert f"  {2 * GIB:14}  {os.getpid():10}  {other['name']}\n" in text, text
    assert report["memory"]["live_bytes"] == 4 * MIB, report


def test_not_asked(program, build: Path) -> None:
    """Without its entries nothing is said but that nobody was asked."""
    text, report = report_of(program, build, "nvml_empty")
    assert report["others"] is None, report
    assert "\nOther processes on the device\n  not asked (no NVML)\n" in text, text
