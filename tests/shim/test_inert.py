"""Under the preload, whatever has nothing to do with a GPU behaves as without it: no file, no output, no other status."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAMS = {
    "bash": ["bash", "-c", "x=1; export x; echo $((x + 1)); exit 3"],
    "bash environment": [
        "bash",
        "-c",
        'A=b bash -c \'echo "$A"\'; unset A; echo "${A-none}"; export LC_ALL=C; locale >/dev/null; echo $?',
    ],
    "sh pipe": ["sh", "-c", "echo hello | tr a-z A-Z | cat"],
    "git": ["git", "init", "-q", "repository"],
    "git that fails": ["git", "-C", "/", "rev-parse", "--is-inside-git-dir"],
    "python": [sys.executable, "-c", "pass"],
    "python that fails": [sys.executable, "-c", "import sys; sys.exit(9)"],
    "python that raises": [sys.executable, "-c", "raise SystemError('x')"],
    "signal": ["sh", "-c", "kill -TERM $$"],
    "fork": [
        sys.executable,
        "-c",
        "import os; p = os.fork(); os._exit(5) if p == 0 else print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
    ],
    "exec": [sys.executable, "-c", "import os; os.execvp('echo', ['echo', 'from exec'])"],
    "process pool": [
        sys.executable,
        "-c",
        "from multiprocessing import get_context as c\n"
        "if __name__ == '__main__':\n"
        "    with c('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))",
    ],
    "dlopen of nothing": [
        sys.executable,
        "-c",
        "import ctypes\n"
        "try: ctypes.CDLL('libnone.so')\n"
        "except OSError as e: print(e)\n"
        "print(hasattr(ctypes.CDLL(None), 'cuMemAlloc_v2'), hasattr(ctypes.CDLL(None), 'cuInit'))",
    ],
    "environment": ["env", "-u", "LD_PRELOAD", "-u", "PYTHONPATH", "true"],
}


def files(folder: Path) -> list[str]:
    """All names below, but for what git puts into a repository."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".git" not in path.parts)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["1", "observe", "0"])
def test_inert(run_plain, library: Path, tmp_path: Path, name: str, mode: str) -> None:
    command = PROGRAMS[name]
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    seen = []
    for preload in (None, str(library)):
        folder = tmp_path / ("with" if preload else "without")
        folder.mkdir()
        job = run_plain(command, folder=folder, env={"LD_PRELOAD": preload, "BSGUARD": mode})
        seen.append((job.returncode, job.stdout, job.stderr, files(folder)))
    assert seen[1] == seen[0]


def test_relative_preload_holds_after_chdir(run_plain, library: Path, tmp_path: Path) -> None:
    """The loader complains in every child where our entry is relative to a folder that was left."""
    (tmp_path / "library").mkdir()
    shutil.copy(library, tmp_path / "library" / "libbsguard.so")
    for entry in ("library/libbsguard.so", "./library/libbsguard.so"):
        job = run_plain(["sh", "-c", "cd / && env"], folder=tmp_path, env={"LD_PRELOAD": entry})
        assert job.returncode == 0 and job.stderr == "", job
        assert f"LD_PRELOAD={tmp_path}/library/libbsguard.so" in job.stdout.splitlines()


def test_other_preloads_stay(run_plain, build: Path, library: Path, tmp_path: Path) -> None:
    """Ours alone is changed, whatever it stands between, and by whichever separator."""
    shutil.copy(library, tmp_path / "libbsguard.so")
    other = build / "simgpu" / "lib" / "libcuda.so.1"
    job = run_plain(["sh", "-c", "cd /; env"], folder=tmp_path, env={"LD_PRELOAD": f"{other}:./libbsguard.so {other}"})
    assert job.stderr == "", job
    assert f"LD_PRELOAD={other}:{tmp_path}/libbsguard.so {other}" in job.stdout.splitlines()


def test_searched_preload(run_plain, library: Path, tmp_path: Path) -> None:
    """An entry without a slash was found on LD_LIBRARY_PATH, which may be relative too."""
    shutil.copy(library, tmp_path / "libbsguard.so")
    job = run_plain(
        ["sh", "-c", "cd / && env"], folder=tmp_path, env={"LD_PRELOAD": "libbsguard.so", "LD_LIBRARY_PATH": "."}
    )
    assert job.stderr == "", job
    assert f"LD_PRELOAD={tmp_path}/libbsguard.so" in job.stdout.splitlines()


def pythonpath(job) -> str:
    lines = [line for line in job.stdout.splitlines() if line.startswith("PYTHONPATH=")]
    return lines[0].partition("=")[2] if lines else "(unset)"


@pytest.fixture
def installed(library: Path, tmp_path: Path) -> Path:
    """A folder with the library and the framework half's folder beside it."""
    folder = tmp_path / "installed"
    (folder / "bsguard" / "inject").mkdir(parents=True)
    shutil.copy(library, folder / "libbsguard.so")
    return folder


@pytest.mark.parametrize("before", [None, "", "/a:/b", "/a::/b", "OURS", "/a:OURS:/b", "OURS:/a:OURS"])
def test_pythonpath(run_plain, installed: Path, before: str) -> None:
    """In front exactly once, in the process, its child, and the child's child."""
    ours = str(installed / "bsguard" / "inject")
    given = before.replace("OURS", ours) if before is not None else None
    others = [entry for entry in (given or "").split(":") if entry != ours]
    expected = ":".join([ours, *others]) if given else ours
    env = {"LD_PRELOAD": str(installed / "libbsguard.so"), "PYTHONPATH": given}
    for command in (["env"], ["sh", "-c", "env"], ["sh", "-c", "sh -c env; true"]):
        job = run_plain(command, env=env)
        assert job.stderr == "" and pythonpath(job) == expected, job


def test_pythonpath_is_left_alone(run_plain, library: Path, installed: Path, tmp_path: Path) -> None:
    """Where bsguard is off, and where there is no framework half."""
    off = run_plain(["env"], env={"LD_PRELOAD": str(installed / "libbsguard.so"), "BSGUARD": "0"})
    assert pythonpath(off) == "(unset)"
    shutil.rmtree(installed / "bsguard")
    bare = run_plain(["env"], env={"LD_PRELOAD": str(installed / "libbsguard.so")})
    assert pythonpath(bare) == "(unset)"


def test_empty_environment(run_plain, library: Path, installed: Path) -> None:
    """There may be room for nothing: the loader's own variable alone."""
    job = run_plain(["env", "-i", f"LD_PRELOAD={installed / 'libbsguard.so'}", shutil.which("env")])
    assert job.returncode == 0 and job.stderr == "", job
    assert sorted(line.partition("=")[0] for line in job.stdout.splitlines()) == ["LD_PRELOAD", "PYTHONPATH"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of another user")
def test_a_program_that_runs_as_another_user(run_plain, library: Path) -> None:
    """The loader and the constructor both leave it alone: neither environment nor files change."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = folder / "printenv"
        shutil.copy(shutil.which("printenv"), program)
        os.chown(program, 12345, 12345)
        program.chmod(0o4755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("file systems here do not allow set-user-ID programs")
        job = run_plain([program, "PYTHONPATH"], env={"LD_PRELOAD": str(library)})
        assert job.returncode == 1 and job.stdout == "" and "bsguard" not in job.stderr and job.runs == [], job
        program.chmod(0o755)
        job = run_plain([program, "PYTHONPATH"], env={"LD_PRELOAD": str(library)})
        assert job.returncode == 0 and "inject" in job.stdout, job
