"""Builds the wheel, against an older glibc than this system's, and lets auditwheel say what it needs.

The compiler is zig's clang, which brings the symbol versions of every glibc: what comes out runs on systems much older than
this one. The tag is not ours to claim: auditwheel reads the symbols of what was built, and refuses a tag that they do
not allow. Standard library only.
"""

from __future__ import annotations

import platform
import shlex
import shutil
import tempfile
from pathlib import Path

from support import venvs
from support.environ import BUILD, REPO
from support.steps import Failed, Steps

GLIBC = "2.17"  # of manylinux2014: RHEL 7 and whatever came after
ENVIRONMENT = venvs.Environment(
    BUILD / "wheel-env", REPO / "requirements" / "wheel.txt", (3, 9), (3, 14), "what a wheel is built with"
)


def _compiler(folder: Path, name: str, kind: str, glibc: str) -> Path:
    """A command that compiles for that glibc."""
    python = ENVIRONMENT.folder / "bin" / "python"
    target = f"{platform.machine()}-linux-gnu.{glibc}"
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} -I -m ziglang {kind} -target {target} "$@"\n')
    path.chmod(0o755)
    return path


def build(steps: Steps, output: Path, glibc: str = GLIBC) -> Path:
    """Builds the wheel into `output` and returns its path; raises Failed where a step fails or the tag would be a lie."""
    if not venvs.ensure(steps, ENVIRONMENT):
        raise Failed("a wheel needs a Python from 3.9 to 3.14 with its venv module; please install one")
    tools = ENVIRONMENT.folder / "bin"
    tag = f"manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=BUILD) as name:
        folder = Path(name)
        made, audited = folder / "made", folder / "audited"
        variables = {
            "CC": str(_compiler(folder, "cc", "cc", glibc)),
            "CXX": str(_compiler(folder, "c++", "c++", glibc)),
            "ZIG_GLOBAL_CACHE_DIR": str(ENVIRONMENT.folder / "zig-cache"),
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        }
        python = [tools / "python", "-I", "-m"]
        steps.run(
            [*python, "build", "--wheel", "--no-isolation", "-o", made, f"-Cbuild-dir={folder / 'cmake'}", REPO],
            what=f"building the wheel for glibc {glibc}",
            env=variables,
        )
        (wheel,) = made.glob("*.whl")
        steps.run(
            [*python, "auditwheel", "repair", "--plat", tag, "-w", audited, wheel],
            env=variables,
            otherwise=f"Something in the library is newer than glibc {glibc}: auditwheel show names it.",
        )
        (wheel,) = audited.glob("*.whl")
        for old in output.glob("bsguard-*.whl"):
            old.unlink()
        return Path(shutil.move(str(wheel), output))
