"""A look at the user's part of an autograd graph, before a backward runs through it."""

_MOST_NODES = 4000


class Reach:
    """Which leaves a backward from some tensors will reach.

    known: False where the graph is too large to walk. nodes: {id: accumulation node}, kept alive so that ids stay
    valid. Paddle answers the same object for the same node as long as one is alive.
    """

    def __init__(self, roots):
        self.known = True
        self._nodes = {}
        seen, stack = {}, [root.grad_fn for root in roots if root.grad_fn is not None]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            if len(seen) > _MOST_NODES:
                self.known = False
                break
            if node.name() == "GradNodeAccumulation":
                self._nodes[id(node)] = node
                continue
            stack.extend(following for following in node.next_functions if following is not None)
        self._seen = seen

    def __contains__(self, leaf):
        """True if a backward accumulates into this leaf (always, where the graph was too large)."""
        node = leaf.grad_fn
        return not self.known or (node is not None and id(node) in self._nodes)

    def only(self, leaves):
        """True if it accumulates into these leaves and nothing else."""
        if not self.known:
            return False
        expected = set()
        for leaf in leaves:
            node = leaf.grad_fn
            if node is not None:
                expected.add(id(node))
        return all(key in expected for key in self._nodes)
