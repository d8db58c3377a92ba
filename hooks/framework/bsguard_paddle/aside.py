"""What a forward sets anew on its layers each time it runs: its own arguments, kept at hand (`self.inputs = inputs`), or
values that it has worked out and that take no gradient (the targets that a detector's head has assigned).

Not state, so it does not stand against a split: the next forward does not read what the last one left. That is shown by
running the same forward twice: what holds the same values after both was set, what moved (a counter, an average, a queue)
was carried on. After chunks, arguments are set to those of the whole batch; other values are those of the last chunk, and
the rescue says so. A value that takes a gradient is none of this: a loss may be made of it.
"""

import weakref

from . import tree
from .runtime import is_tensor

_SIMPLE = (int, float, complex, bool, str, bytes, type(None))


class Aside:
    """One such attribute. path: keys that lead from (args, kwargs) to the argument that it holds; None: a value."""

    __slots__ = ("_layer", "label", "name", "path", "value")

    def __init__(self, label, layer, name, value):
        self._layer = weakref.ref(layer)
        self.label, self.name, self.value = label, name, value
        self.path = None

    def layer(self):
        """The layer that it is set on, None where that is gone."""
        return self._layer()

    def is_same(self, arguments):
        """True if a second forward, of `arguments`, has left the same there; notes which of them it holds."""
        held = vars(self._layer()).get(self.name)
        self.path = _path_to(held, arguments)
        return held is not None and _equal(self.value, held)


def may_be(value, before):
    """True for a value that a forward may have set there, without having carried on the one `before` it."""
    if value is before or isinstance(value, _SIMPLE):
        return False
    leaves = tree.leaves(value)
    return any(is_tensor(leaf) or _is_array(leaf) for leaf in leaves) and all(
        isinstance(leaf, _SIMPLE) or _is_array(leaf) or (is_tensor(leaf) and leaf.stop_gradient) for leaf in leaves
    )


def hand_back(asides, given):
    """After a forward in chunks: arguments that were kept become those that the user gave. given: (args, kwargs)."""
    for aside in asides:
        layer = aside.layer()
        if layer is not None and aside.path is not None:
            vars(layer)[aside.name] = _follow(given, aside.path)


class Present:
    """What is set there now, to be put back after a recompute."""

    def __init__(self, asides):
        self._entries = [(aside, vars(aside.layer()).get(aside.name)) for aside in asides if aside.layer() is not None]

    def restore(self):
        """Puts it back."""
        for aside, value in self._entries:
            layer = aside.layer()
            if layer is not None:
                vars(layer)[aside.name] = value


def _path_to(value, node, path=()):
    if value is node:
        return path
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    else:
        return None
    for key, child in children:
        found = _path_to(value, child, path + (key,))
        if found is not None:
            return found
    return None


def _follow(node, path):
    for key in path:
        node = node[key]
    return node


def _is_array(value):
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _equal(one, other):
    if tree.shape_of(one) != tree.shape_of(other):
        return False
    return all(_same(a, b) for a, b in zip(tree.leaves(one), tree.leaves(other)))


def _same(a, b):
    if type(a) is not type(b):
        return False
    if is_tensor(a):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        a, b = (one.astype("float32").numpy() if "float16" in str(one.dtype) else one.numpy() for one in (a, b))
    if _is_array(a):
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    return a == b
