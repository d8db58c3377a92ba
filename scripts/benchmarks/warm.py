"""A process that has imported Paddle and forks one child for each run, so that thousands of runs take minutes.

warm_server.py is the other side. Standard library only.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from support.environ import REPO, job_environment

SERVER = Path(__file__).resolve().parent / "warm_server.py"


@dataclass
class Ended:
    """A run that has ended. code: as subprocess has it; hung: it was ended because its time was over."""

    code: int
    hung: bool
    seconds: float
    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    @property
    def run(self) -> Optional[Path]:
        """The folder that bsguard left; None where it left none."""
        folders = sorted((self.folder / "bsguard").glob("*"))
        return folders[-1] if folders else None

    @property
    def events(self) -> list[dict[str, Any]]:
        """What bsguard wrote down, in order."""
        path = self.run / "events.jsonl" if self.run else None
        return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


class Warm:
    """Runs scripts with or without the preload. Use as a context manager.

    flags: FLAGS_* of Paddle, which it reads in its import and never again.
    """

    def __init__(self, python: Path, build: Path, preload: bool, flags: Optional[Mapping[str, str]] = None) -> None:
        environment = {**job_environment(), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.update(flags or {})
        environment["SIMGPU_BUILD"] = str(build / "simgpu")
        if preload:
            environment["LD_PRELOAD"] = str(build / "libbsguard.so")
        self._process = subprocess.Popen(
            [str(REPO / "scripts" / "simgpu"), "--", str(python), "-W", "ignore", str(SERVER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that imports Paddle ended with status {self._process.wait()}")
        return json.loads(line)

    def run(
        self,
        folder: Path,
        script: Path,
        arguments: Sequence[object] = (),
        env: Optional[Mapping[str, object]] = None,
        timeout: float = 120,
    ) -> Ended:
        """Runs a script in `folder`, which is made, and waits for it at most `timeout` seconds.

        env: SIMGPU_* and BSGUARD* of this run. Raises RuntimeError where the process that forks has died.
        """
        folder.mkdir(parents=True)
        order = {
            "folder": str(folder),
            "script": str(script),
            "arguments": [str(one) for one in arguments],
            "env": {
                "XDG_STATE_HOME": str(folder / "state"),
                **{name: str(value) for name, value in (env or {}).items()},
            },
            "timeout": timeout,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Ended(answer["code"], answer["hung"], answer["seconds"], folder)
