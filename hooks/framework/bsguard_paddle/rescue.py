"""From an OOM to the next attempt: reclaim, prove, ask the policy, and take up what it says - or give the user's own
exception back, with a report."""

from . import arming, evidence, keep, native, neighbours
from .call import one_backward
from .proof import may_be_repeated
from .runtime import allocated, inside, reclaim, runtime
from .state import normalises_by_batch

_AGAIN = {  # what is tried once more
    native.FORWARD: "the forward",
    native.LOSS: "the backward",
    native.BACKWARD: "the backward",
    native.EVALUATION: "the evaluation",
}


def shrink(call, phase, failure, repeats=True):
    """After an OOM in `phase` of a call whose failed attempt holds nothing any more: the call gets more pieces, or the
    same once more where the policy says that what was missing may have come back.

    repeats: may it be tried as it was, with no proof, where it cannot be split?

    Raises the user's exception where that cannot be done. Adds to nothing but the call.
    """
    library, site, inputs = runtime.library, call.site, call.inputs
    library.caught(call.device, failure.bytes)
    arming.note_oom(site, inputs)
    keep.drop(call)
    reclaim()
    held = _held(call.device)
    why = call.changed_since()
    next_micro_batch = -(-inputs.batch // min(inputs.batch, 2 * call.pieces)) if inputs.batch else 0
    if why is None and inputs.batch < 2:
        why = "a batch of one sample cannot be split"
    if why is None:
        call.proof = _proof(call, phase, next_micro_batch)
        why = call.proof.why
        if why is None and next_micro_batch < call.proof.smallest:
            why = "chunks of one sample could not be proven"
    exactness, reasons = (native.REFUSED, [why]) if why is not None else exactness_of(call, phase)
    decision = library.terminal(
        call.device,
        site.name,
        inputs.signature.decode("utf-8", "replace"),
        inputs.batch,
        phase,
        exactness,
        ",".join(reasons) or None,
        failure.bytes,
        failure.line,
        call.proof.smallest if why is None else 1,
        held,
        may_wait=True,
    )
    if decision.verdict == native.AGAIN:
        call.again = _AGAIN[phase]
        failure.error.__traceback__ = None
        neighbours.wait(call.device, decision)
        return
    call.again = None
    if why is not None and inputs.batch >= 2:
        library.refused(site.name, why)
    if decision.verdict != native.SHRINK:
        if not call.at_the_floor and (why is None or (repeats and _may_repeat(call, phase))):
            # No smaller chunk is left, but what failed may have been an accident: the same once more, and no more.
            call.at_the_floor, call.again = True, _AGAIN[phase]
            failure.error.__traceback__ = None
            return
        give_up(call, phase, failure)
    call.pieces = decision.accumulation_steps
    call.micro_batch = decision.micro_batch
    call.sequence = decision.sequence
    call.say(exactness, reasons, phase)
    failure.error.__traceback__ = None


def _may_repeat(call, phase):
    """May a call that cannot be split run as it was once more? Not where its last attempt has left something behind."""
    if phase not in (native.FORWARD, native.EVALUATION, native.BACKWARD) or call.pieces > 1:
        return False
    if call.changed_since() is not None:
        return False
    if call.late and any(normalises_by_batch(norm) for norm in call.site.batch_norms()):
        return False
    call.proof = None
    with one_backward, inside():  # as a proof is tried
        return may_be_repeated(call.layer, call.inputs, call.mode)


def _proof(call, phase, smallest):
    """The split proof; where other processes leave no memory for a trial, they are waited for."""
    tried = 0
    while True:
        proof = call.site.proof(call.inputs, call.mode, smallest)
        if proof.fits:
            return proof
        reclaim()
        tried += 1
        if tried == 1:  # memory may have been refused to the trial by accident
            continue
        if not neighbours.are_there(call.device):
            return proof
        decision = runtime.library.terminal(
            call.device, None, None, 0, phase, native.REFUSED, proof.why, 0, None, may_wait=True
        )
        if decision.verdict != native.AGAIN:
            return proof
        neighbours.wait(call.device, decision)


def went_through(call):
    """An attempt has succeeded: said, where it was one that was tried once more as it was."""
    if call.again is not None:
        what, call.again = call.again, None
        runtime.library.retried(call.device, what)


def _held(device):
    """Bytes on the device that no smaller chunk will give back, as near as can be told; 0 where nobody can."""
    now = allocated(device)[0]
    memory = None if now else runtime.library.memory(device)
    return now or (0 if memory is None else memory.live_bytes)


def give_up(call, phase, failure):
    """The OOM that was reported last cannot be saved: report, and the user's exception."""
    evidence.census(call.device)
    runtime.library.unrescued(call.device, phase, failure.line)
    failure.error._bsguard_reported = True
    failure.throw()


def exactness_of(call, phase):
    """(enum bsg_exactness, reasons) of running this step of the call in chunks from here on."""
    reasons = list(call.proof.reasons)
    exactness = call.proof.exactness
    if phase in (native.BACKWARD, native.LOSS) and call.proof.random:
        # The outputs that the loss saw were drawn with other masks than the second forward will draw.
        exactness = native.APPROXIMATE
        reasons.append("masks of the failed backward")
    return exactness, reasons
