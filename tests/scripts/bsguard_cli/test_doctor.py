"""bsguard doctor: what is wrong is found, each kind of it, and told with the way out."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from bsguard_cli import diagnosis, place


def wrong(said) -> dict[str, tuple[str, str]]:
    """What is not right: name -> (what was found, how to mend it)."""
    return {
        check["name"]: (check["found"], check["mend"]) for check in said.json["checks"] if check["state"] == "wrong"
    }


def test_all_is_well(start, build: Path) -> None:
    done = start("doctor", "--", sys.executable, "train.py", env={"LD_LIBRARY_PATH": str(build / "simgpu" / "lib")})
    assert done.returncode == 0, done
    for text in ("the library is in the process", "waits for paddle to be imported", "paddlepaddle 3", "libcudart.so",
                 "Everything is in place."):  # fmt: skip
        assert text in done.stdout, text


@pytest.mark.parametrize(
    "flags, said", [(["-I"], "-I"), (["-E"], "-E"), (["-S"], "-S"), (["-W", "ignore", "-SE"], "-E -S")]
)
def test_a_python_that_ignores_its_environment(bsguard, flags: list[str], said: str) -> None:
    answer = bsguard("doctor", "--json", "--", sys.executable, *flags, "train.py", "-I")
    assert answer.status == 1
    found, mend = wrong(answer)["adapter"]
    assert f"{said} makes Python ignore" in found and mend == f"start Python without {said}"


def test_wrong_options(bsguard) -> None:
    env = {"BSGUARD": "0", "BSGUARD_ARM": "sometimes", "BSGUARD_MEMORY_LIMIT": "8 gigs", "BSGUARD_MEMORYLIMIT": "8GB",
           "BSGUARD_WAIT": "601", "BSGUARD_BOUNDARY": "forward"}  # fmt: skip
    said = bsguard("doctor", "--json", "--", sys.executable, env=env)
    lines = [check for check in said.json["checks"] if check["name"] == "options" and check["state"] == "wrong"]
    texts = " ".join(check["found"] for check in lines)
    for text in ("BSGUARD=0 switches bsguard off", "BSGUARD_ARM=sometimes", "BSGUARD_MEMORY_LIMIT=8 gigs",
                 "BSGUARD_MEMORYLIMIT is no option", "BSGUARD_WAIT=601", "BSGUARD_BOUNDARY=forward"):  # fmt: skip
        assert text in texts, text
    assert any(check["mend"] == "did you mean BSGUARD_MEMORY_LIMIT?" for check in lines)
    assert "BSGUARD=0" in wrong(said)["adapter"][0]


def test_every_option_of_the_library_is_known(bsguard) -> None:
    from cli_support import REPO

    table = (REPO / "shim" / "options.def").read_text()
    names = {line.split('"')[1] for line in table.splitlines() if line.startswith("BSG_OPTION(")}
    assert set(diagnosis.known_options()) == names


def test_a_folder_that_cannot_be_written_to(bsguard, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = bsguard("doctor", "--json", "--", sys.executable, env={"BSGUARD_DIR": str(tmp_path / "file")})
    assert "is not a folder" in wrong(said)["run folder"][0]
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(0o500)
        said = bsguard("doctor", "--json", "--", sys.executable, env={"BSGUARD_DIR": str(tmp_path / "closed" / "x")})
        assert "cannot be made" in wrong(said)["run folder"][0]
    said = bsguard("doctor", "--json", "--", sys.executable, env={"BSGUARD_DIR": "/proc/nowhere"})
    assert "in /proc, " in wrong(said)["run folder"][0]


def test_every_allowed_value_is_allowed(bsguard) -> None:
    env = {
        "BSGUARD_WAIT": "0",
        "BSGUARD_BOUNDARY": "train:Model.step",
        "BSGUARD_MEMORY_LIMIT": "8GiB",
        "BSGUARD_KEEP": "never",
    }
    said = bsguard("doctor", "--json", "--", sys.executable, env=env)
    assert "options" not in wrong(said), said


def test_no_gpu_at_all(bsguard) -> None:
    said = bsguard("doctor", "--json", "--", sys.executable, env={"LD_LIBRARY_PATH": None})
    assert said.status == 1 and "nothing to guard" in wrong(said)["GPU"][0]


@pytest.fixture
def moved(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library in a folder of its own, and nothing beside it."""
    copy = tmp_path / "native" / library.name
    copy.parent.mkdir()
    shutil.copy(library, copy)
    monkeypatch.setattr(place, "candidates", lambda: [copy])
    return copy


def test_a_library_without_its_python_half(bsguard, moved: Path) -> None:
    said = bsguard("doctor", "--json", "--", sys.executable)
    assert said.status == 1
    assert "keep that folder beside" in wrong(said)["Python half"][1] and "is not in" in wrong(said)["adapter"][0]


def test_a_library_of_another_machine(bsguard, moved: Path) -> None:
    data = bytearray(moved.read_bytes())
    data[18:20] = (183 if os.uname().machine != "aarch64" else 62).to_bytes(2, "little")
    moved.write_bytes(data)
    said = bsguard("doctor", "--json", "--", sys.executable)
    assert said.status == 1 and "this machine is" in wrong(said)["library"][0]
    assert "preload" in wrong(said)
    moved.write_text("no library")
    assert "is no library" in wrong(bsguard("doctor", "--json", "--", sys.executable))["library"][0]


def test_no_library(bsguard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "candidates", list)
    said = bsguard("doctor", "--json", "--", sys.executable)
    assert said.status == 1 and "scripts/setup" in wrong(said)["library"][1]
    assert bsguard("run", "--", "true").status == 2


def test_a_set_uid_python(bsguard, tmp_path: Path) -> None:
    copy = tmp_path / "python3"
    shutil.copy(os.path.realpath(sys.executable), copy)
    copy.chmod(copy.stat().st_mode | stat.S_ISUID)
    said = bsguard("doctor", "--json", "--", copy)
    assert "set-uid" in wrong(said)["preload"][0]


def test_a_script_is_tried_with_its_own_python(bsguard, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"#!{sys.executable} -E\n")
    script.chmod(0o755)
    said = bsguard("doctor", "--json", "--", script)
    assert wrong(said)["adapter"][1] == "start Python without -E"
    assert bsguard("doctor", "--", "no-such-command").status == 2
    assert bsguard("doctor", "--json", "--", "sh", "train.sh").json["checks"]


def test_a_process(bsguard) -> None:
    said = bsguard("doctor", "--json", "--pid", os.getpid())
    assert said.status == 1 and wrong(said)["preload"][1].startswith("start it with bsguard run")
    assert bsguard("doctor", "--pid", 2**22 + 5).status == 2
    assert bsguard("doctor", "--pid", os.getpid(), "--", "true").status == 2
