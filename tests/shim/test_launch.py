"""Ranks of one run, without any framework: one folder for all that a launcher started, shells in between or not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = """
import os, subprocess, sys
ranks = []
for rank in range(3):
    env = dict(os.environ, **{sys.argv[2]: str(rank), sys.argv[3]: "3"})
    command = [sys.argv[1], "alloc=1048576"]
    if rank == 1:
        command = ["/bin/sh", "-c", '"$0" "$@"; true'] + command
    ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
sys.exit(max(rank.wait() for rank in ranks))
"""


def launch(build: Path, library: Path, folder: Path, names) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    env.update(LD_LIBRARY_PATH=str(build / "simgpu" / "lib"), SIMGPU_MEMORY="16MiB", LD_PRELOAD=str(library))
    command = [sys.executable, "-c", LAUNCHER, build / "tests" / "shim" / "job", *names]
    assert subprocess.run(command, cwd=folder, env=env, timeout=60).returncode == 0


def ranks_of(folder: Path) -> list[list[str]]:
    runs = sorted(path for path in (folder / "bsguard").iterdir() if path.is_dir() and not path.is_symlink())
    return [sorted(path.name for path in run.iterdir() if path.is_dir()) for run in runs]


@pytest.mark.parametrize("names", [("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"), ("RANK", "WORLD_SIZE")])
def test_ranks_of_a_launcher_share_a_folder(build: Path, library: Path, tmp_path: Path, names) -> None:
    launch(build, library, tmp_path, names)
    assert ranks_of(tmp_path) == [["rank0", "rank1", "rank2"]]
    for rank in range(3):
        start = json.loads(next((tmp_path / "bsguard").glob(f"*/rank{rank}/events.jsonl")).read_text().splitlines()[0])
        assert start["rank"] == rank
    launch(build, library, tmp_path, names)
    assert ranks_of(tmp_path) == [["rank0", "rank1", "rank2"]] * 2


def test_what_a_rank_starts_is_not_that_rank(build: Path, library: Path, tmp_path: Path) -> None:
    """A subprocess inherits the variables: it gets a folder of its own, and takes nothing from its rank's."""
    env = dict(os.environ, PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="2", LD_PRELOAD=str(library))
    env.update(LD_LIBRARY_PATH=str(build / "simgpu" / "lib"), SIMGPU_MEMORY="16MiB")
    job = build / "tests" / "shim" / "job"
    command = ["/bin/sh", "-c", '"$0" alloc=1048576; "$0" alloc=1048576', job]
    assert subprocess.run(command, cwd=tmp_path, env=env, timeout=60, stdout=subprocess.DEVNULL).returncode == 0
    assert ranks_of(tmp_path) == [["rank0"], ["rank0"]]
