"""The choke point of every Layer call: the outermost trainable one of a step is where a batch is split."""

from . import arming, chunks, collectives, evaluation, keep, loss, named, native, operations, ranks, sides
from .call import Call, pending
from .inputs import Inputs
from .oom import Failure, attempt, is_oom
from .rescue import give_up, shrink, went_through
from .runtime import inside, note_phase, original_call, reclaim, runtime, thread
from .site import site_of
from .state import Mode

_MOST_BOUNDARIES = 6  # distinct outermost layers in one step; more: a network written as a function

_NO_PLACE = (
    "more than %d layers are called on their own in a step: no place to split, unless BSGUARD_BOUNDARY=MODULE:FUNCTION "
    "names one" % _MOST_BOUNDARIES
)

_told = set()  # what concerns many layers is said of the first one
_in_this_step = set()  # ids of the layers that were outermost since the last backward or optimizer step


def layer_call(self, *args, **kwargs):
    """Stands in for paddle.nn.Layer.__call__."""
    if thread.inside or not runtime.guarding:
        return runtime.layer_call(self, *args, **kwargs)
    return _outermost(self, args, kwargs)


def _outermost(layer, args, kwargs):
    paddle = runtime.paddle
    if not paddle.in_dynamic_mode():
        return original_call(layer, args, kwargs)
    named.look()
    if thread.recording is not None:
        thread.recording.append(layer)
        return original_call(layer, args, kwargs)
    site = site_of(layer)
    if site.off is not None:
        return original_call(layer, args, kwargs)
    device = site.device()
    if not paddle.base.framework._dygraph_tracer()._has_grad:
        return evaluation.call(site, device, args, kwargs) if device >= 0 else original_call(layer, args, kwargs)
    if not site.trainable():
        return loss.call(layer, args, kwargs)
    if device < 0:
        return original_call(layer, args, kwargs)
    if not site.looked:
        site.looked = True
        try:
            pipeline = collectives.pipeline()
            why = pipeline or collectives.objection(layer)
        except Exception as error:  # it asks the user's own attributes, which may raise anything
            site.fault(error)
            return original_call(layer, args, kwargs)
        if why is not None:
            site.give_up(why, aloud=pipeline is None or why not in _told)
            _told.add(why)
            return original_call(layer, args, kwargs)
    runtime.device = device
    if id(layer) not in _in_this_step:
        _in_this_step.add(id(layer))
        if len(_in_this_step) > _MOST_BOUNDARIES:
            site.give_up(_NO_PLACE, aloud=not _told)
            _told.add(_NO_PLACE)
            return original_call(layer, args, kwargs)
    phase_before = runtime.library.set_phase(native.FORWARD)
    after = native.LOSS
    try:
        return _train(site, device, args, kwargs)
    except BaseException as error:
        after = phase_before
        note_phase(error, native.FORWARD)
        raise
    finally:
        runtime.library.set_phase(after)


def _train(site, device, args, kwargs):
    """A call in training: as a whole while it fits, in chunks where the policy says so."""
    failure = None
    collectives.seen()
    try:
        inputs = Inputs(args, kwargs)
        pieces, armed, decision, whole = 1, False, None, None
        if inputs.batch:
            decision = runtime.library.boundary(
                device, site.encoded_name, inputs.signature, inputs.batch, native.FORWARD
            )
            pieces = decision.accumulation_steps
            armed = pieces > 1 or arming.is_armed(site, inputs, device)
            parallels = ranks.within(site)
            if parallels:
                armed = ranks.choose(parallels, armed)
                if armed is None:
                    whole = "the reducer waits for another call of this step"
            if armed:
                whole = sides.objection(inputs.tensors)
            if whole is not None:
                armed, pieces = False, 1
        call = Call(site, inputs, Mode(), device) if armed else None
        if pieces > 1:
            _take_up(call, decision)
    except Exception as error:
        _unprepared(site, error)
        return original_call(site.layer(), args, kwargs)
    if call is None:
        if not pending():
            operations.rest()
        try:
            outputs = original_call(site.layer(), args, kwargs)
            _look_for_collectives(site)
            return outputs
        except Exception as error:
            if not is_oom(error) or not inputs.batch:
                raise
            whole = whole or sides.objection(inputs.tensors)
            if whole is not None:
                runtime.library.refused(site.name, whole)
                raise
            failure = Failure(error)
        call = Call(site, inputs, Mode(), device)
        call.late = True
        shrink(call, native.FORWARD, failure)
    outputs, own = _forward(call, failure)
    try:
        operations.watch()
        given = _hand_out(call, outputs, own)
        if any(leaf is not None for leaf in call.leaves):
            ranks.handed_out(call)
        _look_for_collectives(site)
        return given
    except Exception as error:
        _unprepared(site, error)
        if call.pieces == 1 and not call.joints:
            ranks.tell(call, outputs)
            return outputs  # still on the graph that Paddle made
    outputs = own = call = None
    return original_call(site.layer(), args, kwargs)


def _hand_out(call, outputs, own):
    """Call.hand_out(), once more where there is no room for its copies of the outputs: no other call's graph is dropped
    for those, since the outputs may be given as they are."""
    with inside():
        given, failure = attempt(lambda: call.hand_out(outputs, own))
        if failure is None:
            return given
        failure = None
        keep.drop(call)
        reclaim()
        return call.hand_out(outputs, own)


def _unprepared(site, error):
    """A call could not be prepared for being split: for want of memory in this step alone, else an error of our own."""
    if is_oom(error):
        Failure(error)  # lets go of what the traceback holds
    else:
        site.fault(error)


def _look_for_collectives(site):
    name = collectives.seen()
    if name is not None:
        site.give_up("its forward exchanges data with other ranks (%s)" % name)


def _take_up(call, decision):
    """Runs a call in chunks because an earlier one, or an operator, has asked for that size."""
    call.proof = call.site.proof(call.inputs, call.mode, decision.micro_batch)
    why = call.proof.why
    if why is None and decision.micro_batch < call.proof.smallest:
        why = "chunks of one sample could not be proven"
    if why is not None:
        runtime.library.refused(call.site.name, why)
        return
    call.pieces, call.micro_batch = decision.accumulation_steps, decision.micro_batch
    call.sequence = decision.sequence
    call.say(call.proof.exactness, call.proof.reasons, native.FORWARD)


def _forward(call, failure):
    """(outputs, own) for Call.hand_out(), in as many chunks as it takes. failure: the OOM of this step so far, or None."""
    while True:
        wrong = None
        try:
            if call.pieces > 1:
                result, missed = attempt(lambda: chunks.forward(call))
            else:
                result, missed = attempt(lambda: _forward_whole(call))
            if missed is None:
                went_through(call)
                return result
        except Exception as error:
            if call.pieces == 1:
                raise
            wrong = error
        call.rewind()
        if wrong is None:
            failure = missed
            # Only what is proven to do so may run twice as it is.
            if call.pieces > 1 and keep.give_back(failure, native.FORWARD, call):
                call.again = "the forward"
            else:
                shrink(call, native.FORWARD, failure)
            continue
        call.drop_kept()
        # Only in chunks: the call may well run as a whole, or it was an OOM that brought it here.
        what = str(wrong) if isinstance(wrong, chunks.Mismatch) else "%s: %s" % (type(wrong).__name__, wrong)
        call.site.cannot_split(
            call.inputs, call.mode, "in chunks it failed (%s)" % (what.splitlines() or [""])[0][:160]
        )
        if failure is not None:
            give_up(call, native.FORWARD, failure)
        call.pieces, call.micro_batch, call.proof = 1, call.inputs.batch, None


def _forward_whole(call):
    """Paddle's own forward, with inputs that need a gradient as leaves: (outputs, own) for Call.hand_out()."""
    args, kwargs, joints = call.inputs.whole()
    call.joints = joints
    with ranks.deferring() as call.parallels:
        outputs = original_call(call.layer, args, kwargs)
    call.inputs.hand_back(joints)
    own = {id(tensor): tensor for tensor in call.inputs.tensors}
    own.update((id(leaf), original) for original, leaf in joints)
    own.update((id(parameter), parameter) for parameter in call.layer.parameters())
    return outputs, own


def backward_ended():
    """A backward ended. Who updates the weights by hand steps with no optimizer, and may use other layers now."""
    _in_this_step.clear()


def step_ended():
    """An optimizer step ended: the next one may use other layers."""
    _in_this_step.clear()
    named.step_ended()
