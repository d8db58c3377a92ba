"""What libbsguard.so shows to the process and asks of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf (package binutils)")


def readelf(*arguments: object) -> str:
    return subprocess.run(["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def symbols(library: Path) -> tuple[set[str], set[str]]:
    """Names that it defines, and that it wants, versions and all."""
    defined, wanted = set(), set()
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK"):
            (wanted if fields[6] == "UND" else defined).add(fields[7])
    return defined, wanted


def test_exports_are_the_committed_ones(library: Path) -> None:
    defined, _ = symbols(library)
    expected = (Path(__file__).parent / "exports.txt").read_text().split()
    assert sorted(defined) == sorted(expected)  # a name with a version would differ: ours have none


def test_every_hook_is_exported(library: Path, repo: Path) -> None:
    table = (repo / "hooks" / "cuda" / "hooks.def").read_text()
    hooks = set(re.findall(r"^BSG_HOOK\((\w+),", table, re.MULTILINE))
    assert hooks and hooks == {name for name in symbols(library)[0] if name.startswith("cu")}


def test_every_public_function_is_exported(library: Path, repo: Path) -> None:
    header = (repo / "shim" / "bsguard.h").read_text()
    functions = set(re.findall(r"^BSG_EXPORT [\w ]+?\*?\b(bsg_\w+)\(", header, re.MULTILINE))
    assert functions and functions == {name for name in symbols(library)[0] if name.startswith("bsg_")}


def test_needs_libc_only(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("--dynamic", library))
    assert set(needed) <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"} and "libc.so.6" in needed


def test_brings_no_unwinder(library: Path) -> None:
    defined, wanted = symbols(library)
    assert not [name for name in defined | wanted if re.match("_Unwind_|_?_?unw_|_U", name)]


def test_never_ends_the_process(library: Path) -> None:
    """No path of ours may call these inside somebody's job."""
    _, wanted = symbols(library)
    names = {name.split("@")[0] for name in wanted}
    assert not names & {"exit", "_exit", "abort", "__assert_fail", "quick_exit"}
    assert not names & {"getenv", "setenv", "putenv"}  # a shell brings its own, not ready when we start


def test_stack_is_not_executable(library: Path) -> None:
    stack = [line for line in readelf("--program-headers", library).splitlines() if "GNU_STACK" in line]
    assert len(stack) == 1 and "RWE" not in stack[0] and " RW " in stack[0]


def test_control_flow_protection(library: Path) -> None:
    """Marked in every part: else the loader turns it off for the whole process, or refuses us where it is enforced."""
    notes = readelf("--notes", library)
    machine = re.search(r"Machine:\s+(.+)", readelf("--file-header", library)).group(1)
    wanted = "IBT, SHSTK" if "X86-64" in machine else "BTI"
    assert wanted in notes, notes
