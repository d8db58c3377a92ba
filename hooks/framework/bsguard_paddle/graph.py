"""A look at the user's part of an autograd graph, before a backward runs through it.

Paddle hands out `tensor.grad_fn` with one reference more than it should. A node that is looked at then never dies, nor
does what it holds: saved tensors, and by the hook of a cut the call and its leaves on the device. So each look gives
that reference back.
"""

import ctypes
import sys

_MOST_NODES = 4000
_LEAF = "GradNodeAccumulation"

_give_back = ctypes.pythonapi.Py_DecRef
_give_back.argtypes, _give_back.restype = [ctypes.py_object], None

_surplus = None  # references too many in a look at `grad_fn` of this Paddle; None: not measured yet


def node_of(tensor):
    """The node that a backward from `tensor` begins at, None where there is none; held by the caller alone."""
    global _surplus
    node = tensor.grad_fn
    if node is None:
        return None
    if _surplus is None:
        _surplus = _measure(tensor, node)
    if _surplus:
        _give_back(node)
    return node


def _measure(tensor, node):
    """How many references, 0 or 1, each look leaves behind. The looks that this takes are given back too."""
    counts, looks = [sys.getrefcount(node)], []
    for _ in range(3):
        looks.append(tensor.grad_fn)
        counts.append(sys.getrefcount(node))
    # `looks` accounts for one in each; anything but the same small answer three times is somebody else's doing.
    found = {after - before - 1 for before, after in zip(counts, counts[1:])}
    surplus = 1 if found == {1} and all(look is node for look in looks) else 0
    for look in looks if surplus else ():
        _give_back(look)
    return surplus


def walk(roots):
    """Each node that a backward from `roots` runs through, once. All are kept alive meanwhile."""
    seen = {}
    stack = [node for node in map(node_of, roots) if node is not None]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            yield node
            if node.name() != _LEAF:
                stack.extend(following for following in node.next_functions if following is not None)


def accumulation_nodes(roots):
    """The nodes at which a backward from `roots` would accumulate into a leaf. Walks the whole graph."""
    return [node for node in walk(roots) if node.name() == _LEAF]


def holds_kind(roots, kind):
    """True if the name of any node that a backward from `roots` runs through has `kind` in it. Walks the whole graph."""
    return any(kind in node.name() for node in walk(roots))


class Reach:
    """Which leaves a backward from some tensors will reach.

    known: False where the graph is too large to walk. nodes: {id: accumulation node}, kept alive so that ids stay
    valid. Paddle answers the same object for the same node as long as one is alive.
    """

    def __init__(self, roots):
        self.known = True
        self.nodes = {}
        seen, stack = {}, [node for node in map(node_of, roots) if node is not None]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            if len(seen) > _MOST_NODES:
                self.known = False
                break
            if node.name() == _LEAF:
                self.nodes[id(node)] = node
                continue
            stack.extend(following for following in node.next_functions if following is not None)
        self._seen = seen

    def __contains__(self, leaf):
        """True if a backward accumulates into this leaf (always, where the graph was too large)."""
        node = node_of(leaf)
        return not self.known or (node is not None and id(node) in self.nodes)

    def only(self, leaves):
        """True if it accumulates into these leaves and nothing else."""
        if not self.known:
            return False
        expected = set()
        for leaf in leaves:
            node = node_of(leaf)
            if node is not None:
                expected.add(id(node))
        return all(key in expected for key in self.nodes)
