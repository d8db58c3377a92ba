"""One call of a boundary in a training step, from its forward until its backward has run.

It keeps what a second forward needs, and the cut itself: the inner graph's outputs on one side, detached leaves on the
other, on which the user's part of the graph is built. It lives exactly as long as the user's graph does: a hook on the
user's tensors holds it, the registry only refers to it.
"""

import os
import threading
import weakref

from . import gradients, native, tree
from .generators import RandomState
from .graph import node_of
from .runtime import allocated, is_tensor, runtime, thread
from .state import BatchNormStatistics, without_autocast

_registry = []  # weak references, oldest first
_done = weakref.WeakValueDictionary()  # id of a leaf's node -> call whose backward has run, its user's graph alive
one_backward = threading.RLock()  # held while a backward runs through calls
if hasattr(one_backward, "_at_fork_reinit"):  # a child whose parent was in a backward would wait for ever
    os.register_at_fork(after_in_child=one_backward._at_fork_reinit)


def pending():
    """The calls whose user's graph is still alive, oldest first."""
    if not _registry:
        return []
    calls = [reference() for reference in _registry]
    if None in calls:
        _registry[:] = [reference for reference in _registry if reference() is not None]
    return [call for call in calls if call is not None]


def any_done():
    """True if the user still holds a graph whose backward has run."""
    return bool(_done)


def is_done(reach):
    """True if a backward that reaches so far would run through a call a second time."""
    return any(key in _done for key in reach.nodes)


def stepped_on(parameters):
    """An optimizer has updated these parameters: what is pending for them cannot be computed a second time."""
    calls = [call for call in pending() if not call.consumed]
    if calls:
        ids = {id(parameter) for parameter in parameters}
        for call in calls:
            call.overtaken = call.overtaken or any(id(parameter) in ids for parameter in call.parameters)


class Call:
    """See above. pieces: how many chunks it runs in; 1: as a whole."""

    def __init__(self, site, inputs, mode, device):
        self.site = site
        self.layer = site.layer()
        self.inputs = inputs
        self.mode = mode
        self.device = device
        self.pieces = 1
        self.again = None  # what is being tried once more as it was, in words
        self.at_the_floor = False  # what can be made no smaller was refused once: there is one more try
        self.late = False  # made after a forward that had failed: what that one changed is not known
        self.micro_batch = inputs.batch
        self.proof = None
        self.sequence = 0  # of the decision that it runs by
        flags = [(p, p.stop_gradient) for p in self.layer.parameters()]
        self.parameters = [p for p, stopped in flags if not stopped]
        self._flags = flags
        self._training = [(sub, sub.training) for sub in self.layer.sublayers(include_self=True)]
        self.random_before = RandomState()
        self.norms_before = BatchNormStatistics(site.batch_norms())
        self.inner = None  # output tensors of the inner graph, in the order of `leaves`; None: no graph is held
        self.leaves = []  # detached leaves, or None where the user got the tensor itself
        self.allocated = 0  # bytes on the device as its outputs were handed out
        self.nodes = []  # of the leaves, once these are gone: they keep the keys in _done valid
        self.joints = []  # (input, leaf) where an input needs a gradient and the call ran as a whole
        # It takes a tensor that another part of the graph made, and hands its gradient on.
        self.hands_on = any(not t.stop_gradient and not t.is_leaf for t in inputs.tensors)
        self.consumed = False
        self.chunk_bounds = None  # of the forward that the user's loss saw, where it ran in chunks
        self.chunk_random = []
        self.overtaken = False  # an optimizer has stepped on its parameters since the forward
        self.versions = None
        self.parallels = ()  # DataParallels that it ran through, to be told of its gradients after the backward
        self.kept = {}  # number of a chunk -> keep.Graph, from the forward that the user's loss saw
        self.private = None  # speculate.Private: gradients that will do if the loss is the one that was foreseen
        self.users = None  # {number of an output: weak reference to what the user got}, where its loss is watched
        self.terms = []  # foresee.Term of each loss that took them; None: something did that is none
        self.measure = None  # keep.Measure of a call in chunks
        self.spoiled = None  # why a failed attempt could not be undone; None: it was, or there was none

    def bounds(self):
        """(start, stop) of each chunk; they differ by one sample at most."""
        size, more = divmod(self.inputs.batch, self.pieces)
        start, out = 0, []
        for index in range(self.pieces):
            stop = start + size + (1 if index < more else 0)
            out.append((start, stop))
            start = stop
        return out

    def rewind(self):
        """Undoes what a failed forward changed."""
        self.random_before.restore()
        self.norms_before.restore()

    def note_versions(self):
        """Remembers the inputs and weights as this forward saw them."""
        self.versions = (self.inputs.versions(), [p.inplace_version for p in self.parameters])

    def say(self, exactness, reasons, phase):
        """Says how exact it is that this call runs in chunks; the same is said once for a boundary."""
        said = (self.sequence, self.micro_batch, exactness, tuple(reasons))
        if said not in self.site.said:
            self.site.said.add(said)
            batch, because = self.inputs.batch, ",".join(reasons)
            runtime.library.applied(
                self.sequence, self.device, self.site.name, phase, batch, self.micro_batch, exactness, because
            )

    def say_approximate(self, why):
        """Something showed that the trial could not have shown: from now on this boundary is called approximate."""
        if why not in self.proof.reasons:
            self.proof.reasons.append(why)
        self.say(native.APPROXIMATE, self.proof.reasons, native.BACKWARD)

    def changed_since(self):
        """Why a second forward would not be the first one again; None if it would."""
        if self.spoiled is not None:
            return self.spoiled
        if self.overtaken:
            return "the optimizer has stepped between its forward and its backward"
        if self.versions is not None:
            now = (self.inputs.versions(), [p.inplace_version for p in self.parameters])
            if now[0] != self.versions[0]:
                return "an input was changed in place between its forward and its backward"
            if now[1] != self.versions[1]:
                return "a parameter was changed in place between its forward and its backward"
        return None

    def as_recorded(self, function):
        """function() with every parameter frozen or not, and every layer in training or not, as at the forward."""
        moved = [(p, stopped) for p, stopped in self._flags if p.stop_gradient != stopped]
        turned = [(sub, training) for sub, training in self._training if sub.training != training]
        for parameter, stopped in moved:
            parameter.stop_gradient = stopped
        for sub, training in turned:
            sub.training = training
        try:
            return function()
        finally:
            for parameter, stopped in moved:
                parameter.stop_gradient = not stopped
            for sub, training in turned:
                sub.training = not training

    def consume(self, known=True):
        """Its backward has run for good: only the mark stays, for a second backward to be refused.

        A user who keeps the loss keeps this call, so the memory of the leaves goes now. known: where the graph was too
        large to walk, a second backward shows only by what arrives at the leaves, and they stay.
        """
        self.consumed = True
        if known:
            self.nodes = [node_of(leaf) for leaf in self.leaves if leaf is not None]
            self.leaves = []
            _done.update((id(node), self) for node in self.nodes)
            _registry[:] = [reference for reference in _registry if reference() is not self]
        self.hands_on = False
        self.drop_graph()
        self.inputs = self.layer = self.proof = self.measure = self.users = None
        self.parameters, self._flags, self._training, self.chunk_random = [], [], [], []

    def drop_graph(self):
        """Lets go of the inner graph: the backward will run in chunks."""
        self.inner = None
        self.joints = []
        self.drop_kept()

    def drop_kept(self):
        """Lets go of what is held beyond need: the backward will run the forward of all chunks again."""
        self.kept, self.private = {}, None

    def holds_more(self):
        """True if it holds something that it could do without."""
        return bool(self.kept) or self.private is not None

    def hand_out(self, outputs, own):
        """Cuts the graph: returns `outputs` for the user, on leaves of their own, and registers this call.

        own: {id of a tensor in `outputs`: tensor to hand out} for inputs and parameters that came back as they were.
        """
        given, inner, anchored = {}, [], False
        self.leaves = []

        def hand(tensor):
            nonlocal anchored
            if not is_tensor(tensor):
                return tensor
            if id(tensor) in own:
                self._no_leaf(inner, tensor)
                return own[id(tensor)]
            if tensor.stop_gradient:
                self._no_leaf(inner, tensor)
                return tensor
            if id(tensor) in given:
                self._no_leaf(inner, tensor)
                return given[id(tensor)]
            leaf = tensor.detach()
            leaf.stop_gradient = False
            self.leaves.append(leaf)
            inner.append(tensor)
            # A clone: no leaf to the user, and free to be changed in place.
            user = without_autocast(leaf.clone)
            thread.ours = True
            user.register_hook(_Anchor(self))
            thread.ours = False
            noted = getattr(
                tensor, "__dict__", None
            )  # what the model noted on its output; Paddle 2.6 has no such place
            if noted:
                vars(user).update(noted)
            anchored = True
            if self.users is not None:
                self.users[len(self.leaves) - 1] = weakref.ref(user)
            given[id(tensor)] = user
            return user

        flat = [hand(leaf) for leaf in tree.leaves(outputs)]
        result = tree.rebuild(outputs, iter(flat))
        if anchored:
            self.allocated = allocated(self.device)[0]
            self.note_versions()
            if self.pieces == 1:
                self.inner = inner
            _registry.append(weakref.ref(self))
        return result

    def _no_leaf(self, inner, tensor):
        self.leaves.append(None)
        inner.append(tensor)

    def seeds(self):
        """The gradients of the leaves that the user's backward left, None where there is none."""
        return [None if leaf is None else gradients.grad_of(leaf) for leaf in self.leaves]

    def clear_seeds(self):
        """Drops the leaves' gradients. Only after their use: one that was released and then used counts as ones."""
        for leaf in self.leaves:
            if leaf is not None and gradients.grad_of(leaf) is not None:
                gradients.release(leaf)


class _Anchor:
    """A gradient hook that changes nothing: the user's graph holds it, and it holds the call."""

    __slots__ = ("_call",)

    def __init__(self, call):
        self._call = call

    def __call__(self, gradient):
        return None
