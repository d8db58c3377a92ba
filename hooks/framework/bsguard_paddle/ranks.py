"""Data-parallel jobs: when the ranks of a paddle.DataParallel exchange their gradients.

A rank's own gradient does not depend on how many chunks it took, so ranks need not agree on anything but on which
collectives they issue. These are Paddle's own, issued by its own reducer, on every rank and in every step: as the
backward goes where a call is Paddle's own; and where a call is armed or in chunks, its forwards and backwards run without
the reducer's knowledge, and after the whole of the user's backward (a weight that the loss uses too has got all of its
gradient only then) the reducer is handed the finished gradients. It sums its buckets in one order whatever the order
in which gradients come, so that a rank in chunks and one that is not meet in the same collectives, of the same sizes.

Must never: issue a collective of its own; run one where another rank would not.
"""

import functools
import weakref

from . import gradients, hooks, native
from .neighbours import Tries
from .oom import attempt
from .runtime import inside, runtime, thread
from .state import without_autocast

# Elements more than a piece that the reducer takes: what Paddle's allocator hands to others from the same block, such as
# the reducer's list of used parameters, must not leave the block too small.
_SLACK = 1024
_ROUNDS = 5
_parallels = {}  # id of a DataParallel of many ranks -> _Parallel
_made = 0
_operator = None


class _Parallel:
    """What is known of a DataParallel and its reducer."""

    def __init__(self, layer, number):
        key = id(layer)
        self.layer = weakref.ref(layer, lambda _: _parallels.pop(key, None))
        self.number = number  # in the order in which they were made, which is the same on all ranks
        self.finds = bool(layer.find_unused_parameters)
        self.traversed = False  # the reducer has looked which parameters are used; it does so once, or at each step
        self.awaited = False  # the gradients of a call that ran without the reducer are to be handed to it
        self.open = False  # the reducer waits for the gradients of a call that was Paddle's own
        self.often = False  # called more than once a step
        self.parameters = [weakref.ref(parameter) for parameter in _trained(layer)]
        self._buckets = [
            (sum(self.parameters[index]().size for index in group) + _SLACK, self.parameters[group[0]]().dtype)
            for group in layer.group_indices
        ]

    def settle(self, marks, rest):
        """Hands the gradients to the reducer, as if they came in just now. rest: further arguments of run_backward."""
        layer = self.layer()
        known = [reference() for reference in self.parameters]
        used = [p for p in known if p is not None and (gradients.grad_of(p) is not None)]
        if marks is not None:
            used = [p for p in used if id(p) in marks.seen]
        taken = {id(parameter) for parameter in used}
        self._make_room([p for p in known if p is not None and id(p) not in taken])
        aside = [(p, hook) for p in used for hook in hooks.hooks_of(p)]
        frozen = [p for p in used if p.stop_gradient]
        for parameter in frozen:
            parameter.stop_gradient = False
        for _, hook in aside:
            hook.set_aside()
        try:
            touched = without_autocast(_touching().apply, *used, grad=True) if used else None
            layer._reducer.prepare_for_backward([] if touched is None else [touched])
            self.traversed, self.awaited = True, False
            if touched is not None:
                runtime.run_backward([touched], [], False, *rest)
        finally:
            for parameter, hook in aside:
                if not hook.removed:
                    hook.put_back(parameter)
            for parameter in frozen:
                parameter.stop_gradient = True
            gradients.touched(known)

    def _make_room(self, unused):
        """The reducer cannot go on after an OOM, so there must be room for all that it takes before it begins: zeros in
        the place of the gradients that this rank has not, its buckets, and what the others give it for the zeros. In this
        order, its own, and again until nothing more comes from the driver: an allocator that chooses the best fitting block
        then chooses alike."""
        missing = [(p.size + _SLACK, p.dtype) for p in unused if gradients.grad_of(p) is None]
        wanted = missing + self._buckets + missing
        tries = Tries(native.BACKWARD, "the buckets in which gradients are exchanged with the other ranks do not fit")
        while True:
            failure = attempt(lambda: _rehearse(wanted))[1]
            if failure is None:
                tries.went_through("the exchange of gradients")
                return
            tries.note(failure)
            tries.wait()


def _rehearse(wanted):
    """Takes these pieces of memory, (elements, dtype), and lets go of them, until a round finds all in Paddle's cache."""
    held = -1
    for _ in range(_ROUNDS):
        [runtime.paddle.empty([size], dtype) for size, dtype in wanted].clear()
        memory = runtime.library.memory(runtime.device)
        before, held = held, memory.live_bytes if memory else 0
        if held == before:
            return


def patch():
    """Puts itself into paddle.DataParallel: where the reducer is made, and where it is told of a forward."""
    kind = runtime.paddle.DataParallel
    make, forward = kind.init_reducer, kind.forward

    @functools.wraps(make)
    def init_reducer(self):
        global _made
        make(self)
        _made += 1
        _parallels[id(self)] = _Parallel(self, _made)

    @functools.wraps(forward)
    def patched_forward(self, *inputs, **kwargs):
        known = _of(self)
        if known is None:
            return forward(self, *inputs, **kwargs)
        if thread.deferred is None:
            result = forward(self, *inputs, **kwargs)
            if self.grad_need_sync and runtime.paddle.base.framework._dygraph_tracer()._has_grad:
                known.open = known.traversed = True
            return result
        if self.grad_need_sync and known not in thread.deferred:
            thread.deferred.append(known)
        return self._layers(*inputs, **kwargs)

    kind.init_reducer, kind.forward = init_reducer, patched_forward


def _of(layer):
    known = _parallels.get(id(layer))
    return known if known is not None and known.layer() is layer else None


def _trained(layer):
    """The parameters that the reducer was made of, in its order."""
    found = {}
    for sub in layer.sublayers():
        for _, parameter in sub.named_parameters(include_sublayers=False):
            if parameter is not None and parameter.trainable and not getattr(parameter, "no_sync", False):
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _touching():
    """An operator on parameters whose backward has no gradient for them: nothing is added to what they have, and whoever
    waits for their gradients, as the reducer does, is told that they are there."""
    global _operator
    if _operator is None:
        paddle = runtime.paddle

        class Touch(paddle.autograd.PyLayer):
            """See above. What it returns is in host memory: the device may have none left."""

            @staticmethod
            def forward(ctx, *parameters):
                ctx.count = len(parameters)
                return paddle.to_tensor([0.0], place=paddle.CPUPlace())

            @staticmethod
            def backward(ctx, gradient):
                return None if ctx.count == 1 else (None,) * ctx.count

        _operator = Touch
    return _operator


class deferring:
    """While entered, the reducers are told of no forward; gives the list of those that should have been."""

    def __enter__(self):
        self._before = thread.deferred
        thread.deferred = []
        return thread.deferred

    def __exit__(self, *_):
        thread.deferred = self._before


def within(site):
    """The DataParallels of many ranks that a call of this boundary runs through."""
    if not _parallels:
        return ()
    made, found = site.parallels
    if made != _made:  # a look at each layer below is too much for each call
        found = tuple(filter(None, (_of(sub) for sub in site.layer().sublayers(include_self=True))))
        site.parallels = _made, found
    return found


def choose(parallels, armed):
    """Is a call through these to be armed? armed: whether it would be. None: it can only be Paddle's own.

    In one step a reducer must be told either by Paddle's own forwards or by us; and where there are several, their
    collectives must come in one order on all ranks, which only we can give.
    """
    if any(known.open for known in parallels):
        for known in parallels:
            known.often = True
        return None
    return armed or len(_parallels) > 1 or any(known.awaited or known.often for known in parallels)


def handed_out(call):
    """The outputs of a call that ran without the reducers' knowledge are the user's now."""
    for known in call.parallels:
        known.awaited = True


def tell(call, outputs):
    """As handed_out(), where the outputs are still on the graph that Paddle made: its own ways can be taken."""
    for known in call.parallels:
        layer = known.layer()
        layer._reducer.prepare_for_backward(list(layer._find_tensor(outputs)))
        known.open = known.traversed = True


class Marks:
    """Notes which parameters get a gradient in a backward, for reducers that have to know."""

    def __init__(self, calls):
        self.seen = set()
        self._handles = []
        wanted = {known for call in calls for known in call.parallels if known.awaited}
        for known in wanted:
            if known.traversed and not known.finds:
                continue
            for reference in known.parameters:
                parameter = reference()
                if parameter is not None and not parameter.stop_gradient:
                    self._handles.append(hooks.mark(parameter, functools.partial(self._mark, id(parameter))))

    def _mark(self, key, gradient):
        self.seen.add(key)

    def end(self):
        """No more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def settle(calls, marks, rest):
    """After the whole of a backward that reached these calls: their reducers get the gradients."""
    waiting = {known for call in calls for known in call.parallels if known.awaited}
    for call in calls:
        call.parallels = ()
    for known in sorted(waiting, key=lambda one: one.number):
        looks = known.finds or not known.traversed
        with inside():
            known.settle(marks if looks else None, rest)


def backward_ended():
    """A backward has run to its end: what the reducers were told of is done."""
    for known in _parallels.values():
        known.open = False
