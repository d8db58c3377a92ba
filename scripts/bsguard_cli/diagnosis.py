"""The checks of `bsguard doctor`: each says what it looked at, whether it is right, and how to mend it. They look and start
the Python in question once; they change nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from bsguard_cli import launch, place
from bsguard_cli.errors import BadInput
from bsguard_cli.probe import MARK, PROBE
from bsguard_cli.words import clean, parse_size

OK, NOTE, WRONG = "ok", "note", "wrong"
SECONDS = 30
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_OPTION = re.compile(r"^(BSGUARD\w*) \((.*); default (.*)\)$")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. mend: the way out, where it is not right."""

    name: str
    state: str
    found: str
    mend: str = ""


def elf_machine(path: Path) -> Optional[str]:
    """What machine a program or library is for ("x86_64"); None where it is no ELF file."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    (machine,) = struct.unpack("<H" if head[5] == 1 else ">H", head[18:20])
    bits = {1: 32, 2: 64}.get(head[4], 0)
    name = _MACHINES.get(machine, f"machine {machine}")
    return f"{name}, 32 bits" if bits == 32 and name == "x86_64" else name


def library() -> list[Check]:
    """Is libbsguard.so there, for this machine, with the Python half beside it?"""
    path = place.find_library()
    if path is None:
        return [
            Check("library", WRONG, "libbsguard.so is not there", "install the package again, or run scripts/setup")
        ]
    machine, here = elf_machine(path), os.uname().machine
    if machine is None:
        return [Check("library", WRONG, f"{path} is no library", "install the package again")]
    if machine != here:
        return [Check("library", WRONG, f"{path} is for {machine}, this machine is {here}", "install the wheel for it")]
    half = place.python_half(path)
    if (half / "sitecustomize.py").is_file() and (half.parent / "bsguard_paddle" / "__init__.py").is_file():
        return [Check("library", OK, str(path)), Check("Python half", OK, str(half.parent))]
    found = f"{half.parent} is not there, or not whole: jobs would be recorded, not guarded"
    return [Check("library", OK, str(path)), Check("Python half", WRONG, found, "keep that folder beside the library")]


def known_options() -> Optional[dict[str, str]]:
    """The options that the library knows, each with what it allows; None where it cannot be asked."""
    path = place.find_library()
    try:
        asked = subprocess.run(
            [str(place.options_program(path))] if path else ["/nowhere"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = (_OPTION.match(line) for line in asked.stdout.splitlines())
    return {match[1]: match[2] for match in found if match} or None


def _is_allowed(value: str, allowed: str) -> bool:
    if re.fullmatch(r"[\w.]+(\|[\w.]+)+", allowed):
        return value in allowed.split("|")
    if "KiB" in allowed:
        return parse_size(value) is not None
    whole = re.fullmatch(r"an integer from (\d+) to (\d+)", allowed)
    if whole:
        return re.fullmatch(r"[0-9]{1,9}", value) is not None and int(whole[1]) <= int(value) <= int(whole[2])
    if allowed == "MODULE:FUNCTION":
        return re.fullmatch(r"[^:]+:[^:]+", value) is not None
    return True


def options(environment: Mapping[str, str]) -> list[Check]:
    """Is every BSGUARD_* variable known, and its value allowed?"""
    from difflib import get_close_matches

    known = known_options()
    if known is None:
        return [Check("options", NOTE, "the library could not be asked which options it knows")]
    checks = []
    for name, value in sorted(environment.items()):
        if not name.startswith("BSGUARD") or not value:
            continue
        if name not in known:
            near = get_close_matches(name, known, 1)
            mend = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            checks.append(Check("options", WRONG, f"{name} is no option of bsguard", mend))
        elif not _is_allowed(value, known[name]):
            found = f"{name}={value} is not understood"
            checks.append(Check("options", WRONG, found, f"allowed is {known[name]}; the default is used"))
        elif name == "BSGUARD" and value == "0":
            checks.append(Check("options", WRONG, "BSGUARD=0 switches bsguard off", "unset BSGUARD"))
        elif name == "BSGUARD" and value == "observe":
            checks.append(Check("options", NOTE, "BSGUARD=observe: jobs are recorded, not guarded"))
        else:
            checks.append(Check("options", OK, f"{name}={value}"))
    return checks or [Check("options", OK, "none is set: all defaults")]


def run_folder(environment: Mapping[str, str], cwd: Optional[Path] = None) -> Check:
    """Can a run folder be made?"""
    parent = (cwd or Path.cwd()) / (environment.get("BSGUARD_DIR") or "bsguard")
    name = "run folder"
    if parent.exists() and not parent.is_dir():
        return Check(name, WRONG, f"{parent} is not a folder", "set BSGUARD_DIR to a folder that may be written to")
    place_ = parent
    while not place_.exists() and place_ != place_.parent:
        place_ = place_.parent
    try:  # permissions alone do not say it: /proc, a file system that is mounted read-only
        with tempfile.TemporaryDirectory(prefix=".bsguard-doctor-", dir=place_):
            pass
    except OSError as error:
        found = f"{parent} cannot be made or written to: in {place_}, {error.strerror}"
        return Check(name, WRONG, found, "set BSGUARD_DIR to a folder that may be written to")
    try:
        free = shutil.disk_usage(place_).free
    except OSError:
        free = None
    if free is not None and free < 16 << 20:
        return Check(name, WRONG, f"{place_} has {free} bytes left", "make room, or set BSGUARD_DIR to another disk")
    return Check(name, OK, f"{parent} can be written to")


def interpreter(command: Sequence[str]) -> tuple[list[str], Optional[str]]:
    """The Python of a command with its flags, and a remark where it is not plainly there."""
    if not command:
        for name in ("python", "python3"):
            found = shutil.which(name)
            if found:
                return [found], None
        raise BadInput("there is no python on PATH: name your command, as in bsguard doctor -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"{command[0]}: command not found")
    if re.match(r"^(python|pypy)[\d.]*$", os.path.basename(command[0])):
        return [program, *_flags(command[1:])], None
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError as error:
        raise BadInput(f"{program} cannot be read: {error.strerror}") from None
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    if words and re.match(r"^(python|pypy)[\d.]*$", os.path.basename(words[0])):
        found = shutil.which(words[0])
        if found is None:
            raise BadInput(f"{program} wants {words[0]}, which is not there")
        return [found, *_flags(words[1:])], f"{command[0]} is run by {found}"
    python, _ = interpreter([])
    return python, f"{command[0]} is no Python program: it was tried with {python[0]}, which it may or may not start"


def _flags(arguments: Sequence[str]) -> list[str]:
    """The flags of Python itself, in front of the script."""
    flags = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-" or argument.startswith(("-c", "-m", "--help")):
            break
        flags.append(argument)
        if argument in ("-W", "-X"):
            flags.append(next(rest, ""))
    return flags


def python(command: Sequence[str], environment: Mapping[str, str]) -> list[Check]:
    """Starts the Python of a command under the preload, and asks it what it sees."""
    words, remark = interpreter(command)
    checks = [Check("command", NOTE, remark)] if remark else []
    path = place.find_library()
    if path is None:
        return checks
    machine, here = elf_machine(Path(os.path.realpath(words[0]))), elf_machine(path)
    if machine and here and machine != here:
        found = f"{words[0]} is for {machine}, the library for {here}"
        return [*checks, Check("preload", WRONG, found, "use a Python for the same machine")]
    if os.stat(words[0]).st_mode & (stat.S_ISUID | stat.S_ISGID):
        found = f"{words[0]} is set-uid: the loader takes no preload there"
        return [*checks, Check("preload", WRONG, found, "use a Python that is not")]
    try:
        done = subprocess.run(
            [*words, "-c", PROBE],
            env=launch.environment_for(path, {}, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [*checks, Check("Python", WRONG, f"{words[0]} could not be started: {error}", "name another command")]
    answer = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), None)
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return [*checks, Check("Python", WRONG, f"{words[0]} failed: {last}", "mend this Python first")]
    return checks + _of_answer(words, json.loads(answer[len(MARK) :]), done.stderr, environment)


def _of_answer(words: list[str], said: dict[str, Any], stderr: str, environment: Mapping[str, str]) -> list[Check]:
    checks = [Check("Python", OK, f"{words[0]} {said['version']}")]
    if not said["library"]:
        loader = next((line for line in stderr.splitlines() if "LD_PRELOAD" in line or "preload" in line), "")
        found = loader or "the library is not in the process"
        mend = "is this Python linked statically, or against another C library than glibc? Use one that is not"
        return [*checks, Check("preload", WRONG, found, mend)]
    checks.append(Check("preload", OK, "the library is in the process"))
    checks.append(_adapter(words, said, environment))
    if said["paddle"] is None:
        checks.append(Check("Paddle", WRONG, f"{words[0]} has no paddlepaddle", "name the Python that has it"))
    elif not said["paddle_gpu"]:
        found = f"paddlepaddle {said['paddle']}, a build for the CPU: it uses no GPU"
        checks.append(Check("Paddle", NOTE, found, "install paddlepaddle-gpu, unless this is the simulated GPU"))
    else:
        checks.append(Check("Paddle", OK, f"paddlepaddle-gpu {said['paddle']}"))
    runtime = ", ".join(sorted(set(said["cudart"])))
    checks.append(
        Check("libcudart", OK if runtime else NOTE, runtime or "none found beside Paddle: it may be inside it")
    )
    if said["cuda"]:
        mend = "install the driver; in a container, start it with the GPU (--gpus all)"
        checks.append(Check("driver", WRONG if said["paddle_gpu"] else NOTE, said["cuda"], mend))
    else:
        checks.append(Check("driver", OK, "libcuda.so.1 can be loaded"))
    if said["cuda"] and said["paddle"] is not None and not said["paddle_gpu"]:
        found = "none can be used: a paddlepaddle for the CPU, and no driver. There is nothing to guard here"
        checks.append(Check("GPU", WRONG, found, "install both, or try it on the simulated GPU: scripts/demo"))
    return checks


def _adapter(words: list[str], said: dict[str, Any], environment: Mapping[str, str]) -> Check:
    name = "adapter"
    if said["adapter"]:
        return Check(name, OK, "waits for paddle to be imported")
    flags = {"isolated": "-I", "ignore_environment": "-E", "no_site": "-S"}
    given = [flag for key, flag in flags.items() if said[key]]
    if "-I" in given:
        given = ["-I"]
    if given:
        found = f"is not in: {' '.join(given)} makes Python ignore what brings it; jobs are recorded, not guarded"
        return Check(name, WRONG, found, f"start Python without {' '.join(given)}")
    if environment.get("BSGUARD") == "0":
        return Check(name, WRONG, "is not in: BSGUARD=0", "unset BSGUARD")
    if tuple(map(int, said["version"].split(".")[:2])) < (3, 7):
        return Check(name, WRONG, f"is not in: Python {said['version']} is too old", "use Python 3.8 or newer")
    found = "is not in: something takes PYTHONPATH out of the environment, or a sitecustomize comes first"
    return Check(name, WRONG, found, f"look at what {words[0]} does at its start: python -v -c pass")


def process(pid: int) -> list[Check]:
    """A job that runs: is the preload in, the adapter, and where is its run?"""
    folder = Path("/proc") / str(pid)
    try:
        maps = (folder / "maps").read_text(errors="replace")
        command = (folder / "cmdline").read_bytes().split(b"\0")
        pairs = [entry.partition(b"=") for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry]
        cwd = Path(os.readlink(folder / "cwd"))
    except FileNotFoundError:
        raise BadInput(f"there is no process {pid}") from None
    except OSError as error:
        raise BadInput(f"process {pid} cannot be looked at: {error.strerror}; ask as its user") from None
    environment = {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
    words = [word.decode(errors="replace") for word in command if word]
    checks = [Check("process", OK, clean(" ".join(words), 200))]
    paths = sorted({line.split(None, 5)[5] for line in maps.splitlines() if len(line.split(None, 5)) > 5})
    ours = [path for path in paths if os.path.basename(path) == "libbsguard.so"]
    if ours:
        checks.append(Check("preload", OK, ours[0]))
    elif "libbsguard" in environment.get("LD_PRELOAD", ""):
        found = f"LD_PRELOAD={environment['LD_PRELOAD']}, but the library is not in the process"
        checks.append(Check("preload", WRONG, found, "is the path right, and for this machine? See bsguard lib"))
    else:
        checks.append(Check("preload", WRONG, "was not started under bsguard", "start it with bsguard run -- ..."))
    checks += [Check("libcudart", OK, path) for path in paths if "libcudart" in os.path.basename(path)]
    checks += [check for check in options(environment) if check.state != OK]
    if ours:
        checks += _run_of_process(pid, cwd, environment, _flags(words[1:]))
    return checks


def _run_of_process(pid: int, cwd: Path, environment: Mapping[str, str], flags: list[str]) -> list[Check]:
    from bsguard_cli.runs import folder_of_pid, load

    parent = cwd / (environment.get("BSGUARD_DIR") or "bsguard")
    folder = folder_of_pid(pid, [parent])
    if folder is None:
        checks = [Check("run folder", NOTE, f"none in {parent} yet: it comes with the first device allocation")]
        checks.append(run_folder(environment, cwd))
        return checks
    checks = [Check("run folder", OK, str(folder))]
    rank = load(folder).worst
    framework = rank.start.framework if rank.start else None
    if framework:
        return [*checks, Check("adapter", OK, framework)]
    ignoring = [flag for flag in flags if re.fullmatch(r"-[a-zA-Z]*[IES][a-zA-Z]*", flag)]
    if ignoring:
        found = f"is not in: {' '.join(ignoring)} makes Python ignore what brings it"
        return [*checks, Check("adapter", WRONG, found, f"start Python without {' '.join(ignoring)}")]
    return [*checks, Check("adapter", NOTE, "has not reported: Paddle is not imported yet, or this is no Paddle job")]
