"""A private set of gradients: what the backward of a call in chunks will give if its loss is the one that was foreseen.

In the forward each chunk goes at once through the loss that foresee.py expects and back, into gradients that nobody sees. When
the true gradient of the outputs arrives at the boundary's own backward, it is compared, element by element, with the one
that was used. Equal: what was computed is what a second forward and backward would compute, and is added to `.grad` there and
then, as one gradient for each parameter. Anything else: it is dropped, and the forward runs again. The last chunk may be
left out, where its graph is kept for a backward like any other.

Must never: touch `.grad` before that; let an error of its own reach the forward that it goes along with.
"""

import math

from . import foresee, hooks, keep, ranks
from .call import one_backward
from .graph import holds_kind
from .oom import is_oom
from .runtime import inside, is_tensor, runtime
from .state import without_autocast

_REST = 1  # steps without, after a miss; twice as many after each further one
_MOST_REST = 1 << 10
_SMALL = 1 << 16  # elements


class Foresight:
    """What a boundary knows of one signature: the plan, and how it fared."""

    __slots__ = ("misses", "off", "plan", "rest")

    def __init__(self):
        self.plan = None
        self.misses = 0
        self.rest = 0  # steps in which nothing is tried
        self.off = False  # for good

    def missed(self):
        """The plan was wrong."""
        self.plan = None
        self.rest = min(_REST << min(self.misses, 16), _MOST_REST)
        self.misses += 1


def of(call):
    """The Foresight of a call's signature."""
    known = call.site.foresights.get(call.inputs.signature)
    if known is None:
        known = call.site.foresights[call.inputs.signature] = Foresight()
    return known


def _may_be(call):
    """True where a private set would be right to use, and fits."""
    if runtime.keep == "never" or call.proof.static or not call.mode.records() or ranks.within(call.site):
        return False
    if any(not tensor.stop_gradient for tensor in call.inputs.tensors):
        return False
    if any(hooks.has_hooks(p) or hooks.has_engine_hook(p) for p in call.parameters):
        return False
    return keep.second_set_fits(call, of(call).plan)


def begin(call):
    """A Private for the forward that begins now, or None. Sets what is to be watched in this step."""
    call.users, call.terms = None, []
    known = of(call)
    if known.off:
        return None
    if known.rest:
        known.rest -= 1
        return None
    if not _may_be(call):
        return None
    call.users = {}
    plan = known.plan
    if plan is None or not all(term.ready() for term in plan.terms):
        return None
    return Private(call, plan)


def forbid(call):
    """It cannot be done for this signature."""
    call.private = None
    known = of(call)
    known.off, known.plan = True, None


def learn(call, seeds):
    """At a backward that runs the forward again: what can be foreseen of the next step, if it was watched."""
    known = of(call)
    if call.users is None or known.plan is not None or known.off:
        return
    try:
        with one_backward, inside():
            known.plan = without_autocast(foresee.learn, call, seeds)
    except Exception:  # no memory for it, or a loss that cannot be run on part of the batch
        known.plan = None
    if known.plan is None:
        known.missed()


class Private:
    """See above. used: {number of an output: [gradient of each chunk]}; chunks, samples: of how many, the first ones."""

    def __init__(self, call, plan):
        self._plan = plan
        self._parameters = list(call.parameters)
        self._sums = [None] * len(self._parameters)
        self._own = set()  # numbers of the sums that are tensors of our own
        self._known = of(call)
        self._looked = False
        self.used = {index: [] for term in plan.terms for index in term.outputs}
        self.bytes = plan.bytes
        self.chunks = self.samples = 0
        self._outputs = call.proof.outputs

    def chunk(self, call, flat, start, stop):
        """Runs one chunk's loss and backward. False: it cannot be done, for good; the outputs are as they were."""
        try:
            with one_backward, inside():
                # The user's autocast is on in a forward, and gradients must be summed as they are.
                return without_autocast(self._chunk, call, flat, start, stop)
        except Exception as error:
            if is_oom(error):
                raise
            return False

    def _chunk(self, call, flat, start, stop):
        outputs, batch = call.proof.outputs, call.inputs.batch
        roots, parts = [], []
        for term in self._plan.terms:
            share = term.share(start, stop, batch)
            for index, gradient in term.gradient(dict(enumerate(flat)), start, stop, batch, share)[0].items():
                if gradient is None:
                    return False
                self.used[index].append(gradient)
                if not flat[index].stop_gradient:
                    roots.append(flat[index])
                    parts.append(gradient)
        for index, seed in self._plan.direct.items():
            if is_tensor(flat[index]) and not flat[index].stop_gradient:
                roots.append(flat[index])
                parts.append(_scaled(seed, outputs[index].weight(start, stop, batch)))
        if not roots or not self._parameters:
            return False
        if not self._looked:
            self._looked = True
            if holds_kind(roots, "PyLayer"):  # a backward of the user's own may count or remember
                return False
        found = runtime.paddle.grad(roots, self._parameters, parts, retain_graph=False, allow_unused=True)
        with runtime.paddle.no_grad():
            for number in range(len(found)):
                gradient, found[number] = found[number], None  # its memory is free for the next sum
                if gradient is None or not gradient._is_initialized():
                    continue
                if gradient.is_selected_rows():
                    return False
                self._add(number, gradient)
        self.chunks, self.samples = self.chunks + 1, stop
        return True

    def _add(self, number, gradient):
        known = self._sums[number]
        if known is None:  # may share its memory with another
            self._sums[number] = gradient
        elif number not in self._own:
            self._sums[number] = known + gradient
            self._own.add(number)
        else:
            runtime.paddle._C_ops.add_(known, gradient)

    def matches(self, seeds):
        """True if the gradient that arrived is the one that was used. Notes it."""
        with inside():
            good = without_autocast(self._matches, seeds)
        if good:
            self._known.misses = 0
        else:
            self._known.missed()
        return good

    def _matches(self, seeds):
        paddle = runtime.paddle
        good = True
        for index, seed in enumerate(seeds):
            foreseen = index in self.used or index in self._plan.direct
            if (seed is not None) != foreseen:
                good = False
        if good:
            with paddle.no_grad():
                each = []
                for index, parts in self.used.items():
                    low = 0
                    for part in _few(parts):
                        high = low + part.shape[0]
                        true = seeds[index]
                        if high - low < true.shape[0]:
                            true = paddle.slice(true, [0], [low], [high])
                        each.append(foresee.same(foresee.wide(part), foresee.wide(true), true.dtype).reshape([1]))
                        low = high
                    good = good and low == self._outputs[index].rows(0, self.samples)[1]
                for index, seed in self._plan.direct.items():
                    each.append(foresee.same(foresee.wide(seed), foresee.wide(seeds[index]), seed.dtype).reshape([1]))
                good = good and bool(paddle.concat(each).all().item())
        return good

    def merge(self, rest):
        """Adds the gradients to `.grad`, one for each parameter that has any. rest: further arguments of run_backward."""
        pairs = [(p, total) for p, total in zip(self._parameters, self._sums) if total is not None]
        if pairs:
            with inside():
                runtime.run_backward([p for p, _ in pairs], [total for _, total in pairs], False, *rest)


def _few(parts):
    """These tensors, or the one that they make end to end where that is small: fewer operators, whose start is all they cost."""
    size = sum(math.prod(part.shape) for part in parts)
    return [runtime.paddle.concat(parts)] if len(parts) > 1 and size <= _SMALL else parts


def _scaled(seed, weight):
    with runtime.paddle.no_grad():
        return seed * weight if weight != 1.0 else seed.clone()
