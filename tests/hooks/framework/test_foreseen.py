"""What is kept for the backward, and losses that are foreseen (jobs/foreseen.py): the gradients of every step are those of
plain Paddle, whatever the loop does in between, and the loss is foreseen where it can be.

All cases run in one process for each side, since starting Paddle takes longer than they do.
"""

import pathlib
import re

import pytest

from benchmarks import exactness

JOBS = pathlib.Path(__file__).parent / "jobs"
SCRIPT = JOBS / "foreseen.py"
CASES = re.findall(r"^@case\(.*\)\ndef (\w+)\(", SCRIPT.read_text(), re.MULTILINE)
WAYS = ("3", "backward")  # the last chunk would be kept; none is, and the first backward fails

# What is made of the batch in the loop, or mixes its samples, or has no common factor, or has hooks that would see it.
NOT_FORESEEN = {
    "mean_square",
    "sum_of_squares",
    "against_a_new_tensor",
    "ignored_labels",
    "weighed_classes",
    "two_losses_of_one_output",
    "contrastive",
    "hook_on_a_weight",
    "weight_in_a_list",
    "weight_in_a_list_with_a_gradient",
}
# What a failed backward has added to a gradient that was there before, of a weight that nobody knows of: not undone.
LOST = {("weight_in_a_list_with_a_gradient", "backward")}

pytestmark = pytest.mark.timeout(600)  # the first test waits for both jobs


@pytest.fixture
def results(all_ways):
    """{case: {way: ...}} of all cases, with plain among the ways; {"": ...}: errors of bsguard's own."""
    return all_ways(SCRIPT, WAYS, timeout=500)


def test_no_error_of_its_own(results):
    assert results[""] == []


@pytest.mark.parametrize("case", CASES)
def test_as_plain_paddle(case, results):
    ways = results[case]
    for way in WAYS:
        right, apart, said = exactness.judge(case, ways["plain"], way, ways[way])
        assert right, f"{way}: {apart:.1e} {said}\n{ways['plain']['result']}\n{ways[way]['result']}"
        assert (said == "exception") == ((case, way) in LOST), said
        if case != "batch_norm" and said != "exception":  # its statistics are those of each chunk
            assert apart <= exactness.EXACT, (way, apart)
    assert (ways["3"]["foreseen"] > 0) == (case not in NOT_FORESEEN), ways["3"]["foreseen"]
    if case == "cross_entropy":  # 8 samples
        assert ways["3"]["ahead"] == 2 * ways["3"]["foreseen"]  # the graph of the last of three is kept
        assert ways["backward"]["ahead"] == 2 * ways["backward"]["foreseen"] > 0  # both of two
