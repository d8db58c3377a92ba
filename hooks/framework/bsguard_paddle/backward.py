"""The choke point of every backward: paddle.base.core.eager.run_backward.

The user's part of the graph runs down to the leaves of the pending calls; then their inner graphs are run, newest first,
with the gradients that arrived there as seeds, or the calls are recomputed in chunks. Inputs of a call that need a
gradient get theirs once, and with it the calls before it.
"""

from . import (
    again,
    arming,
    boundary,
    chunks,
    gradients,
    hooks,
    keep,
    loss,
    native,
    neighbours,
    nested,
    ranks,
    speculate,
    whole,
)
from .call import any_done, is_done, one_backward, pending
from .chunks import Accumulate
from .graph import Reach, accumulation_nodes, holds_kind, node_of, walk
from .oom import attempt
from .rescue import shrink, went_through
from .runtime import inside, note_phase, runtime, thread
from .sides import told_twice

_NOTHING_HELD = (
    "the backward of the loss ran out of memory, and no graph of a layer is held that could be dropped for it"
)
_WRITTEN_ELSEWHERE = (
    "its backward adds to a weight that is not among its parameters, and what it has added there cannot be undone"
)


def run_backward(tensors, grads, retain_graph=False, *rest):
    """Stands in for core.eager.run_backward."""
    if thread.trial:
        raise RuntimeError("its forward runs a backward of its own")
    if thread.inside:
        return nested.run_backward(tensors, grads, retain_graph, *rest)
    if not runtime.guarding:
        return runtime.run_backward(tensors, grads, retain_graph, *rest)
    phase_before = runtime.library.set_phase(native.BACKWARD)
    try:
        calls = pending()
        if not calls and not any_done():
            try:
                with inside():
                    runtime.run_backward(tensors, grads, retain_graph, *rest)
            except Exception as error:
                note_phase(error, native.BACKWARD)
                raise
            gradients.touched()
            ranks.backward_ended()
            return None
        # One at a time: what another thread's backward leaves at its leaves for a moment is not ours to run on.
        with one_backward:
            aside = hooks.HooksAside()
            marks = ranks.Marks(calls)
            try:
                reached = _through(calls, tensors, grads, retain_graph, rest, aside)
                with inside():
                    aside.settle(_tried_again, rest)
                marks.end()
                ranks.settle(reached, marks, rest)
                ranks.backward_ended()
            except BaseException:
                aside.abandon()
                marks.end()
                # What arrived at the leaves belongs to this backward: none of it may count in a later one.
                gradients.touched()
                for call in calls:
                    call.clear_seeds()
                raise
    finally:
        boundary.backward_ended()
        runtime.library.set_phase(native.OTHER if phase_before == native.LOSS else phase_before)


def _through(calls, tensors, grads, retain_graph, rest, aside):
    """Returns the calls that it reached."""
    reach = Reach(tensors)
    _set_aside(aside, told_twice(calls, reach))
    leaves = [leaf for call in calls for leaf in call.leaves if leaf is not None]
    if reach.known and (is_done(reach) or any(call.consumed and _reached(call, reach) for call in calls)):
        _refuse_second(tensors[0])
    only_leaves = reach.only(leaves)
    _user_part(calls, tensors, grads, retain_graph, rest, reach, only_leaves, aside)
    if not only_leaves:
        gradients.untouched_but([p for call in calls for p in call.parameters if p not in reach])
    reached = []
    for call in reversed(calls):
        seeds = call.seeds()
        if all(seed is None for seed in seeds):
            continue
        if call.consumed:
            call.clear_seeds()
            _refuse_second(tensors[0])
        reached.append(call)
        joints = _inner_part(call, seeds, retain_graph, rest, aside)
        if joints:
            earlier = calls[: calls.index(call)]
            more = retain_graph or any(other.inner is not None or other.hands_on for other in earlier)
            _hand_on(joints, more, rest)
            _note_added([original for original, _ in joints])
        joints = None
        seeds = None
        call.clear_seeds()
        if not retain_graph:
            call.consume(reach.known)
    return reached


def _set_aside(aside, parameters):
    """Their hooks, and what is in `.grad` now."""
    if parameters:
        _tried_again(lambda: aside.add(parameters))


def _tried_again(function):
    return again.guarded(function, "a gradient for its hooks", native.BACKWARD)


def _reached(call, reach):
    return any(leaf is not None and leaf in reach for leaf in call.leaves)


def _user_part(calls, tensors, grads, retain_graph, rest, reach, only_leaves, aside):
    """From the user's tensors down to the leaves. The graph is kept while a call will hand a gradient on through it, and
    while an inner graph is held that it may reach into by another way (a tensor kept aside in forward), or that could
    be dropped for it. It stays in memory as long as the user holds the loss, so the last only where memory is short.

    Where it is short because of other processes the graph is kept for a second try too, as long as they are waited for."""
    written = [] if only_leaves else _written(calls, reach, aside)
    if keep.holds() and written is None and arming.is_short(calls):
        keep.drop()  # what could not be tried again must not run out of memory for it
    short = written is not None and arming.is_short(calls)
    saved = attempt(lambda: gradients.Saved(written))[0] if short or only_leaves else None
    short = short and saved is not None
    patient = short and neighbours.come_and_go()
    tries, gave = neighbours.Tries(native.BACKWARD, _NOTHING_HELD), False
    while True:
        held = keep.holds() or any(call.inner is not None for call in calls)
        retained = retain_graph or any(call.hands_on for call in calls)
        retained = retained or (held and (not only_leaves or short)) or patient
        with inside():
            _, failure = attempt(lambda k=retained: runtime.run_backward(tensors, grads, k, *rest))
        if failure is None:
            if gave and not tries.failed:
                runtime.library.retried(runtime.device, "the backward of the loss")
            tries.went_through("the backward of the loss")
            return
        # Once more is the same only if what was written to can be put back, and if the graph is still there: a PyLayer that
        # has run is not, and running it crashes Paddle.
        if not retained or saved is None or saved.restore() is not None or holds_kind(tensors, "PyLayer"):
            _give_back(failure, native.BACKWARD)
        for call in calls:
            call.clear_seeds()
        if loss.holds_graphs():
            gave = loss.drop_one(failure, native.BACKWARD)
            continue
        if not tries.ask(failure):
            if tries.failed > 1 and not patient:
                neighbours.give_up(failure, native.BACKWARD)
            patient = False  # a last time, without keeping the graph for it
        failure.forget()
        tries.wait()


def _written(calls, reach, aside):
    """The parameters that the user's part adds to by itself, as a penalty on weights does; None where it may write to
    anything else beside the leaves, or where somebody is told of each gradient and would be told twice. aside: the hooks in
    it are told once, at the end."""
    leaves = [leaf for call in calls for leaf in call.leaves if leaf is not None]
    found = {id(p): p for call in calls for p in call.parameters if p in reach}
    written = list(found.values())
    if not reach.only(leaves + written):
        return None
    if any((hooks.has_hooks(p) and not aside.holds(p)) or hooks.has_engine_hook(p) for p in written):
        return None
    return written


def _hand_on(joints, retained, rest):
    """Runs on into what made a call's inputs, with their gradients: a call before it, or the user's own. Each share
    arrives whole, and once; inputs that come from one graph go together, since it is gone after the first."""
    with inside():
        for original, gradient in joints:
            if original.is_leaf:
                runtime.run_backward([original], [gradient], retained, *rest)
        made = [(original, gradient) for original, gradient in joints if not original.is_leaf]
        if made:
            runtime.run_backward(
                [original for original, _ in made], [gradient for _, gradient in made], retained, *rest
            )


def _give_back(failure, phase, why=_NOTHING_HELD):
    """An OOM that nothing can be done about: reported, and the user's exception."""
    runtime.library.terminal(runtime.device, None, None, 0, phase, native.REFUSED, why, failure.bytes, failure.line)
    neighbours.give_up(failure, phase)


def _inner_part(call, seeds, retain_graph, rest, aside):
    """From the leaves through the call; returns [(input, gradient)] for its inputs that need one."""
    failure = None
    if call.inner is not None:
        saved, failure = attempt(lambda: gradients.Saved(call.parameters))
        # To make room for what is saved, this very graph may have been dropped: then the call has its chunks already.
        dropped = call.inner is None
        if failure is None and not dropped:
            inner, told = thread.nested, hooks.Told(call.parameters, aside)
            joints, failure = attempt(lambda: _whole(call, seeds, retain_graph, rest))
            gradients.touched(call.parameters)
            if failure is None:
                _note_added(_roots(call, seeds))
                return joints
            elsewhere = _written_elsewhere(call, seeds)
            call.drop_graph()
            finished = told.now() if thread.nested == inner else []  # else more may have come for them
            aside.finish(finished)
            call.spoiled = saved.restore(finished)
            opaque = thread.nested != inner and not call.site.is_closed(call.inputs, call.mode)
            if elsewhere is None or opaque:
                _give_back(failure, native.BACKWARD, _WRITTEN_ELSEWHERE)
            gradients.zero(elsewhere)
        saved = joints = None
        call.drop_graph()
        if not dropped:
            shrink(call, native.BACKWARD, failure)
    why = call.changed_since()
    if why is not None:
        _cannot_recompute(call, why)
    if call.private is not None and _merged(call, seeds, rest, aside):
        return []
    speculate.learn(call, seeds)
    _set_aside(aside, call.parameters)
    while True:
        saved, failure = attempt(lambda: gradients.Saved(call.parameters))
        if failure is None:
            try:
                joints, failure = attempt(lambda: _once_more(call, seeds, rest))
            except chunks.Mismatch as error:
                call.spoiled = saved.restore()
                call.site.cannot_split(call.inputs, call.mode, str(error))
                _cannot_recompute(call, str(error))
            gradients.touched(call.parameters)
            if failure is None:
                went_through(call)
                return joints
            call.spoiled = saved.restore()
        saved = joints = None
        _smaller(call, failure)


def _written_elsewhere(call, seeds):
    """What a backward of the graph that is held accumulates into beside the call's parameters and inputs: weights that the
    layer keeps in a list of its own, say. None where one is not known to have held only zeros before."""
    known = [node_of(leaf) for leaf in call.parameters + [leaf for _, leaf in call.joints]]  # kept: ids stay valid
    mine = {id(node) for node in known}
    nodes = [node for node in accumulation_nodes(_roots(call, seeds)) if id(node) not in mine]
    zeroed = [(node_of(parameter), parameter) for parameter in gradients.zeroed()] if nodes else []
    by_id = {id(node): parameter for node, parameter in zeroed}
    return [by_id[id(node)] for node in nodes] if all(id(node) in by_id for node in nodes) else None


def _roots(call, seeds):
    """Where a backward of the graph that is held begins."""
    return [tensor for tensor, seed in zip(call.inner, seeds) if seed is not None]


def _note_added(roots):
    """A backward from these has run: what it has added to holds more than zeros now, whoever's it is."""
    zeroed = [parameter for parameter in gradients.zeroed() if not parameter.stop_gradient]
    if zeroed:
        passed = list(walk(roots))  # kept: ids stay valid
        reached = {id(node) for node in passed}
        opaque = any("PyLayer" in node.name() for node in passed)  # what its own backward adds to does not show
        gradients.touched([parameter for parameter in zeroed if opaque or id(node_of(parameter)) in reached])


def _merged(call, seeds, rest, aside):
    """True if the gradients that were computed ahead are right, and were added. They are gone then, and otherwise too."""
    private = call.private
    whole = private.samples == call.inputs.batch
    right, failure = attempt(lambda: (whole or call.bounds() == call.chunk_bounds) and private.matches(seeds))
    if failure is None and right:
        if not whole:
            _set_aside(aside, call.parameters)
        saved, failure = attempt(lambda: gradients.Saved(call.parameters))
        if failure is None and call.private is not private:
            return False  # given back, to make room for what is saved
        if failure is None:
            try:
                _, failure = attempt(lambda: _merge(call, private, seeds, rest))
            except chunks.Mismatch:  # of a chunk that was not computed ahead: the others would show it too
                right = False
            gradients.touched(call.parameters)
            if failure is not None or not right:
                call.spoiled = saved.restore()
        saved = None
    if failure is not None and keep.give_back(failure, native.BACKWARD, call):
        call.again = "the backward"
        why = call.changed_since()
        if why is not None:
            _cannot_recompute(call, why)
        return False
    call.private = None
    return bool(right)


def _merge(call, private, seeds, rest):
    call.as_recorded(lambda: private.merge(rest))
    if private.samples < call.inputs.batch:
        chunks.backward(call, seeds, Accumulate(rest), first=private.chunks)


def _smaller(call, failure):
    """After an OOM in a backward: what is held beyond need is given back, else the call gets more pieces."""
    if keep.give_back(failure, native.BACKWARD):
        call.again = "the backward"
    else:
        shrink(call, native.BACKWARD, failure)


def _once_more(call, seeds, rest):
    if call.proof is not None:
        return chunks.backward(call, seeds, Accumulate(rest))
    try:
        whole.recompute(call)
        try:
            return _whole(call, seeds, False, rest)
        except Exception:
            gradients.zero(_written_elsewhere(call, seeds) or [])
            raise
    finally:
        call.drop_graph()


def _whole(call, seeds, retain_graph, rest):
    roots, parts = [], []
    for tensor, seed in zip(call.inner, seeds):
        if seed is not None:
            roots.append(tensor)
            parts.append(seed)
    with inside():
        runtime.run_backward(roots, parts, retain_graph, *rest)
    found = []
    for original, leaf in call.joints:
        gradient = gradients.grad_of(leaf)
        if gradient is not None:
            # Never released before its use as a seed: Paddle would silently take it as ones.
            if retain_graph:
                found.append((original, gradient.clone()))
                gradients.release(leaf)
            else:
                found.append((original, gradient))
    return found


def _cannot_recompute(call, why):
    runtime.library.refused(call.site.name, why)
    raise RuntimeError(
        "bsguard: %s ran in %d chunks to fit the memory, and its backward needs the same forward once more, but %s. "
        "Set BSGUARD_ARM=never or a smaller batch, or move the change behind the backward."
        % (call.site.name, call.pieces, why)
    )


def _refuse_second(tensor):
    """Raises what Paddle raises where a graph is run through a second time without retain_graph."""
    paddle = runtime.paddle
    probe = paddle.ones([1])
    probe.stop_gradient = False
    with inside(), paddle.enable_grad():
        again = (probe * 2).sum()
        again.backward()
        try:
            again.backward()
        except Exception as error:
            named = str(error).replace(
                "SumGradNode", tensor.grad_fn.name() if tensor.grad_fn is not None else "SumGradNode"
            )
            error.args = (named,)
            raise error from None
