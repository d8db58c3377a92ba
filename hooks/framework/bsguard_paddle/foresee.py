"""Which loss will take the outputs of a call, and with what: seen at one step, foreseen at the next.

A Term is one call of a loss of Paddle's own, a function or a layer, with places in its arguments: an output of the network,
an element of the loader's batch, the very tensor that was there the last time, or a constant. What the user's loop does with
its result (a loss scaler, a division, a sum with others) must come to one factor, which is learnt from the gradient that
arrived. Nothing here is believed: what is foreseen is only ever used once it has been compared with what came.

Not foreseen: what is no loss of Paddle's own (it may count or remember), one with parameters or buffers, what draws
random numbers, and what was made of the batch in the loop.
"""

import weakref

from . import gradients, tree
from .call import pending
from .outputs import CONCATENATED
from .runtime import inside, is_tensor, original_call, runtime, thread
from .state import Mode, without_autocast

_SIMPLE = (int, float, bool, str, bytes, type(None))
_RANDOM = (
    "gumbel",
    "dropout",
    "nce",
    "sampled",
    "margin_cross_entropy",
    "class_center",
    "adaptive",
    "hsigmoid",
    "npair",
)
_EPSILONS = 16  # of the wider types
_EPSILONS_HALF = 2  # of 16 bits, where 16 would be more than a hundredth

_batch = []  # weak references to the leaves of what a loader gave last


def patch():
    """Notes what a DataLoader hands out."""
    iterators = getattr(getattr(runtime.paddle.io, "dataloader", None), "dataloader_iter", None)
    for name in ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess"):
        kind = getattr(iterators, name, None)
        if kind is not None and "__next__" in vars(kind):
            kind.__next__ = _noting(vars(kind)["__next__"])


def _noting(original):
    def __next__(self):
        batch = original(self)
        try:
            _batch[:] = [weakref.ref(leaf) for leaf in tree.leaves(batch) if is_tensor(leaf)]
        except TypeError:  # leaves that nothing can refer to
            _batch.clear()
        return batch

    __next__.__doc__ = original.__doc__
    return __next__


class _Output:
    """In place of an argument: an output of the network, by its number."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class _Element:
    """In place of an argument: a tensor that the loader gives, by its number, or one that stays the same."""

    __slots__ = ("_number", "_reference")

    def __init__(self, tensor):
        numbers = [number for number, reference in enumerate(_batch) if reference() is tensor]
        self._number = numbers[0] if numbers else None
        self._reference = None if numbers else weakref.ref(tensor)

    def now(self):
        """The tensor of the present step; None where there is none."""
        if self._number is None:
            return self._reference()
        return _batch[self._number]() if self._number < len(_batch) else None


class Term:
    """See above. outputs: numbers of the outputs that it takes. factor: of its gradient; None: not learnt yet. shared: the
    result is a mean over the samples, so that a chunk has its share of it."""

    def __init__(self, function, arguments, places):
        self._function = function
        self._arguments = tree.rebuild(arguments, iter(places))
        self._places = places
        self._mode = Mode.now()
        self.outputs = sorted({place.index for place in places if type(place) is _Output})
        self.factor = None
        self.shared = True

    def ready(self):
        """True if all that it takes beside outputs is there."""
        return all(type(place) is not _Element or place.now() is not None for place in self._places)

    def share(self, start, stop, batch):
        """What the gradient of the term's result is for one chunk."""
        return self.factor * ((stop - start) / batch if self.shared else 1.0)

    def gradient(self, leaves, start, stop, batch, share):
        """{number of an output: gradient of share times this term in one chunk}, and whether its result is one number.

        leaves: {number: the chunk's output}. Touches nothing but tensors of its own.
        """
        paddle = runtime.paddle
        roots = {}
        for index in self.outputs:
            roots[index] = leaves[index].detach()
            roots[index].stop_gradient = False

        def fill(place):
            if type(place) is _Output:
                return roots[place.index]
            if type(place) is _Element:
                tensor = place.now()
                if tensor.ndim and tensor.shape[0] == batch:
                    return without_autocast(paddle.slice, tensor, [0], [start], [stop], grad=False)
                return tensor.detach()  # nothing but the roots gets a gradient
            return place

        with inside():
            args, kwargs = tree.rebuild(self._arguments, iter([fill(place) for place in self._places]))
            result = self._mode.run(lambda: self._function(*args, **kwargs), grad=True)
            if not is_tensor(result) or result.stop_gradient:
                raise ValueError("it gives no tensor with a gradient")
            seed = without_autocast(paddle.full, result.shape, share, result.dtype, grad=False)
            paddle.autograd.backward([result], [seed])  # half as long as paddle.grad
        return {index: gradients.grad_of(root) for index, root in roots.items()}, result.size == 1


def takes(function, args, kwargs):
    """A loss of Paddle's own has taken these: noted for the calls in chunks whose outputs are among them."""
    calls = [call for call in pending() if call.users]
    if not calls or not runtime.paddle.base.framework._dygraph_tracer()._has_grad:
        return  # a metric
    try:
        _take(calls, function, (args, kwargs))
    except Exception:  # what cannot be looked at is not foreseen
        for call in calls:
            call.terms = None


def _take(calls, function, arguments):
    leaves = tree.leaves(arguments)
    for call in calls:
        mine = {id(reference()): index for index, reference in call.users.items() if reference() is not None}
        if not any(id(leaf) in mine for leaf in leaves) or call.terms is None:
            continue
        if any(not is_tensor(leaf) and not isinstance(leaf, _SIMPLE) for leaf in leaves):
            call.terms = None
            continue
        places = [
            leaf if not is_tensor(leaf) else _Output(mine[id(leaf)]) if id(leaf) in mine else _Element(leaf)
            for leaf in leaves
        ]
        if any(is_tensor(leaf) and id(leaf) not in mine and not leaf.stop_gradient for leaf in leaves):
            call.terms = None  # made of something else that is trained
            continue
        call.terms.append(Term(function, arguments, places))


def layer_term(layer):
    """A loss layer of Paddle's own as a function; None for one that must not be run on its own account."""
    if next(iter(layer.parameters()), None) is not None or next(iter(layer.buffers()), None) is not None:
        return None
    if layer._forward_pre_hooks or layer._forward_post_hooks or not may_be(type(layer).__name__.lower()):
        return None
    return lambda *args, **kwargs: original_call(layer, args, kwargs)


def may_be(name):
    """False for a loss that draws random numbers, or has weights among its arguments."""
    return not any(part in name for part in _RANDOM)


class Plan:
    """What is foreseen of one signature of a boundary. terms: [Term]; direct: {number of a reduced output: its gradient}."""

    def __init__(self, terms, direct, leaves):
        self.terms = terms
        self.direct = direct
        self.bytes = 2 * sum(leaf.size * leaf.element_size() for leaf in leaves if leaf is not None)


def learn(call, seeds):
    """A Plan from what this step has shown, or None. seeds: the true gradients of the call's leaves.

    Each term is run once more for each chunk, on the outputs alone, and its gradient is compared with what came: a plan that
    would have been wrong in this step is none.
    """
    outputs, bounds, batch = call.proof.outputs, call.bounds(), call.inputs.batch
    terms = [term for term in call.terms or () if any(seeds[index] is not None for index in term.outputs)]
    taken = [index for term in terms for index in term.outputs]
    direct = {}
    for index, seed in enumerate(seeds):
        if seed is None:
            continue
        if outputs[index].kind is CONCATENATED:
            if taken.count(index) != 1:
                return None
        elif index in taken or seed.size != 1 or outputs[index].kind == "constant":
            return None
        else:
            direct[index] = seed.clone()
    if call.terms is None or any(seeds[index] is None or outputs[index].axis != 0 for index in taken):
        return None
    for term in terms:
        if not term.ready() or not _learn_factor(call, term, seeds, bounds, batch):
            return None
    return Plan(terms, direct, call.leaves)


def _learn_factor(call, term, seeds, bounds, batch):
    """Sets the factor of a term; False where no one factor makes its gradient that which came."""
    paddle = runtime.paddle
    pairs, ratios, single = [], [], True
    for start, stop in bounds:
        rows = {}
        true = {}
        for index in term.outputs:
            low, high = call.proof.outputs[index].rows(start, stop)
            rows[index] = without_autocast(paddle.slice, call.leaves[index].detach(), [0], [low], [high], grad=False)
            true[index] = without_autocast(paddle.slice, seeds[index], [0], [low], [high], grad=False)
        found, single = term.gradient(rows, start, stop, batch, 1.0)
        if any(gradient is None for gradient in found.values()):
            return False
        pairs.append((found, true))
        with paddle.no_grad():
            products = (
                [(wide(found[index]) * wide(true[index])).sum() for index in term.outputs],
                [(wide(found[index]) ** 2).sum() for index in term.outputs],
            )
        above, below = (sum(part[1:], part[0]).astype("float64").item() for part in products)
        if not below or above != above:
            return False
        ratios.append(above / below)
    sizes = [stop - start for start, stop in bounds]
    for shared in (True, False) if single else (False, True):
        scaled = [ratio * batch / size if shared else ratio for ratio, size in zip(ratios, sizes)]
        middle = sum(scaled) / len(scaled)
        if not middle or max(abs(one - middle) for one in scaled) > 1e-2 * abs(middle):
            continue
        term.shared = shared
        for factor in _round_numbers(middle):
            term.factor = factor
            good = []
            for (start, stop), (found, true) in zip(bounds, pairs):
                share = term.share(start, stop, batch)
                with paddle.no_grad():
                    good += [same(wide(found[i]) * share, wide(true[i]), true[i].dtype) for i in term.outputs]
            if all(bool(one.item()) for one in good):
                return True
    return False


def _round_numbers(value):
    """What a factor may be meant to be, the likeliest first: loss scalers and divisions are whole numbers."""
    found = []
    if round(value) and abs(value - round(value)) < 1e-3 * abs(value):
        found.append(float(round(value)))
    if abs(value) < 1 and abs(1 / value - round(1 / value)) < 1e-3 * abs(1 / value):
        found.append(1.0 / round(1 / value))
    return found + [value]


def wide(tensor):
    """A tensor of 16 bits in 32."""
    return tensor.astype("float32") if "float16" in str(tensor.dtype) else tensor


def same(mine, true, dtype):
    """A tensor of one boolean: are these equal, element by element, to rounding in `dtype`? Never where one is no number."""
    kind = str(dtype).rsplit(".", 1)[-1]
    info = runtime.paddle.finfo(dtype)
    bound = (_EPSILONS_HALF if "float16" in kind else _EPSILONS) * float(info.eps)
    tiny = float(info.tiny)
    return ((mine - true).abs() <= true.abs() * bound + bound * tiny).all()


def watches(name):
    """True where a call of a loss function is to be noted: the user's own, or from a layer of the loss region."""
    return (not thread.inside or thread.loss > 0) and not thread.noting and may_be(name)
