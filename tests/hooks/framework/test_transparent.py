"""At one chunk, armed, nothing may be seen of bsguard: the gradient or the exception of plain Paddle, to the last bit.

In two chunks, the same cases give the same gradient to rounding, or it was said why not.
"""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
JOB = HERE / "jobs" / "transparent.py"
CASES = re.findall(r"^def (\w+)\(net, x, y\):", JOB.read_text(), re.MULTILINE)

# Paddle refuses a saved output that was changed in place; the user's copy may be, and the gradient is right.
RIGHT_INSTEAD_OF_REFUSED = {"output_changed_in_place", "output_assigned_in_place"}
# What reaches the weights on both sides of the cut is added in another order.
TO_ROUNDING = {"feature_kept_aside", "gradient_penalty", "generator_and_critic"}


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


_plain = {}


@pytest.fixture
def plain(run_job):
    """The results of all cases without the preload, by case."""
    if not _plain:
        job = run_job(JOB, "--all", preload=False, name="plain")
        assert job.returncode == 0, job
        _plain.update(job.result)
    return _plain


@pytest.mark.parametrize("case", CASES)
def test_one_chunk_armed(case, plain, run_job):
    armed = run_job(JOB, case, env={"BSGUARD_ARM": "always"})
    assert armed.returncode == 0, armed
    if case in RIGHT_INSTEAD_OF_REFUSED:
        assert plain[case]["exception"][0] == "RuntimeError"
        assert "exception" not in armed.result and all(armed.result["gradients"])
    elif case in TO_ROUNDING:
        assert close(plain[case], armed.result), f"{plain[case]}\n{armed.result}"
    else:
        assert plain[case] == armed.result
    assert armed.lines_of_bsguard == []


# Why a case cannot run in chunks: what bsguard must then say, in an event or in the exception.
SAID = {
    "feature_kept_aside": "its forward changes feature",
    "gradient_penalty": "create_graph",
    "input_changed_in_place": "an input was changed in place",
    "weight_changed_in_between": "a parameter was changed in place",
    "step_in_between": "the optimizer has stepped",
    "forward_raises": "the trial failed",
    "memory_error_of_the_host": "the trial failed",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pieces", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_in_chunks_or_said(case, pieces, plain, run_job):
    """The gradient of the whole batch, or one line: never another gradient in silence."""
    split = run_job(HERE / "jobs" / "already_split.py", str(pieces), JOB, case, env={"BSGUARD_ARM": "always"})
    assert split.returncode == 0, split
    said = [event["why"] for event in split.events_of("refused", "disarmed")]
    if case in SAID:
        assert any(SAID[case] in why for why in said), f"{said}\n{split}"
        mine = split.result.get("exception", ["", ""])
        if "bsguard" in mine[1]:
            return
    else:
        assert said == []
    if case in RIGHT_INSTEAD_OF_REFUSED:
        assert "exception" not in split.result and all(split.result["gradients"])
        return
    assert split.result.get("exception") == plain[case].get("exception")
    if case not in ("hook_raises", "hook_interrupts"):  # what was accumulated before the hook is the order's, not ours
        assert close(plain[case], split.result, 1e-10), f"{plain[case]}\n{split.result}"
