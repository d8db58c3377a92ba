"""Who is asking: the user's script, or Paddle itself? Paddle's code must go on seeing a CPU build."""
import sys

__all__ = ["asked_by_user", "module_of_caller"]


def module_of_caller(depth=2):
    """Name of the module whose code called the function that calls this one (depth 2)."""
    return sys._getframe(depth).f_globals.get("__name__", "")


def asked_by_user(depth=3):
    name = module_of_caller(depth)
    return name != "paddle" and not name.startswith("paddle.")
