"""Backwards inside of a backward: recompute runs its block's own when the graph comes to it, and that adds to `.grad`,
whatever the outer one was asked for. The outer graph shows nothing of what such a backward reaches.

So in a trial it is watched: what it adds is counted with the rest and taken back, and no hook is told.
"""

from . import gradients, hooks
from .graph import accumulation_nodes, node_of
from .runtime import runtime, thread


class Outsider(Exception):
    """A backward reaches a weight of somebody else's."""


def run_backward(tensors, grads, retain_graph, *rest):
    """Stands in for core.eager.run_backward inside of another backward."""
    thread.nested += 1
    if thread.watch is not None:
        return thread.watch.run(tensors, grads, retain_graph, rest)
    return runtime.run_backward(tensors, grads, retain_graph, *rest)


class Watch:
    """While entered, what nested backwards of this thread add to these parameters is kept apart; afterwards it is gone.

    known: nodes that they may reach beside those of the parameters.
    """

    def __init__(self, parameters, known):
        self._parameters, self._known = parameters, list(known)
        self._detached = []  # leaves made since: recompute runs its block on such copies of its inputs
        self._saved = self._aside = None
        self._outsider = False

    def __enter__(self):
        tensor = runtime.paddle.base.core.eager.Tensor
        self._before, self._detach = thread.watch, tensor.detach
        self._old = gradients.zeroed()
        thread.watch = self

        def detach(this):
            """As Tensor.detach, noted."""
            leaf = self._detach(this)
            if thread.watch is self:
                self._detached.append(leaf)
            return leaf

        tensor.detach = detach
        return self

    def __exit__(self, kind, *_):
        thread.watch = self._before
        runtime.paddle.base.core.eager.Tensor.detach = self._detach
        self._detached, self._old = [], []
        if self._saved is not None:
            self._saved.restore()
        if self._aside is not None:
            self._aside.abandon()
        if self._outsider and kind is not None:
            raise Outsider()

    def run(self, tensors, grads, retain_graph, rest):
        """One such backward. Raises where it reaches a leaf that nobody has shown."""
        if self._saved is None:
            self._begin()
        old = {id(parameter) for parameter in self._old}
        fresh = [parameter for parameter in gradients.zeroed() if id(parameter) not in old]  # a weight as an input
        leaves = [node_of(leaf) for leaf in self._parameters + self._detached + fresh if not leaf.stop_gradient]
        known = {id(node) for node in leaves + self._known}  # the nodes are held: ids stay valid
        if any(id(node) not in known for node in accumulation_nodes(tensors)):
            self._outsider = True
            raise Outsider()
        return runtime.run_backward(tensors, grads, retain_graph, *rest)

    def _begin(self):
        self._aside = hooks.HooksAside()
        self._aside.add(self._parameters)
        self._saved = gradients.Saved(self._parameters)
        if not self._saved.is_whole():
            raise RuntimeError("a sparse gradient cannot be put back")
        for parameter in self._parameters:
            if gradients.grad_of(parameter) is not None:
                gradients.blank(parameter)

    def added(self, parameter):
        """What nested backwards have added to this one so far, None where there was none."""
        return None if self._saved is None else gradients.grad_of(parameter)
