"""The other choke point: core.eager.run_partial_grad, behind paddle.grad.

Gradients with respect to what the user names are collected on both sides of each cut: in the user's part of the graph,
and through the inner graphs with the gradients that arrive at their leaves as seeds, newest first.
"""

from . import chunks, keep, native
from .call import one_backward, pending
from .oom import attempt, is_oom
from .rescue import shrink, went_through
from .runtime import inside, runtime, thread
from .site import site_of


def forgetting(original):
    """run_partial_grad that holds nothing once it ran out of memory: Paddle keeps the graph of the last one until the next
    has run, so a small one on the host comes after it."""

    def run(outputs, inputs, grad_outputs, retain, create_graph, *rest):
        try:
            return original(outputs, inputs, grad_outputs, retain, create_graph, *rest)
        except Exception as error:
            if is_oom(error):
                _run_a_small_one(original, rest)
            raise

    return run


def _run_a_small_one(original, rest):
    paddle = runtime.paddle
    try:
        with inside(), paddle.enable_grad():
            leaf = paddle.to_tensor(1.0, place=paddle.CPUPlace(), stop_gradient=False)
            original([leaf * 1.0], [leaf], [None], False, False, *rest)
    except Exception:
        pass  # the graph stays for a while: no reason to hide the error that matters


def run_partial_grad(
    outputs, inputs, grad_outputs, retain, create_graph, only_inputs, allow_unused, no_grad_vars, *rest
):
    """Stands in for core.eager.run_partial_grad."""
    arguments = (outputs, inputs, grad_outputs, retain, create_graph, only_inputs, allow_unused, no_grad_vars) + rest
    if thread.inside or not runtime.guarding:
        return runtime.run_partial_grad(*arguments)
    phase_before = runtime.library.set_phase(native.BACKWARD)
    try:
        calls = [call for call in pending() if not call.consumed]
        if not calls:
            # Paddle keeps one list of wanted tensors for the whole process, and a forward may be using it (speculate.py).
            with one_backward, inside():
                return runtime.run_partial_grad(*arguments)
        for call in calls:
            if call.inner is None and create_graph:
                _refuse(call)
        with one_backward, inside():
            return _through(calls, *arguments)
    finally:
        runtime.library.set_phase(phase_before)


def _through(
    calls, outputs, inputs, grad_outputs, retain, create_graph, only_inputs, allow_unused, no_grad_vars, *rest
):
    inputs = list(inputs)
    leaves = [leaf for call in calls for leaf in call.leaves if leaf is not None]

    def partial(roots, seeds, wanted, keep):
        return runtime.run_partial_grad(
            roots, wanted, seeds, keep, create_graph, only_inputs, True, no_grad_vars, *rest
        )

    found = partial(outputs, grad_outputs, inputs + leaves, True)
    totals = list(found[: len(inputs)])
    arrived = {id(leaf): gradient for leaf, gradient in zip(leaves, found[len(inputs) :])}
    for position, call in reversed(list(enumerate(calls))):
        seeds = [None if leaf is None else arrived.get(id(leaf)) for leaf in call.leaves]
        if all(seed is None for seed in seeds):
            continue
        if call.inner is None:
            mine = {id(p) for p in call.parameters}
            asked = [wanted for wanted in inputs if id(wanted) in mine]
            sink, joints = _retried(call, seeds, lambda a=asked: chunks.Collect(a, rest))
            by_id = {id(wanted): total for wanted, total in zip(sink.wanted, sink.sums)}
            _add(totals, [by_id.get(id(wanted)) for wanted in inputs])
        else:
            pairs = [(tensor, seed) for tensor, seed in zip(call.inner, seeds) if seed is not None]
            leaves_in = [leaf for _, leaf in call.joints]
            through = partial([t for t, _ in pairs], [seed for _, seed in pairs], inputs + leaves_in, retain)
            _add(totals, through[: len(inputs)])
            joints = [(original, g) for (original, _), g in zip(call.joints, through[len(inputs) :]) if g is not None]
        earlier = [leaf for other in calls[:position] for leaf in other.leaves if leaf is not None]
        for original, gradient in joints:
            _add(totals, [gradient if original is wanted else None for wanted in inputs])
            if original.is_leaf:
                continue
            onward = partial([original], [gradient], inputs + earlier, True)
            # `original` itself is a root here, its own share was counted above.
            _add(totals, [None if original is wanted else g for wanted, g in zip(inputs, onward)])
            for leaf, more in zip(earlier, onward[len(inputs) :]):
                if more is not None:
                    known = arrived.get(id(leaf))
                    arrived[id(leaf)] = more if known is None else known + more
        if not retain:
            call.consume()
    if not allow_unused and any(total is None for total in totals):
        # As Paddle says it: asked again without our leaves, the same complaint comes from the same place.
        missing = [wanted for wanted, total in zip(inputs, totals) if total is None]
        runtime.run_partial_grad(
            outputs, missing, grad_outputs, True, create_graph, only_inputs, False, no_grad_vars, *rest
        )
    return totals


def _retried(call, seeds, make_sink):
    """chunks.backward() into a fresh sink, in smaller chunks where it runs out of memory: (sink, joints)."""
    why = call.changed_since()
    if why is not None:
        raise RuntimeError("bsguard: paddle.grad needs the forward of %s once more, but %s" % (call.site.name, why))
    while True:
        sink, inner = make_sink(), thread.nested
        joints, failure = attempt(lambda s=sink: chunks.backward(call, seeds, s))
        if failure is None:
            went_through(call)
            return sink, joints
        sink = joints = None
        if thread.nested != inner:
            call.spoiled = "a backward that a layer of it runs by itself has added to gradients"
        if keep.give_back(failure, native.BACKWARD):
            call.again = "the backward"
        else:
            shrink(call, native.BACKWARD, failure, repeats=False)


def _add(totals, more):
    for index, gradient in enumerate(more):
        if gradient is not None:
            known = totals[index]
            totals[index] = gradient if known is None else known + gradient


def _refuse(call):
    site = site_of(call.layer)
    why = "paddle.grad with create_graph cannot cross a call that ran in chunks"
    runtime.library.refused(site.name, why)
    raise RuntimeError(
        "bsguard: %s ran in %d chunks to fit the memory, and paddle.grad with create_graph needs its whole graph. "
        "Set BSGUARD=observe, or a batch that fits." % (site.name, call.pieces)
    )
