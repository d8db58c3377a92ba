"""At one chunk, armed, nothing may be seen of bsguard: the gradient or the exception of plain Paddle, to the last bit.

In two chunks, the same cases give the same gradient to rounding, or it was said why not.
"""

import json
import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
JOB = HERE / "jobs" / "transparent.py"
CASES = re.findall(r"^def (\w+)\(net, x, y\):", JOB.read_text(), re.MULTILINE)

# Paddle refuses a saved output that was changed in place; the user's copy may be, and the gradient is right.
RIGHT_INSTEAD_OF_REFUSED = {"output_changed_in_place", "output_assigned_in_place"}
# The gradient of a gradient adds the two sides of the cut in another order.
TO_ROUNDING = {"gradient_penalty", "generator_and_critic"}


def numbers(value):
    """All floats in a result, in order."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    if isinstance(value, (int, float)):
        return [float(value)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        return []


def close(a, b, tolerance=1e-12):
    """The same structure, and all floats within `tolerance` of the largest."""
    left, right = numbers(a), numbers(b)
    largest = max([abs(number) for number in left], default=0.0)
    return len(left) == len(right) and all(abs(x - y) <= tolerance * max(largest, 1.0) for x, y in zip(left, right))


@pytest.fixture(scope="module")
def plain_result(tmp_path_factory, build):
    """The result of a case without the preload, each in a process of its own, kept for the module."""
    return {}


@pytest.mark.parametrize("case", CASES)
def test_one_chunk_armed(case, run_job):
    plain = run_job(JOB, case, preload=False)
    armed = run_job(JOB, case, env={"BSGUARD_ARM": "always"})
    assert plain.returncode == armed.returncode == 0, f"{plain}\n{armed}"
    if case in RIGHT_INSTEAD_OF_REFUSED:
        assert plain.result["exception"][0] == "RuntimeError"
        assert "exception" not in armed.result and all(armed.result["gradients"])
    elif case in TO_ROUNDING:
        assert close(plain.result, armed.result), f"{plain.result}\n{armed.result}"
    else:
        assert plain.result == armed.result
    assert armed.lines_of_bsguard == []


@pytest.mark.parametrize("case", CASES)
def test_two_chunks_or_a_line(case, run_job, tmp_path):
    """An operator asks for half the batch from the first step on; here by a boundary that has been told so before."""
    plain = run_job(JOB, case, preload=False)
    prelude = HERE / "jobs" / "after_a_request.py"
    split = run_job(prelude, JOB, case, env={"BSGUARD_ARM": "always"})
    assert split.returncode == 0, split
    said = [event for event in split.events if event["type"] in ("refused", "disarmed")]
    exception = split.result.get("exception")
    if exception and exception != plain.result.get("exception"):
        assert "bsguard" in exception[1] or exception[0] == plain.result.get("exception", [None])[0], split
        assert said or "inplace" in json.dumps(plain.result).lower() or plain.result.get("exception"), split
        return
    if case in RIGHT_INSTEAD_OF_REFUSED:
        return
    assert close(plain.result, split.result, 1e-10), f"{said}\n{plain.result}\n{split.result}"
