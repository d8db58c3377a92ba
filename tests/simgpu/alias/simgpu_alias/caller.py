"""Who is asking: the user's script, or Paddle itself? Paddle's code must go on seeing a CPU build."""

import sys

__all__ = ["asked_by_user"]


def asked_by_user():
    """True when the function that calls this one was called by code outside the package paddle."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return name != "paddle" and not name.startswith("paddle.")
