"""What the documents say is there: links, files, commands and their options, variables, series; examples parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md"), REPO / "tests/simgpu/README.md"]
)
NAMES = [str(path.relative_to(REPO)) for path in DOCUMENTS]


def text_of(name: str) -> str:
    return (REPO / name).read_text()


@cache
def help_of(*command: str) -> str:
    """The help of one of our commands."""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=REPO, timeout=120)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(name)):
        if "://" not in target:
            assert (REPO / name).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_repository_exist(name: str) -> None:
    for path in re.findall(r"`((?:shim|hooks|policy|scripts|tests|docs|cmake|requirements)/[\w./-]+)`", text_of(name)):
        assert (REPO / path).exists(), path


def commands(text: str) -> list[list[str]]:
    """Lines of ours in blocks of code and in backticks, as words, without their comments."""
    blocks = re.findall(r"^    (.+)$", text, re.M) + re.findall(r"```\w*\n(.*?)```", text, re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    found = []
    for line in lines:
        if re.match(r"(bsguard|scripts/(bsguard|setup|test|demo|bench|simgpu|wheel))( |$)", line):
            try:
                found.append(shlex.split(line, comments=True))
            except ValueError:
                continue  # prose
    return found


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_their_options_exist(name: str) -> None:
    for words in commands(text_of(name)):
        program, *arguments = words
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        subcommand = []
        if program in ("bsguard", "scripts/bsguard", "scripts/bench") and own and re.fullmatch(r"[a-z]+", own[0]):
            subcommand = [own[0]]
        command = REPO / "scripts" / "bsguard" if program == "bsguard" else REPO / program
        told = help_of(str(command), *subcommand)
        for option in (word.split("=")[0] for word in own if word.startswith("--") and len(word) > 2):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", told), (words, option)


@pytest.mark.parametrize("name", NAMES)
def test_variables_exist(name: str, build: Path) -> None:
    known = set(re.findall(r"^(BSGUARD\w*) ", subprocess.check_output([build / "bsguard-options"], text=True), re.M))
    for variable in set(re.findall(r"\bBSGUARD(?:_[A-Z]+)*\b(?!_)", text_of(name))):
        assert variable in known, variable


def test_the_readme_has_every_option(build: Path) -> None:
    told = subprocess.check_output([build / "bsguard-options"], text=True)
    for variable in re.findall(r"^(BSGUARD\w*) ", told, re.M):
        assert f"`{variable}`" in text_of("README.md"), variable


def test_series_exist() -> None:
    sys.path.insert(0, str(REPO / "scripts"))
    try:
        from bsguard_cli.exports.openmetrics import SERIES
    finally:
        sys.path.pop(0)
    for name in re.findall(r"\bbsguard_[a-z_]+\b", text_of("docs/operations.md")):
        plain = re.sub(r"_(total|bytes|seconds)$", "", name)
        assert plain in SERIES, name


def test_the_kubernetes_example() -> None:
    import yaml  # in the environment of Paddle 3 alone, where this is run; the file is read in both

    (job,) = yaml.safe_load_all(text_of("docs/examples/deploy/kubernetes.yaml"))
    assert job["apiVersion"] == "batch/v1" and job["kind"] == "Job"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["bsguard", "run", "--"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"]: "/runs" for volume in pod["volumes"]}
    assert {"name": "BSGUARD_DIR", "value": "/runs"} in container["env"]


def test_the_docker_example() -> None:
    """Every instruction is one that a Dockerfile has, and the command is JSON, as its exec form must be."""
    import json

    lines = [line for line in text_of("docs/examples/deploy/Dockerfile").splitlines() if line and line[0] != "#"]
    known = {"ARG", "FROM", "COPY", "RUN", "WORKDIR", "ENV", "CMD"}
    assert {line.split()[0] for line in lines} <= known
    command = next(line for line in lines if line.startswith("CMD "))
    assert json.loads(command[4:])[:3] == ["bsguard", "run", "--"]
