"""docs/command.md is what --help says; what it says about options, colours and completion is so."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest
from cli_support import REPO, RESCUED, arguments_of, process_environment

from bsguard_cli.main import COMMANDS
from bsguard_cli.manual import man_page, manual


def test_the_manual_is_what_help_says() -> None:
    page = (REPO / "docs" / "command.md").read_text()
    assert page == manual(), "run scripts/bsguard manual > docs/command.md"
    page = (REPO / "docs" / "man" / "bsguard.1").read_text()
    assert page == man_page(), "run scripts/bsguard manual --man > docs/man/bsguard.1"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_its_exit_status(bsguard, name: str) -> None:
    said = bsguard(name, "--help")
    assert said.status == 0 and said.stdout.startswith(f"Usage: bsguard {name} ")
    assert "Exit status" in said.stdout and "--json" in said.stdout


def on_terminal(*arguments: object, **env: str) -> str:
    """What the command prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        arguments_of(*arguments), stdout=theirs, stderr=theirs, env=process_environment(TERM="xterm-256color", **env)
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            break
        if not data:
            break
        text += data
    process.wait()
    os.close(ours)
    return text.decode()


def test_colours_are_for_terminals_alone(start) -> None:
    assert "\x1b[" in on_terminal("report", RESCUED)
    assert "\x1b[3" not in on_terminal("report", RESCUED, NO_COLOR="1")
    assert "\x1b" not in start("report", RESCUED).stdout


def test_completion(start) -> None:
    env = {"_BSGUARD_COMPLETE": "bash_complete", "COMP_WORDS": "bsguard re", "COMP_CWORD": "1"}
    assert start(env=env).stdout.splitlines() == ["plain,report"]
    script = start(env={"_BSGUARD_COMPLETE": "bash_source"}).stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0 and "complete" in script


def test_a_reader_that_leaves_is_no_fault() -> None:
    words = " ".join(f"'{word}'" for word in arguments_of("export", "--format", "csv", RESCUED))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1; exit ${{PIPESTATUS[0]}}"],
        env=process_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "" and done.stdout.startswith("rank,seq"), done


def test_lib_is_quick_for_it_imports_little() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from bsguard_cli.main import command; "
        "r = CliRunner().invoke(command, ['lib']); assert r.exit_code == 0, r; "
        "print([n for n in ('rich', 'msgspec', 'jinja2', 'pygal', 'perfetto', 'prometheus_client') if n in sys.modules])"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", program], env=process_environment(), capture_output=True, text=True)
    assert done.stdout == "[]\n", done
