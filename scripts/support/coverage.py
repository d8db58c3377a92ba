"""How much of the C code the C tests and the tests of the preload run: a build that counts, and gcovr that adds up.

A job that is killed, or ends without its exit handlers, leaves no counts: the figure is a lower bound. Standard library only.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from support import venvs
from support.environ import BUILD, REPO
from support.steps import Failed, Steps

ENVIRONMENT = venvs.Environment(
    BUILD / "coverage-env", REPO / "requirements" / "coverage.txt", (3, 9), (3, 14), "what adds coverage up"
)
# The tests that start programs of ours under the library; those of Paddle jobs would take an hour,
# and those of the report limit time and file sizes, which counting needs more of.
PYTHON_TESTS = ("matrix", "lookups", "life", "process", "launch", "inert", "unseen", "others")


def forget(folder: Path) -> None:
    """Takes the counts of earlier runs away."""
    for path in folder.rglob("*.gcda"):
        path.unlink()


def summary(steps: Steps, folder: Path) -> str:
    """The lines, functions and branches that ran, as gcovr says it; a page in build/coverage/report/ has each line."""
    if not venvs.ensure(steps, ENVIRONMENT):
        raise Failed("gcovr needs a Python from 3.9 to 3.14 with its venv module; please install one")
    page = folder / "report" / "index.html"
    page.parent.mkdir(exist_ok=True)
    command = [ENVIRONMENT.folder / "bin" / "gcovr", "--root", REPO, "--object-directory", folder, "--print-summary"]
    for part in ("shim", "hooks/cuda", "policy"):
        command += ["--filter", f"{REPO}/{part}/"]
    command += [
        "--gcov-ignore-parse-errors=negative_hits.warn",
        "--html-details",
        page,
        "--txt",
        folder / "report.txt",
        folder,
    ]
    done = subprocess.run([str(word) for word in command], cwd=REPO, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"gcovr failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip() + f"\nline by line: {page}"
