"""Calls without gradients: split and concatenated where they run out of memory, with sizes of their own.

Training is never shrunk for an evaluation, and an evaluation never for training.
"""

from . import chunks, native
from .call import Call
from .inputs import Inputs
from .oom import Failure, attempt, is_oom
from .rescue import shrink, went_through
from .runtime import original_call, runtime
from .state import Mode


def call(site, device, args, kwargs):
    """A call under no_grad."""
    before = runtime.library.set_phase(native.EVALUATION)
    try:
        return _evaluate(site, device, args, kwargs)
    finally:
        runtime.library.set_phase(before)


def _evaluate(site, device, args, kwargs):
    inputs = Inputs(args, kwargs)
    if not inputs.batch:
        return original_call(site.layer(), args, kwargs)
    decision = runtime.library.boundary(device, site.encoded_name, inputs.signature, inputs.batch, native.EVALUATION)
    failure = None
    if decision.accumulation_steps <= 1:
        try:
            return original_call(site.layer(), args, kwargs)
        except Exception as error:
            if not is_oom(error):
                raise
            failure = Failure(error)
    one = Call(site, inputs, Mode(), device)
    one.late = failure is not None
    if decision.accumulation_steps > 1:
        one.proof = site.proof(inputs, one.mode, decision.micro_batch)
        if one.proof.why is not None:
            return original_call(site.layer(), args, kwargs)
        one.pieces, one.micro_batch = decision.accumulation_steps, decision.micro_batch
    while True:
        if failure is not None:
            shrink(one, native.EVALUATION, failure)
        try:
            result, failure = attempt(lambda: _run(one, args, kwargs))
        except chunks.Mismatch as error:
            one.rewind()
            site.cannot_split(inputs, one.mode, str(error))
            return original_call(site.layer(), args, kwargs)
        if failure is None:
            went_through(one)
            return result[0]
        one.rewind()


def _run(one, args, kwargs):
    if one.proof is None:  # it cannot be split, and is tried once more as it was
        return original_call(one.layer, args, kwargs), None
    return chunks.forward(one)
