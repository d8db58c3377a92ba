"""Starts a script again without the settings of the user that would bend it or what it starts.

It is imported first of all, with nothing but os and sys, because a PYTHONPATH can put other files in front of the rest of
the standard library.
"""

import os
import sys

_NAMES = {
    "LD_PRELOAD",
    "LD_AUDIT",
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "__PYVENV_LAUNCHER__",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
}
_PREFIXES = ("PYTHON", "CONDA_")
# Where pip finds packages is the user's business; where it puts them is ours.
_PIP = (
    "USER TARGET PREFIX ROOT PYTHON REQUIRE_VIRTUALENV CONSTRAINT REQUIREMENT NO_DEPS DRY_RUN LOG QUIET VERBOSE UPGRADE"
    " PRE ONLY_BINARY NO_BINARY"
)
_NAMES.update("PIP_" + name for name in _PIP.split())


def tool_environment(environment=os.environ):
    """`environment` as a dict, less what would bend the Python, pip, make and compilers that we start."""
    return {name: value for name, value in environment.items() if name not in _NAMES and not name.startswith(_PREFIXES)}


def restart_clean():
    """Starts this script again in tool_environment() where that is another one; otherwise returns at once."""
    clean = tool_environment()
    if len(clean) != len(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], clean)
