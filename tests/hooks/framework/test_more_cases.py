"""What networks and loops do in the world (jobs/more_cases.py): at one chunk nothing of it may be seen, in chunks the
gradient is that of the whole batch or it was said why not.

All cases run in one process for each way, since starting Paddle takes longer than they do.
"""

import pathlib
import re

import pytest

from benchmarks import exactness

JOBS = pathlib.Path(__file__).parent / "jobs"
SCRIPT = JOBS / "more_cases.py"
CASES = re.findall(r"^@case\ndef (\w+)\(\):", SCRIPT.read_text(), re.MULTILINE)

# What reaches a weight on both sides of the cut is added in another order; everything else is equal to the last bit.
ADDED_IN_ANOTHER_ORDER = {
    "ragged_outputs",
    "list_argument_is_filled",
    "list_argument_is_filled_and_the_input_has_a_gradient",
    "dict_argument_is_filled_and_holds_a_gradient",
    "output_in_an_object_and_bare",
    "list_in_a_module_keeps_features",
    "dict_in_a_module_keeps_features",
    "closure_keeps_features",
    "hook_added_after_a_step",
    "hook_that_keeps_features",
    "hook_on_a_weight_that_the_loss_takes_too",
}

# What bsguard must say of a case in chunks: a class, or a part of the reason for which it refuses.
SAID = {
    "loss_inside_mean": "loss inside the model",
    "loss_inside_that_is_zero_at_first": "loss inside the model",
    "loss_inside_with_a_head_of_zeros": "none of its outputs depends on the batch",
    "loss_inside_of_positives": "loss inside the model",
    "loss_inside_by_valid_elements": "no finite number for some samples alone",
    "two_losses_inside": "no finite number for some samples alone",
    "positives_counted_inside": "output 1 is a number of the whole batch",
    "positives_counted_inside_in_whole_numbers": "output 1 is a number of the whole batch",
    "accuracy_inside": "output 1 is a number of the whole batch",
    "contrastive_inside": "neither a mean nor a sum",
    "loss_inside_by_the_variance_of_the_batch": "may set samples against each other",
    "triplets_inside": "neither a mean nor a sum",
    "loss_inside_over_a_ragged_mask": "loss inside the model",
    "balance_of_experts_inside": "neither a mean nor a sum",
    "sorted_by_length": "depends on the other samples",
    "nearly_constant_output": "not the same for all samples",
    "variational_auto_encoder": "noise",
    "variational_with_normal": "noise",
    "noise_in_forward": "noise",
    "masked_at_random": "noise",
    "drops_whole_paths": "noise",
    "drops_with_the_function": "dropout",
    "noise_of_the_whole_batch": "randomness",
    "mixed_up_inside": "or on random numbers",
    "gate_of_zero_in_front_of_the_neighbours": "do not add up",
    "samples_in_pairs": "the place of a sample",
    "attributes_of_an_output": "notes remark on an output",
    "hook_of_the_engine_on_a_parameter": "hook of the engine",
    "packs_its_outputs": "has the shape",
    "structure_depends_on_a_late_sample": "it returned",
    "batch_norm": "batch_norm",
    "dropout": "dropout",
    "text_changes_what_is_computed": "other samples",
    "number_changes_what_is_computed": "other samples",
    "attribute_changes_what_is_computed": "other samples",
    "attribute_changes_before_the_backward": "its second forward differs",
    "weights_set_before_the_backward": "its second forward differs",
    "frozen_weight_changed_before_the_backward": "its second forward differs",
    "counter_in_an_attribute": "changes calls",
    "counter_in_the_class": "changes ClassCounter.calls",
    "counter_in_a_nested_attribute": "changes Nested.record",
    "counter_in_an_object": "changes Metered.meter.count",
    "counter_in_a_module": "changes STEPS_SEEN",
    "counter_in_a_closure": "changes calls",
    "counter_in_an_array": "changes calls",
    "list_in_a_module_keeps_features": "changes FEATURES",
    "dict_in_a_module_keeps_features": "changes CACHE",
    "closure_keeps_features": "changes kept",
    "queue_in_a_closure": "changes queue",
    "iterator_in_a_closure": "draws from an iterator",
    "hook_added_after_a_step": "forward hook",
    "hook_inside_that_normalises": "do not add up",
    "hook_inside_that_counts": "changes calls",
    "own_backward_over_the_batch": "do not add up",
    "backward_inside_the_forward": "a backward of its own",
    "weight_of_another_layer_and_a_hook": "not among its parameters",
    "spectral_norm": "other samples",
    "saved_tensors_are_rounded": "saved_tensors_hooks",
}

# These must be split, and come out exact: refusing everything would pass every other test.
EXACT = {
    "view_of_an_output",
    "dict_with_entries_that_are_no_batch",
    "named_tuples",
    "list_of_samples_and_a_tensor",
    "list_of_samples_with_gradients",
    "keywords_only",
    "one_tensor_twice_with_a_gradient",
    "a_hundred_arguments",
    "weight_norm",
    "rate_inside",
    "batch_norm_frozen",
    "hook_inside_that_scales",
    "hook_on_a_weight_that_the_loss_takes_too",
    "tied_inside",
    "own_backward",
    "to_static_whole_graph",
    "recompute_inside",
    "adversaries_that_step_in_turn",
    "thawed_after_a_step",
    "accumulating",
    "two_threads",
    "model_fit",
    "penalty_on_weights_inside",
    "amp_o1",
}

# Whether the forwards of the two threads overlap is chance, and with it the peak of each run.
MEMORY_BY_CHANCE = ("two_threads",)

pytestmark = pytest.mark.timeout(900)  # the first test waits for all jobs


@pytest.fixture
def results(all_ways):
    """{case: {way: ...}} of all cases, with plain among the ways; {"": ...}: errors of bsguard's own."""
    return all_ways(SCRIPT, exactness.WAYS, timeout=600)


def test_no_error_of_its_own(results):
    assert results[""] == []


@pytest.mark.parametrize("case", CASES)
def test_seen_by_nobody(case, results):
    """At one chunk, armed and disarmed, everything is plain Paddle's."""
    ways = results[case]
    for way in ("armed", "disarmed"):
        right, apart, said = exactness.judge(case, ways["plain"], way, ways[way])
        assert right, f"{way}: {apart:.1e} {said}\n{ways['plain']['result']}\n{ways[way]['result']}"
        if case not in ADDED_IN_ANOTHER_ORDER:
            assert apart == 0.0, (way, apart)


@pytest.mark.parametrize("case", [case for case in CASES if case not in MEMORY_BY_CHANCE])
def test_memory(case, results):
    """Disarmed as much as plain Paddle; armed three times the outputs more at most, and what was accumulated before."""
    exactness.check_memory(results[case])


@pytest.mark.parametrize("case", CASES)
def test_never_silently_different(case, results):
    """In 2, 3 and 4 chunks, in chunks of one sample, and after an OOM at the end of a forward or of a backward."""
    ways = results[case]
    for way in exactness.SPLIT:
        right, apart, said = exactness.judge(case, ways["plain"], way, ways[way])
        assert right, f"{way}: {apart:.1e} {said}\n{ways['plain']['result']}\n{ways[way]['result']}"
    if "exception" in ways["plain"]["result"]:
        return  # this Paddle cannot do it at all
    if case in EXACT:
        assert all(ways[way]["said"] == [] for way in exactness.SPLIT), ways["2"]["said"]
    if case in SAID:
        assert SAID[case] in str(ways["2"]["said"]), ways["2"]["said"]


def test_all_are_named():
    assert (ADDED_IN_ANOTHER_ORDER | EXACT | set(SAID)) <= set(CASES)
