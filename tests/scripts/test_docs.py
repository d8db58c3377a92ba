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
def bsguard():
    """The command itself. Imported here: the tests are read, and not run, where its libraries are missing too."""
    from bsguard_cli.main import command

    return command


@cache
def help_of(*command: str) -> str:
    """The help of one of our commands."""
    if command[0].endswith("/bsguard"):
        import click

        # With its settings: click keeps the first -h of a command that anybody asked for.
        context = click.Context(bsguard(), info_name="bsguard", **bsguard().context_settings)
        made = bsguard().get_command(context, command[1]) if len(command) > 1 else bsguard()
        return made.get_help(click.Context(made, info_name=command[-1], parent=context))
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


OURS = r"(?:bsguard|scripts/(?:bsguard|setup|test|demo|bench|simgpu|wheel))"


def commands(text: str) -> list[list[str]]:
    """Commands of ours in blocks of code and in backticks, as words, without their comments: also behind a variable, in
    $(...), and behind another command or a time."""
    blocks = re.findall(r"^    (.+)$", text, re.M) + re.findall(r"```\w*\n(.*?)```", text, re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    found = [re.sub(rf"^(?:\S+=\S*|\$|srun|exec|(?:[\d*/]+ ){{5}}) +(?={OURS} )", "", line) for line in lines]
    found += re.findall(rf"\$\(({OURS}[^)]*)\)", text) + re.findall(r"`([^`]+)`", text)
    split = []
    for line in (line for line in found if re.match(rf"{OURS}( |$)", line)):
        try:
            words = shlex.split(re.split(r" {3,}", line)[0], comments=True)  # what stands far behind explains
            ends = [at for at, word in enumerate(words) if word in (">", ">>", "|", "&&", "||", ";")]
            split.append(words[: min(ends, default=len(words))])
        except ValueError:
            continue  # prose
    return split


def parsed(words: list[str]) -> None:
    """The words as the command `bsguard` takes them, values and all; those of capital letters stand for something."""
    import click

    if len(words) < 2 or any(re.search(r"(^|=)[A-Z]+$", word) for word in words):
        return
    context = click.Context(bsguard(), info_name="bsguard", **bsguard().context_settings)
    own = bsguard().get_command(context, words[1])
    assert own, words
    try:
        own.make_context(words[1], words[2:], parent=context)
    except (click.exceptions.Exit, click.MissingParameter):
        pass  # --help, or no more than a name in a sentence
    except click.UsageError as error:
        raise AssertionError(f"{' '.join(words)}: {error.format_message()}") from error


def test_commands_and_their_options_exist() -> None:
    seen = 0
    for name in NAMES:
        for words in commands(text_of(name)):
            program, *arguments = words
            own = arguments[: arguments.index("--")] if "--" in arguments else arguments
            subcommand = []
            if program in ("bsguard", "scripts/bsguard", "scripts/bench") and own and re.fullmatch(r"[a-z]+", own[0]):
                subcommand = [own[0]]
            script = REPO / "scripts" / "bsguard" if program == "bsguard" else REPO / program
            told = help_of(str(script), *subcommand)
            for option in (word.split("=")[0] for word in own if word.startswith("--") and len(word) > 2):
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", told), (name, words, option)
            if program in ("bsguard", "scripts/bsguard") and subcommand:
                parsed(words)
            seen += 1
    assert seen > 60


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
    import yaml

    (job,) = yaml.safe_load_all(text_of("docs/examples/deploy/kubernetes.yaml"))
    assert job["apiVersion"] == "batch/v1" and job["kind"] == "Job"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["bsguard", "run", "--"]
    parsed(container["command"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"]: "/runs" for volume in pod["volumes"]}
    assert {"name": "BSGUARD_DIR", "value": "/runs"} in container["env"]


def test_the_slurm_example() -> None:
    """What SLURM reads is what sbatch knows; the rest is a script, whose job is guarded, not its launcher."""
    text = text_of("docs/examples/deploy/slurm.sh")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    options = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.M)
    assert len(options) == text.count("#SBATCH") and options
    assert {name for name, _ in options} <= {
        "job-name",
        "nodes",
        "ntasks",
        "gres",
        "time",
        "output",
        "gpus",
        "gpus-per-node",
    }
    lines = text.replace("\\\n", " ").splitlines()
    (line,) = (line for line in lines if line.startswith("srun "))
    words = shlex.split(line)
    parsed(words[words.index("bsguard") :])
    assert words[words.index("--") + 1].startswith("python")


def test_the_table_of_suites() -> None:
    from bsguard_cli.suites import SUITES

    rows = re.findall(r"^\| (Paddle\w+) \| (.*) \| (.*) \|$", text_of("docs/operations.md"), re.M)
    assert [name for name, *_ in rows] == [suite.name for suite in SUITES]
    for suite, (_, batch, checkpoint) in zip(SUITES, rows):
        for setting in (suite.size, *suite.same, *filter(None, [suite.accumulation])):
            assert setting.name in batch, (suite.name, setting)
        assert suite.checkpoints and suite.checkpoints.resume.name in checkpoint


def test_the_docker_example() -> None:
    """Every instruction is one that a Dockerfile has, and the command is JSON, as its exec form must be."""
    import json

    lines = [line for line in text_of("docs/examples/deploy/Dockerfile").splitlines() if line and line[0] != "#"]
    known = {"ARG", "FROM", "COPY", "RUN", "WORKDIR", "ENV", "CMD"}
    assert {line.split()[0] for line in lines} <= known
    words = json.loads(next(line for line in lines if line.startswith("CMD "))[4:])
    assert words[:3] == ["bsguard", "run", "--"]
    parsed(words)
