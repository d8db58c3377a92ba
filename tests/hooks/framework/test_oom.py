"""A failure that was caught holds no tensor: not by the frames of its traceback, nor by what locals() left with them."""

import sys

import pytest

SCRIPT = """
import weakref

from bsguard_paddle.oom import attempt


class Activation:
    pass


alive = []


def layer(way):
    x = Activation()
    alive.append(weakref.ref(x))
    if way == "locals":
        dict(**locals())
    elif way == "inner":
        deeper = lambda: x
        layer("plain")
    elif way == "generator":
        list(layer("plain") for _ in (x,))
    elif way == "context":
        try:
            raise KeyError(x)
        except KeyError:
            raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0")
    raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0")


result, failure = attempt(lambda: layer({way!r}))
assert result is None and alive
assert not any(reference() for reference in alive), alive
"""


@pytest.mark.parametrize("way", ["plain", "locals", "inner", "generator", "context"])
def test_nothing_is_held(run_plain, repo, way):
    job = run_plain(
        [sys.executable, "-c", SCRIPT.format(way=way)], env={"PYTHONPATH": str(repo / "hooks" / "framework")}
    )
    assert job.returncode == 0, job
