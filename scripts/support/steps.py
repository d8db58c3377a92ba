"""Runs the steps of the set-up: output to build/setup.log, one line a step to the screen, the tail where one fails.

Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional, Union

from support.clean import tool_environment
from support.environ import BUILD, REPO

TAIL = 15  # lines of the log that a failure shows


class Failed(Exception):
    """A step failed for good. Its text is for the user: what happened and the way out."""


class Steps:
    """The steps of one command called `name`, and its log, NAME.log, which lies in `folder`."""

    def __init__(self, folder: Path = BUILD, name: str = "setup") -> None:
        self.said_any = False
        self.name = name
        self.log_path = folder / f"{name}.log"
        folder.mkdir(exist_ok=True)
        self._log = open(self.log_path, "w", encoding="utf-8", errors="replace")  # noqa: SIM115 - lives as long as we do

    def say(self, text: str) -> None:
        """One line to the screen and the log."""
        self.said_any = True
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)
        self._write(f"== {text}\n")

    def run(
        self,
        command: Sequence[Union[str, Path]],
        *,
        what: Optional[str] = None,
        otherwise: str = "",
        check: bool = True,
        env: Optional[Mapping[str, str]] = None,
    ) -> int:
        """Runs a command in the repository, output into the log, and returns its exit status.

        what: said on the screen before, with its duration after. check: raise Failed with the tail of the log and
        `otherwise`, the way out, where the command fails. env: added to the clean environment.
        """
        words = [str(word) for word in command]
        if what:
            self.say(what)
        self._write(f"$ {' '.join(words)}\n")
        started = time.monotonic()
        offset = self._log.tell()
        try:
            status = subprocess.call(
                words,
                cwd=REPO,
                env={**tool_environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._write(f"{error}\n")
            status = 127
        self._log.seek(0, os.SEEK_END)
        seconds = time.monotonic() - started
        self._write(f"== exit status {status} after {seconds:.1f} s\n")
        if status and check:
            raise Failed(self._failure(words, status, offset, otherwise))
        if what and seconds >= 2:
            self.say(f"  took {seconds:.0f} s")
        return status

    def _write(self, text: str) -> None:
        self._log.write(text)
        self._log.flush()

    def _failure(self, words: Sequence[str], status: int, offset: int, otherwise: str) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            log.seek(offset)
            lines = [line.rstrip() for line in log if line.strip()][:-1]
        shown = "\n".join(f"  | {line[:200]}" for line in lines[-TAIL:])
        text = f"this failed with exit status {status}: {' '.join(words)}\n{shown}\n  all of it is in {self.log_path}"
        return f"{text}\n  {otherwise}" if otherwise else text
