"""A command line written anew, for a job that died of an out-of-memory error and cannot be split inside: half the batch, by the
option of its suite (suites.py), from its last checkpoint, and in words what was done. Reads files, changes none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from bsguard_cli.suites import COMMON_OPTIONS, COMMON_VARIABLES, LISTED, OPTION, SUITES, Setting, Suite

MOST_BYTES = 1 << 20  # of a script or a configuration that is read
MOST_BASES = 16  # configurations that one is built upon


def find_script(command: Sequence[str]) -> Optional[int]:
    """Where the training script stands in a command line: behind an interpreter, its launcher and their options."""
    return next((at for at, word in enumerate(command) if word.endswith(".py") and os.path.isfile(word)), None)


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def recognize(command: Sequence[str]) -> Optional[Suite]:
    """The suite that a command line trains with."""
    at = find_script(command)
    if at is None:
        return None
    text = _text(Path(command[at]))
    return next((one for one in SUITES if re.search(rf"^\s*(from|import)\s+{one.package}\b", text, re.M)), None)


def _groups(words: Sequence[str], flags: Sequence[str]) -> list[tuple[int, int]]:
    """(first, end) of the values behind each of the flags."""
    found = []
    for at, word in enumerate(words):
        if word in flags:
            end = at + 1
            while end < len(words) and not words[end].startswith("-"):
                end += 1
            found.append((at + 1, end))
    return found


def get(words: Sequence[str], setting: Setting) -> Optional[str]:
    """What the last mention of a setting in a command line says."""
    if setting.style == OPTION:
        said = None
        for at, word in enumerate(words):
            for flag in (setting.name, *setting.flags):
                if word == flag and at + 1 < len(words):
                    said = words[at + 1]
                elif flag.startswith("--") and word.startswith(f"{flag}="):
                    said = word[len(flag) + 1 :]
        return said
    groups = _groups(words, setting.flags)
    groups = groups[-1:] if setting.style == LISTED else groups  # as argparse has it: of several lists the last
    pairs = [words[at].partition("=") for first, end in groups for at in range(first, end)]
    return next((value for name, _, value in reversed(pairs) if name == setting.name), None)


def put(words: Sequence[str], setting: Setting, value: str) -> list[str]:
    """The command line with a setting said anew, where it was said, or at the end."""
    made = list(words)
    if setting.style == OPTION:
        for at in range(len(made) - 1, -1, -1):
            for flag in (setting.name, *setting.flags):
                if made[at] == flag and at + 1 < len(made):
                    made[at + 1] = value
                    return made
                if flag.startswith("--") and made[at].startswith(f"{flag}="):
                    made[at] = f"{flag}={value}"
                    return made
        return [*made, setting.name, value]
    pair = f"{setting.name}={value}"
    groups = _groups(made, setting.flags)
    for first, end in reversed(groups):
        for at in range(end - 1, first - 1, -1):
            if made[at].partition("=")[0] == setting.name:
                made[at] = pair
                return made
        if setting.style == LISTED:
            return [*made[:end], pair, *made[end:]]
    return [*made, setting.flags[0], pair]


def _parse(path: Path) -> Any:
    text = _text(path)
    try:
        if path.suffix == ".json":
            return json.loads(text)
        import yaml

        class Loader(yaml.SafeLoader):
            """Tags are the suite's own classes: of no interest here."""

        def plain(loader: Any, _suffix: str, node: Any) -> Any:
            if isinstance(node, yaml.MappingNode):
                return loader.construct_mapping(node)
            return loader.construct_sequence(node) if isinstance(node, yaml.SequenceNode) else node.value

        Loader.add_multi_constructor("!", plain)
        return yaml.load(text, Loader)
    except Exception:  # whatever it is, it is no configuration for us: the job itself will say so
        return None


def _configurations(path: Path, room: list[int]) -> list[Mapping[str, Any]]:
    """A configuration, and then those that it is built upon (`_BASE_`, `_base_`)."""
    room[0] -= 1
    parsed = _parse(path) if room[0] >= 0 else None
    if not isinstance(parsed, dict):
        return []
    bases = parsed.get("_BASE_") or parsed.get("_base_") or []
    found = [parsed]
    for base in reversed([bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []):
        found += _configurations(path.parent / os.path.expanduser(str(base)), room)
    return found


def config_of(suite: Suite, command: Sequence[str]) -> Optional[Path]:
    """The configuration that a command line names."""
    at = find_script(command)
    words = list(command[at + 1 :]) if at is not None else []
    name = get(words, Setting(suite.config[-1], flags=suite.config[:-1])) if suite.config else None
    if not suite.config and words and words[0].endswith(".json"):
        name = words[0]
    return Path(name) if name and os.path.isfile(name) else None


def value_of(suite: Suite, command: Sequence[str], setting: Setting) -> Optional[str]:
    """What a setting is: by the command line, the configuration, or the suite's default."""
    at = find_script(command) or 0
    said = get(command[at + 1 :], setting)
    path = config_of(suite, command)
    for parsed in _configurations(path, [MOST_BASES]) if said is None and path else []:
        value: Any = parsed
        for name in setting.name.lstrip("-").split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value)
    return setting.default if said is None else said


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) and int(text) else None


def last_checkpoint(suite: Suite, command: Sequence[str], since: float) -> Optional[Path]:
    """The newest checkpoint that is whole and was written since a time: an older one is of another run, whose it is nobody
    knows. Named as the suite takes it up."""
    kept = suite.checkpoints
    name = value_of(suite, command, kept.folder) if kept else None
    if kept is None or not name:
        return None
    folder = Path(name)
    if kept.below:
        folder /= value_of(suite, command, kept.below) or ""
    if kept.below_config:
        config = config_of(suite, command)
        folder /= config.stem if config else ""
    found = []
    try:
        entries = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return None
    for prefix in {re.sub(r"\.pd(params|opt|states)$", "", entry) for entry in entries}:
        if not re.fullmatch(kept.pattern, prefix):
            continue
        base = folder / prefix
        parts = [base / file if not file.startswith(".") else Path(f"{base}{file}") for file in kept.files]
        try:
            written = min(part.stat().st_mtime for part in parts)
        except OSError:
            continue
        if written >= since:
            found.append((written, base))
    return max(found)[1] if found else None


@dataclass(frozen=True)
class Change:
    """A command line for the next try, and what is said about it."""

    command: list[str]
    environment: dict[str, str]
    told: str


def _smaller(size: int, keep_batch: bool) -> int:
    """Half; where the batch is to be kept, what divides it."""
    if not keep_batch:
        return max(1, size // 2)
    return next(part for part in range(size // 2, 0, -1) if size % part == 0)


def _scaled(size: int, old: int) -> str:
    factor = f"{size / old:.3g}"
    return (
        f"the batch of a step is smaller: linear scaling would make the learning rate x{factor}, which is left as it is"
    )


def change(command: Sequence[str], environment: Mapping[str, str], since: float) -> Optional[Change]:
    """The same job with half the batch, by its own option and from its last checkpoint since a time; None where no such
    option is known, or its batch is 1 already."""
    suite = recognize(command)
    if suite is None:
        return _change_common(command, environment)
    size = _number(value_of(suite, command, suite.size))
    if size is None or size < 2:
        return None
    smaller = _smaller(size, suite.accumulation is not None)
    at = (find_script(command) or 0) + 1
    before, words = list(command[:at]), put(command[at:], suite.size, str(smaller))
    told = f"{suite.name}'s {suite.size.name} {smaller} instead of {size}"
    for setting in suite.same:
        if value_of(suite, command, setting) is not None:
            words = put(words, setting, str(smaller))
            told += f", {setting.name} with it"
    if suite.accumulation:
        steps = _number(value_of(suite, command, suite.accumulation)) or 1
        words = put(words, suite.accumulation, str(steps * size // smaller))
        told += (
            f" and {suite.accumulation.name} {steps * size // smaller} instead of {steps}: the batch of a step stays"
        )
    else:
        told += f" ({_scaled(smaller, size)})"
    checkpoint = last_checkpoint(suite, command, since)
    if checkpoint and suite.checkpoints:
        words = put(words, suite.checkpoints.resume, str(checkpoint))
        told += f"; from its checkpoint {checkpoint}"
    elif suite.checkpoints:
        named = get(command[at:], suite.checkpoints.resume)
        told += f"; it wrote no checkpoint: from {named} again" if named else "; it wrote no checkpoint: from the start"
    return Change([*before, *words], {}, told)


def _change_common(command: Sequence[str], environment: Mapping[str, str]) -> Optional[Change]:
    flags = [re.match(rf"({COMMON_OPTIONS})(=\d+)?$", word) for word in command]
    own = "whether it goes on from a checkpoint is its own"
    for flag in (match[1] for match in flags if match):
        size = _number(get(command, Setting(flag)))
        if size and size > 1:
            told = f"{flag} {size // 2} instead of {size} ({_scaled(size // 2, size)}); {own}"
            return Change(put(command, Setting(flag), str(size // 2)), {}, told)
    for name in COMMON_VARIABLES:
        size = _number(environment.get(name))
        if size and size > 1:
            told = f"{name}={size // 2} instead of {size} ({_scaled(size // 2, size)}); {own}"
            return Change(list(command), {name: str(size // 2)}, told)
    return None
