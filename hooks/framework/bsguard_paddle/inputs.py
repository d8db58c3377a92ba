"""The inputs of one boundary call: which of them carry the batch, and how to cut them.

A unit is what can be cut: a tensor whose first dimension is the batch, or a list with one entry a sample. Which units
really are to be cut is not decided here: having the right size is a hint, the proof decides.
"""

import zlib

from . import tree
from .runtime import is_tensor, runtime

_SIGNATURE_BYTES = 240


class _PerSample:
    """A list with one entry for each sample, standing as one leaf."""

    __slots__ = ("items",)

    def __init__(self, items):
        self.items = items


class Joint:
    """An input that needs a gradient, and the leaf that stands for it in one chunk.

    cut: the leaf holds the rows of this chunk only. place: the same for what belongs together over all chunks.
    """

    __slots__ = ("cut", "leaf", "original", "place")

    def __init__(self, original, leaf, cut, place):
        self.original = original
        self.leaf = leaf
        self.cut = cut
        self.place = place


class Inputs:
    """args and kwargs of a call, flattened.

    batch: samples, by the first dimension of the largest tensor; 0 where there is none.
    signature: shapes and types without the batch, e.g. "float32[3,224,224]", as bytes.
    units: indices into the leaves of what could be cut.
    """

    def __init__(self, args, kwargs):
        self.given = (args, kwargs)  # as the user has given them
        self._tree = self.given
        self._leaves = tree.leaves(self._tree)
        self.tensors = [leaf for leaf in self._leaves if is_tensor(leaf)]
        shapes = {id(tensor): tensor.shape for tensor in self.tensors}
        self.batch = _batch(self.tensors, shapes)
        if self.batch and _has_list_of(self._tree, self.batch):
            self._tree = _close_lists(self._tree, self.batch)
            self._leaves = tree.leaves(self._tree)
        self.units = []
        parts = []
        for index, leaf in enumerate(self._leaves):
            if isinstance(leaf, _PerSample):
                self.units.append(index)
                parts.append("list")
            elif is_tensor(leaf):
                shape = shapes.get(id(leaf)) or leaf.shape
                carries = bool(shape) and shape[0] == self.batch
                if carries:
                    self.units.append(index)
                rest = shape[1:] if carries else ["=" + str(size) for size in shape]
                kind = str(leaf.dtype).rsplit(".", 1)[-1]
                parts.append("%s[%s]" % (kind, ",".join(map(str, rest))))
            elif leaf is None or isinstance(leaf, bool):
                parts.append(str(leaf))
        text = ";".join(parts).encode("utf-8", "replace")
        if len(text) > _SIGNATURE_BYTES:
            # Cut short, it must still tell apart what differs at the end.
            text = text[: _SIGNATURE_BYTES - 9] + b"#%08x" % zlib.crc32(text)
        self.signature = text
        self._rebuilt = []

    def form(self):
        """What of the inputs beside shapes and types may decide what a forward computes: comparable and hashable.

        Returns (form, numbers): structure, texts and which inputs need a gradient; and the numbers, which may count.
        """
        texts = tuple(leaf for leaf in self._leaves if isinstance(leaf, (str, bytes)))
        kinds = tuple(type(leaf).__name__ for leaf in self._leaves)
        needs = tuple(not tensor.stop_gradient for tensor in self.tensors)
        numbers = tuple(leaf for leaf in self._leaves if isinstance(leaf, (int, float)) and not isinstance(leaf, bool))
        return (tree.shape_of(self._tree), kinds, texts, needs), numbers

    def whole(self):
        """(args, kwargs, joints): the very objects that were given, but every input that needs a gradient as a leaf of
        its own.

        joints: [(input, leaf)], so that the gradient can be handed on once.
        """
        joints, known = [], {}
        if all(tensor.stop_gradient for tensor in self.tensors):
            return self.given + (joints,)
        rebuilt = []
        args, kwargs = tree.replaced(self.given, lambda leaf: self._as_leaf(leaf, joints, known), rebuilt)
        self._rebuilt = [(given, new, _content(new)) for given, new in rebuilt]
        return args, kwargs, joints

    def hand_back(self, joints):
        """What a forward wrote to a list or dict that whole() had to build anew is written to the user's own."""
        originals = {id(leaf): original for original, leaf in joints}
        originals.update((id(new), given) for given, new, _ in self._rebuilt)
        for given, new, before in self._rebuilt:
            now = _content(new)
            if len(now) == len(before) and all(a is b for a, b in zip(now, before)):
                continue
            if isinstance(new, dict):
                items = [(key, originals.get(id(value), value)) for key, value in new.items()]
                given.clear()
                given.update(items)
            else:
                given[:] = [originals.get(id(value), value) for value in new]
        self._rebuilt = []

    def leaves(self):
        """The leaves as they were given, in the order in which cut() gives them."""
        return list(self._leaves)

    def leaves_of(self, given):
        """The leaves of what cut() returned, per-sample lists closed again, in the same order."""
        out = []
        stack = [(given, self._tree)]
        while stack:
            node, pattern = stack.pop()
            if isinstance(pattern, (list, tuple)):
                stack.extend(reversed(list(zip(node, pattern))))
            elif isinstance(pattern, dict):
                stack.extend(reversed([(node[key], pattern[key]) for key in pattern]))
            else:
                out.append(node)
        return out

    def cut(self, start, stop, chosen):
        """(args, kwargs, joints) of the samples start..stop-1, the units of `chosen` cut and the rest as it was.

        joints: a Joint for every place of an input that needs a gradient.
        """
        joints, known, new = [], {}, []
        for index, leaf in enumerate(self._leaves):
            if index in chosen:
                if isinstance(leaf, _PerSample):
                    items = [self._uncut(item, joints, known) for item in leaf.items[start:stop]]
                    new.append(_PerSample(items))
                    continue
                # All rows of a tensor are, to Paddle, that tensor: what is set on the one is set on the other.
                with runtime.paddle.no_grad():
                    part = leaf[start:stop] if stop - start < self.batch else leaf.detach()
                part.stop_gradient = leaf.stop_gradient
                if not leaf.stop_gradient:
                    joints.append(Joint(leaf, part, True, index))
                new.append(part)
            elif isinstance(leaf, _PerSample):
                new.append(_PerSample([self._uncut(item, joints, known) for item in leaf.items]))
            else:
                new.append(self._uncut(leaf, joints, known))
        return self._tree_args(new) + (joints,)

    def sample(self, start, stop, chosen, rows):
        """(args, kwargs) like cut(), but of samples start..stop-1 of `rows` from both ends of the batch, and every tensor
        a copy: for a trial that may write to its inputs.

        From both ends, since a batch may be sorted (by length): its first samples are then all alike.
        """
        spread = [index if index < rows // 2 else self.batch - rows + index for index in range(rows)][start:stop]
        new = []
        with runtime.paddle.no_grad():
            for index, leaf in enumerate(self._leaves):
                if isinstance(leaf, _PerSample):
                    items = [leaf.items[place] for place in spread] if index in chosen else leaf.items
                    new.append(_PerSample([item.clone() if is_tensor(item) else item for item in items]))
                elif is_tensor(leaf):
                    part = self._picked(leaf, spread) if index in chosen else leaf.clone()
                    part.stop_gradient = leaf.stop_gradient
                    new.append(part)
                else:
                    new.append(leaf)
        return self._tree_args(new)

    @staticmethod
    def _picked(tensor, places):
        if places[-1] - places[0] == len(places) - 1:
            return tensor[places[0] : places[-1] + 1].clone()
        return runtime.paddle.concat([tensor[place : place + 1] for place in places])

    def versions(self):
        """Counts of in-place changes, to notice inputs that were changed between forward and backward."""
        return [tensor.inplace_version for tensor in self.tensors]

    def _uncut(self, leaf, joints, known):
        pairs = []
        fresh = self._as_leaf(leaf, pairs, known)
        joints.extend(Joint(original, one, False, ("whole", id(original))) for original, one in pairs)
        return fresh

    @staticmethod
    def _as_leaf(leaf, joints, known):
        if not is_tensor(leaf) or leaf.stop_gradient:
            return leaf
        if id(leaf) not in known:
            fresh = leaf.detach()
            fresh.stop_gradient = False
            known[id(leaf)] = fresh
            joints.append((leaf, fresh))
        return known[id(leaf)]

    def _tree_args(self, leaves):
        args, kwargs = tree.rebuild(self._tree, iter(leaves))
        return _open_lists(args), _open_lists(kwargs)


def _content(container):
    return [part for item in container.items() for part in item] if isinstance(container, dict) else list(container)


def _batch(tensors, shapes):
    largest, batch = 0, 0
    for tensor in tensors:
        shape = shapes[id(tensor)]
        size = 1
        for extent in shape:
            size *= extent
        if shape and size > largest:
            largest, batch = size, shape[0]
    return batch


def _is_per_sample(node, batch):
    if type(node) is not list or len(node) != batch or batch < 2:
        return False
    return not all(is_tensor(item) and item.ndim and item.shape[0] == batch for item in node)


def _has_list_of(node, batch):
    if _is_per_sample(node, batch):
        return True
    if isinstance(node, (list, tuple)):
        return any(_has_list_of(item, batch) for item in node)
    if isinstance(node, dict):
        return any(_has_list_of(item, batch) for item in node.values())
    return False


def _close_lists(node, batch):
    if _is_per_sample(node, batch):
        return _PerSample(node)
    children = (
        list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, (list, tuple)) else None
    )
    if children is None:
        return node
    closed = [_close_lists(child, batch) for child in children]
    if all(a is b for a, b in zip(closed, children)):
        return node
    if isinstance(node, dict):
        return dict(zip(node.keys(), closed))
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*closed)
    return type(node)(closed)


def _open_lists(node):
    if isinstance(node, _PerSample):
        return node.items
    if isinstance(node, tuple):
        if not any(isinstance(child, (_PerSample, list, tuple, dict)) for child in node):
            return node
        opened = [_open_lists(child) for child in node]
        return type(node)(*opened) if hasattr(node, "_fields") else type(node)(opened)
    if isinstance(node, list):
        return [_open_lists(child) for child in node] if type(node) is list else node
    if isinstance(node, dict):
        return {key: _open_lists(child) for key, child in node.items()} if type(node) is dict else node
    return node
