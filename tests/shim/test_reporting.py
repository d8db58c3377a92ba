"""The report of a whole process: quick with many allocations, without the heap, on a full disk, by two ranks at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest
from report_checks import check_folder, check_report

MIB = 1 << 20


def checked(path: Path) -> dict:
    """report.json, which must hold."""
    report = json.loads(path.read_text())
    check_report(report)
    return report


def test_time_and_heap(program, record_property) -> None:
    """100 000 live allocations; malloc() fails from the refused call until the report is there."""
    job = program("reporting", 100_000, env={"SIMGPU_MEMORY": "256MiB"}, timeout=120)
    assert job.returncode == 0, job
    print(job.stdout)
    record_property("milliseconds", job.result)
    assert job.result["heap"] == 0, job
    # The budget is 50 ms; a slow machine must not fail here.
    assert job.result["report_ms"] < 500 and job.result["refused_ms"] < 500, job
    report = checked(job.run / "report.json")
    assert report["memory"]["live_count"] == 100_000 and report["groups"]["total_bytes"] == 100_000 * 512
    assert report["oom"]["request_bytes"] == 1 << 40
    assert report["verdict"]["cause"] == "one_request"
    assert report["oom"]["site"] in {site["site"] for site in report["sites"]}
    assert any("reporting" in module["path"] and module["build_id"] for module in report["modules"]), report["modules"]


def test_the_figures_are_the_drivers(program) -> None:
    """Capacity, free and live agree with what the simulated driver itself says; and where they did not, every test would
    say so."""
    words = [f"alloc={3 * MIB}", f"alloc={5 * MIB}", "info", f"alloc={512 * MIB}", "unrescued"]
    job = program("job", *words, env={"SIMGPU_MEMORY": "64MiB", "SIMGPU_CONTEXT_MEMORY": "2MiB"})
    free, total = (
        int(word) for line in job.stdout.splitlines() if line.startswith("info") for word in line.split()[1:]
    )
    report = checked(job.run / "report.json")
    parts = {part["part"]: part["bytes"] for part in report["accounting"]["parts"]}
    assert report["memory"]["capacity_bytes"] == total and parts["free"] == free, job
    assert parts["process_other"] == 8 * MIB
    assert parts["driver_own"] + parts["other_processes"] + parts["not_told_apart"] == total - free - 8 * MIB
    refusals = job.folder / "refusals.jsonl"
    assert check_folder(job.folder, refusals, limited=False) == 1
    path = job.run / "report.json"
    for wrong in ("live_bytes", "free_bytes", "capacity_bytes"):
        changed = json.loads(json.dumps(report))
        changed["memory"][wrong] += MIB
        path.write_text(json.dumps(changed))
        with pytest.raises(AssertionError, match="does not hold"):
            check_folder(job.folder, refusals, limited=False)
    report["accounting"]["parts"][0]["bytes"] += 3 * MIB
    for changed in (report, {**report, "why": "nothing"}):
        with pytest.raises((AssertionError, jsonschema.ValidationError)):
            check_report(changed)


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EIO"])
def test_a_full_disk(program, build: Path, library: Path, name: str) -> None:
    """It says so, in one line, and leaves no half a report."""
    both = f"{library}:{build / 'tests' / 'shim' / 'libfailing.so'}"
    variables = {"LD_PRELOAD": both, "FAIL_WRITE": str(getattr(errno, name)), "FAIL_AFTER": "1500"}
    job = program("job", f"alloc={4 * MIB}", f"alloc={512 * MIB}", "unrescued", "exit=6", env=variables)
    assert job.returncode == 6, job
    assert len([line for line in job.lines_of_bsguard if "goes on without its files" in line]) == 1, job
    assert any("no report could be written" in line for line in job.lines_of_bsguard), job
    assert not list(job.run.glob("report*")), job


def test_a_limit_on_file_sizes(run_plain, build: Path, library: Path) -> None:
    """A real limit, which would be a signal to a careless writer."""
    words = [build / "tests" / "shim" / "job", f"alloc={4 * MIB}", f"alloc={512 * MIB}", "unrescued", "exit=6"]
    variables = {"LD_PRELOAD": library, "LD_LIBRARY_PATH": build / "simgpu" / "lib", "SIMGPU_MEMORY": "64MiB"}
    job = run_plain(["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *words], env=variables)
    assert job.returncode == 6, job
    assert any("no report could be written: " in line for line in job.lines_of_bsguard), job
    assert not list(job.run.glob("report*")), job


def test_two_ranks_at_once(build: Path, library: Path, tmp_path: Path) -> None:
    """Each has a report of its own, whole."""
    running = []
    for rank in range(2):
        variables = {**os.environ, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(build / "simgpu" / "lib")}
        variables |= {"RANK": str(rank), "WORLD_SIZE": "2", "SIMGPU_MEMORY": "64MiB"}
        words = [build / "tests" / "shim" / "reporting", "2000"]
        running.append(subprocess.Popen(words, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True))
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    reports = sorted((tmp_path / "bsguard").rglob("report.json"))
    assert [checked(path)["rank"] for path in reports] == [0, 1]
    assert not list((tmp_path / "bsguard").rglob("*.new"))
