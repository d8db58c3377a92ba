"""What CMake installs and packs: it works wherever it is moved to, and the manual page is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support import building


@pytest.fixture
def cmake(repo: Path):
    found = building.find_cmake()
    assert found
    return found


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_folder_can_be_moved(cmake, build: Path, tmp_path: Path, run_plain) -> None:
    run(cmake, "--install", build, "--prefix", tmp_path / "first", cwd=tmp_path)
    shutil.move(tmp_path / "first", tmp_path / "second")
    home = tmp_path / "second" / "lib" / "bsguard"
    job = run_plain(["sh", "-c", "echo $PYTHONPATH"], env={"LD_PRELOAD": str(home / "libbsguard.so")})
    assert job.stdout.strip() == str(home / "bsguard" / "inject"), job
    assert (home / "bsguard" / "inject" / "sitecustomize.py").is_file()
    assert (home / "bsguard" / "bsguard_paddle" / "adapter.py").is_file()
    assert (tmp_path / "second" / "include" / "bsguard.h").is_file()
    for page in ("man1/bsguard.1", "man7/bsguard.7"):
        assert (tmp_path / "second" / "share" / "man" / page).is_file()


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed: no Debian package can be made")
def test_the_debian_package(cmake, build: Path, tmp_path: Path, run_plain) -> None:
    run(cmake.with_name("cpack"), "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", tmp_path, cwd=tmp_path)
    (package,) = tmp_path.glob("bsguard_*.deb")
    fields = run("dpkg-deb", "-f", package, cwd=tmp_path)
    assert "Package: bsguard\n" in fields and "Depends: libc6 (>= " in fields, fields
    run("dpkg-deb", "-x", package, tmp_path / "root", cwd=tmp_path)
    home = tmp_path / "root" / "usr" / "lib" / "bsguard"
    job = run_plain(["sh", "-c", "echo $PYTHONPATH"], env={"LD_PRELOAD": str(home / "libbsguard.so")})
    assert job.stdout.strip() == str(home / "bsguard" / "inject"), job
    page = next((tmp_path / "root" / "usr" / "share" / "man" / "man7").glob("bsguard.7*"))
    text = page.read_text()
    told = run(home / "bsguard-options", cwd=tmp_path)
    for line in told.splitlines():
        if line.startswith("BSGUARD"):
            assert line.split()[0] in text, line
    assert "@" not in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed: the page cannot be set")
def test_the_manual_pages_have_no_mistakes(build: Path, repo: Path, tmp_path: Path) -> None:
    for page, known in ((build / "bsguard.7", "BSGUARD_MEMORY_LIMIT"), (repo / "docs/man/bsguard.1", "--restarts N")):
        words = ["groff", "-man", "-Tascii", "-P-cbou", "-ww", page]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert known in done.stdout
