"""However a loop uses the graph (jobs/transparent.py): at one chunk, armed, nothing may be seen of bsguard: the gradient
or the exception of plain Paddle, to the last bit, and no memory but for its outputs.

In chunks, the same cases give the same gradient to rounding, or it was said why not. All cases run in one process for
each way, since starting Paddle takes longer than they do.
"""

import pathlib
import re

import pytest

from benchmarks import exactness

JOBS = pathlib.Path(__file__).parent / "jobs"
JOB = JOBS / "transparent.py"
CASES = re.findall(r"^def (\w+)\(net, x, y\):", JOB.read_text(), re.MULTILINE)

# What reaches the weights on both sides of the cut is added in another order.
TO_ROUNDING = {"feature_kept_aside", "gradient_penalty", "generator_and_critic"}

pytestmark = pytest.mark.timeout(600)  # the first test waits for all jobs


@pytest.fixture
def results(all_ways):
    """{case: {way: ...}} of all cases, with plain among the ways; {"": ...}: errors of bsguard's own."""
    return all_ways(JOB, exactness.WAYS, timeout=400)


def test_no_error_of_its_own(results):
    assert results[""] == []


@pytest.mark.parametrize("case", CASES)
def test_seen_by_nobody(case, results):
    """At one chunk, armed and disarmed, everything is plain Paddle's."""
    ways = results[case]
    for way in ("armed", "disarmed"):
        right, apart, said = exactness.judge(case, ways["plain"], way, ways[way])
        assert right, f"{way}: {apart:.1e} {said}\n{ways['plain']['result']}\n{ways[way]['result']}"
        if case not in TO_ROUNDING:
            assert apart == 0.0, (way, apart)
    if case in exactness.RIGHT_INSTEAD_OF_REFUSED:
        assert ways["plain"]["result"]["exception"][0] == "RuntimeError"
        assert all(gradient.any() for gradient in ways["armed"]["result"]["gradients"])


@pytest.mark.parametrize("case", CASES)
def test_memory(case, results):
    """Disarmed as much as plain Paddle; armed three times the outputs more at most, and what was accumulated before."""
    ways = results[case]
    if case not in exactness.RIGHT_INSTEAD_OF_REFUSED:  # plain Paddle's backward never ran
        exactness.check_memory(ways)


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
def test_in_chunks_or_said(case, results):
    """The gradient of the whole batch, or one line: never another gradient in silence."""
    ways = results[case]
    for way in exactness.SPLIT:
        right, apart, said = exactness.judge(case, ways["plain"], way, ways[way])
        assert right, f"{way}: {apart:.1e} {said}\n{ways['plain']['result']}\n{ways[way]['result']}"
        if case not in SAID:
            assert ways[way]["said"] == [] and apart <= exactness.EXACT, (way, said, apart)
        elif way.isdigit():
            assert any(SAID[case] in why for _, _, why in ways[way]["said"]), (way, ways[way]["said"])
