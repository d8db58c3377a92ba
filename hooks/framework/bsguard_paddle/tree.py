"""Nested containers of tensors: walking them, and building them again with other leaves.

Knows list, tuple, named tuple, dict and their subclasses; anything else is a leaf. Pure functions, no Paddle.
"""


def leaves(tree, into=None):
    """All leaves of `tree` in order, containers opened."""
    out = [] if into is None else into
    if isinstance(tree, (list, tuple)):
        for item in tree:
            leaves(item, out)
    elif isinstance(tree, dict):
        for item in tree.values():
            leaves(item, out)
    else:
        out.append(tree)
    return out


def rebuild(tree, new_leaves, depth=-1):
    """A tree of the same shape and container types whose leaves come from the iterator `new_leaves`.

    depth: how many levels of containers are opened, what lies below counts as a leaf; -1: all. Raises TypeError where a
    container subclass cannot be built from its items.
    """
    if depth == 0:
        return next(new_leaves)
    if isinstance(tree, tuple):
        items = [rebuild(item, new_leaves, depth - 1) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return tuple(items) if type(tree) is tuple else type(tree)(items)
    if isinstance(tree, list):
        items = [rebuild(item, new_leaves, depth - 1) for item in tree]
        return items if type(tree) is list else type(tree)(items)
    if isinstance(tree, dict):
        pairs = [(key, rebuild(item, new_leaves, depth - 1)) for key, item in tree.items()]
        if type(tree) is dict:
            return dict(pairs)
        try:
            return type(tree)(**dict(pairs))  # dataclass-like outputs
        except TypeError:
            return type(tree)(pairs)
    return next(new_leaves)


def replaced(tree, swap, rebuilt=None):
    """`tree` with swap(leaf) for each leaf; a container in which nothing changed stays the very same object.

    rebuilt: a list that gets (container, new container) for each list and dict that was built anew.
    """
    if isinstance(tree, dict):
        children = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        children = list(tree)
    else:
        return swap(tree)
    items = [replaced(child, swap, rebuilt) for child in children]
    if all(a is b for a, b in zip(items, children)):
        return tree
    new = rebuild(tree, iter(items), depth=1)
    if rebuilt is not None and isinstance(tree, (list, dict)):
        rebuilt.append((tree, new))
    return new


def shape_of(tree):
    """The structure alone, comparable: container types and keys with a mark for each leaf."""
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, tuple(shape_of(item) for item in tree))
    if isinstance(tree, dict):
        return (type(tree).__name__, tuple((str(key), shape_of(item)) for key, item in tree.items()))
    return "leaf"
