"""Starts a job under bsguard, and starts it again where it died of an out-of-memory error.

Without restarts this process becomes the job: its signals, exit status and pid are the job's own. With restarts it stays as
the parent, hands signals on and ends as the job did, by the same signal where it died of one.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from bsguard_cli import relaunch
from bsguard_cli.errors import BadInput
from bsguard_cli.runs import Rank, load, parent_folder, runs_below

CANNOT_RUN, NOT_FOUND = 126, 127  # as a shell says it
SI_KERNEL = 0x80  # a signal of the terminal, which the whole foreground group gets
_POLL = 0.2  # seconds between two looks for the new run's folder
_FIRST = ("libasan", "libtsan", "libubsan", "liblsan", "libclang_rt")  # these insist on being first
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT", "SIGALRM")


def preload(library: Path, present: Optional[str]) -> str:
    """LD_PRELOAD with our library in it once: in front, but behind a sanitizer."""
    text = str(library)
    if ":" in text or any(letter.isspace() for letter in text):
        raise BadInput(f"{text} has a blank or a colon in it, which LD_PRELOAD cannot: install bsguard elsewhere")
    entries = [entry for entry in (present or "").replace(" ", ":").split(":") if entry]
    if any(os.path.abspath(entry) == text for entry in entries):
        return ":".join(entries)
    at = sum(os.path.basename(entry).startswith(_FIRST) for entry in entries)
    at = at if all(os.path.basename(entry).startswith(_FIRST) for entry in entries[:at]) else 0
    return ":".join([*entries[:at], text, *entries[at:]])


def environment_for(library: Path, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the job."""
    made = {**environment, **options}
    made["LD_PRELOAD"] = preload(library, environment.get("LD_PRELOAD"))
    return made


def become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Becomes the job; returns an exit status where it cannot be started."""
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except (OSError, ValueError) as error:
        return _cannot(command[0], error)


def _cannot(name: str, error: Exception) -> int:
    from bsguard_cli.words import clean

    missing = isinstance(error, FileNotFoundError)
    why = "command not found" if missing else getattr(error, "strerror", None) or str(error)
    print(f"bsguard: {clean(name, 200)}: {why}", file=sys.stderr)
    return NOT_FOUND if missing else CANNOT_RUN


@dataclass(frozen=True)
class KnownGood:
    """A size for the next try. why: where it comes from."""

    batch: Optional[int]
    micro_batch: int
    why: str

    @property
    def accumulation_steps(self) -> Optional[int]:
        return None if self.batch is None else -(-self.batch // self.micro_batch)


@dataclass(frozen=True)
class Post:
    """What is known of a try that ended: the runs it left, whether an OOM ended it, and a size that fits. guarded: a smaller
    micro-batch can be asked for; false: it was not split, and nothing that is asked inside makes its steps smaller."""

    runs: list[Path]
    oom: bool
    good: Optional[KnownGood]
    why: str
    guarded: bool = True


def examine(runs: list[Path]) -> Post:
    """Reads what a try left behind."""
    from bsguard_cli.fit import HEADROOM, of_rank
    from bsguard_cli.summary import is_bad

    good: Optional[KnownGood] = None
    bad: list[Rank] = []
    for folder in runs:
        try:
            bad += [rank for rank in load(folder).ranks if is_bad(rank)]
        except BadInput as error:
            return Post(runs, False, None, error.message)
    if not bad:
        return Post(runs, False, None, "no out-of-memory error ended it" if runs else "it left no run behind")
    guarded = True
    for rank in bad:
        oom = rank.report.oom if rank.report else None
        guarded &= bool(oom and oom.answer != "cannot" and (oom.boundary or rank.control))
        batch, micro_batch, _ = rank.split
        died_at = (oom and oom.micro_batch) or micro_batch or (oom and oom.batch) or batch
        whole = (oom and oom.batch) or batch
        sizes = [size for size in rank.micro_batch_peaks if died_at is None or size < died_at]
        fit = of_rank(rank)
        fitting = fit.largest(rank.capacity * (1 - HEADROOM)) if fit and fit.exact and rank.capacity else None
        if died_at is None:
            continue
        if sizes:
            found = KnownGood(whole, max(sizes), "ran in the try before")
        elif fitting and fitting < died_at:
            found = KnownGood(whole, fitting, "the fit says that it fits")
        elif died_at > 1:
            found = KnownGood(whole, -(-died_at // 2), f"half of {died_at}, at which it died")
        else:
            why = "it died at a micro-batch of 1: what does not fit is no matter of the batch"
            return Post(runs, True, None, why, guarded)
        good = found if good is None or found.micro_batch < good.micro_batch else good
    return Post(runs, True, good, "" if good else "the batch at which it died is not recorded", guarded)


def fill(arguments: Sequence[str], good: KnownGood) -> list[str]:
    """Arguments for the next try, the size put in."""
    steps = good.accumulation_steps
    return [
        argument.replace("{micro_batch}", str(good.micro_batch)).replace(
            "{accumulation_steps}", "1" if steps is None else str(steps)
        )
        for argument in arguments
    ]


def _size(good: KnownGood) -> str:
    of = f" of {good.batch} (accumulation {good.accumulation_steps})" if good.batch else ""
    return f"micro-batch {good.micro_batch}{of}"


class Supervisor:
    """Runs one try after the other. say: for what the user should know."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.command = list(command)
        self.environment = dict(environment)
        self.say = say
        self.parent = parent_folder(environment)
        self.stopped = False  # a signal told us to end: nothing is started again

    def run(self, restarts: int, more_arguments: Sequence[str], more_variables: Sequence[str] = ()) -> int:
        """Runs the job, and at most `restarts` more times; returns what waitpid() said of the last one. more_arguments,
        more_variables (NAME=TEXT): added at a restart, the size put in."""
        names = [name for name in _PASSED_ON if hasattr(signal, name)]
        watched = {signal.SIGCHLD, *(getattr(signal, name) for name in names)}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            return self._tries(restarts, more_arguments, more_variables, watched, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _tries(self, restarts: int, arguments: Sequence[str], variables: Sequence[str], watched: set, mask: set) -> int:
        command, environment, good = self.command, self.environment, None
        began = time.time()
        for number in range(restarts + 1):
            known = set(self._runs())
            status = self._one(command, environment, watched, mask, good, known)
            if status == 0 or self.stopped:
                return status
            post = examine([run for run in self._runs() if run not in known])
            ended = f"the job ended with {_told(status)}"
            if not post.oom:
                self.say(f"{ended}; not restarted: {post.why}")
                return status
            changed = None
            if not post.guarded and not arguments and not variables:
                changed = relaunch.change(command, environment, began)
            helpless = not post.guarded and not arguments and not variables
            if changed is None and (post.good is None or helpless):
                why = "it cannot be split, and no option for its batch is known, or that is 1 already: see --restart-argument"
                self.say(f"{ended}, out of memory; not restarted: {why if helpless else post.why}")
                return status
            if number == restarts:
                self.say(f"{ended}, out of memory; no restart is left of {restarts}")
                return status
            again = f"{ended}, out of memory; restart {number + 1} of {restarts} with"
            if changed:
                command, environment, good = changed.command, {**environment, **changed.environment}, None
                self.say(f"{again} {changed.told}")
            else:
                good = post.good
                self.say(f"{again} {_size(good)}: {good.why}")
                command = [*self.command, *fill(arguments, good)]
                environment = {**self.environment, **dict(text.split("=", 1) for text in fill(variables, good))}
            if command != self.command:
                self.say(f"restarted as: {shlex.join(command)}")
        raise AssertionError("the last try returns")

    def _runs(self) -> list[Path]:
        try:
            return runs_below(self.parent)
        except BadInput:
            return []

    def _one(self, command: list[str], environment: dict[str, str], watched: set, mask: set,
             good: Optional[KnownGood], known: set[Path]) -> int:  # fmt: skip
        try:
            pid = os.posix_spawnp(command[0], command, environment, setsigmask=mask)
        except (OSError, ValueError) as error:
            self.stopped = True
            return _cannot(command[0], error) << 8
        asked: set[Path] = set()
        asking_until = time.monotonic() + 3600 if good else 0.0
        while True:
            asking = time.monotonic() < asking_until
            found = signal.sigtimedwait(watched, _POLL) if asking else signal.sigwaitinfo(watched)
            if found is not None and found.si_signo == signal.SIGCHLD:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done == pid:
                    return status
            elif found is not None:
                self._pass_on(pid, found)
            if asking and good and self._ask(good, known, asked):
                asking_until = 0.0

    def _pass_on(self, pid: int, found: signal.struct_siginfo) -> None:
        if found.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            self.stopped = True
        if found.si_code == SI_KERNEL:
            return  # the job has it already
        try:
            os.kill(pid, found.si_signo)
        except ProcessLookupError:
            pass

    def _ask(self, good: KnownGood, known: set[Path], asked: set[Path]) -> bool:
        """Puts the size into the new run once its first step has begun; true when that is done."""
        import json

        from bsguard_cli.writing import write_atomically

        request = json.dumps({"schema": "bsguard.request/1", "micro_batch": good.micro_batch}) + "\n"
        for run in self._runs():
            if run in known or run in asked:
                continue
            folders = (
                [run] if (run / "control.json").exists() else [path.parent for path in run.glob("rank*/control.json")]
            )
            try:
                for folder in folders:
                    write_atomically(folder / "request.json", request.encode(), mode=0o600, follow=False)
            except BadInput as error:
                self.say(error.message)
            if folders:
                asked.add(run)
        return bool(asked)


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit status {os.WEXITSTATUS(status)}"


def end_as(status: int) -> None:
    """Ends this process as a child ended, by the same signal where it died of one."""
    if not os.WIFSIGNALED(status):
        sys.exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # the job left it
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    sys.exit(128 + number)
