"""Backwards that run out of memory once, at each of their allocations in turn: half_way.py [REFUSALS].

It knows nothing of bsguard. The last line is JSON: {case: [what it gave without a refusal, with the first allocation refused,
with the second, ...]}, lists of numbers, or the name of the exception. A case gives what is to be alike: gradients, and how
often hooks were told.
"""

import ctypes
import json
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute

CASES = []
OUT_OF_MEMORY = (MemoryError, OSError)  # the second where a hook of the case's own ran out
ATTEMPTS = 4  # of Paddle, before it gives up
cuda = ctypes.CDLL("libcuda.so.1")


def case(function):
    CASES.append(function)
    return function


def data(seed, samples=8, width=6):
    return paddle.to_tensor(np.random.RandomState(seed).randn(samples, width))


def weight(width, start):
    return paddle.create_parameter([width], "float64", default_initializer=nn.initializer.Constant(start))


class Refusals:
    """Refuses memory in the part of a case that is said to be watched, once."""

    def __init__(self, at):
        self._at = at

    def __enter__(self):
        if self._at:
            cuda.simgpu_fail_at(ctypes.c_uint64(self._at), ctypes.c_uint64(ATTEMPTS))

    def __exit__(self, *_):
        cuda.simgpu_fail_at(ctypes.c_uint64(0), ctypes.c_uint64(0))


class Recomputed(nn.Layer):
    def __init__(self, **options):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self._options = options

    def block(self, hidden):
        return F.tanh(self.middle(hidden))

    def forward(self, x):
        return self.last(recompute(self.block, self.first(x), **self._options))


class RecomputedInAList(Recomputed):
    """Its block trains a weight that no layer knows of."""

    def __init__(self):
        super().__init__()
        self.unseen = [weight(64, 1.0)]

    def block(self, hidden):
        return F.tanh(self.middle(hidden)) * self.unseen[0]


class InAList(nn.Layer):
    """It trains a weight that no layer knows of."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 64), nn.Linear(64, 3)
        self.unseen = [weight(64, 1.0)]

    def forward(self, x):
        return self.last(F.tanh(self.first(x)) * self.unseen[0])


class Scaled(nn.Layer):
    """A network with a weight that the loop may use as well."""

    def __init__(self, inputs, outputs, inside=False):
        super().__init__()
        self.linear, self.scale, self._inside = nn.Linear(inputs, outputs), weight(outputs, 1.5), inside

    def forward(self, x):
        out = F.tanh(self.linear(x))
        return out * self.scale if self._inside else out


def sums(weights):
    return [0.0 if w.grad is None else float((w.grad * (w.grad + 0.1).sin()).sum()) for w in weights]


def trained(net, refusals):
    """Two steps: what the second is like shows what the first has left."""
    optimizer, seen = paddle.optimizer.SGD(0.01, parameters=net.parameters()), []
    for step in range(2):
        loss = (net(data(step)) ** 2).sum()
        if step == 0:
            with refusals:
                loss.backward()
        else:
            loss.backward()
        seen += sums(net.parameters())
        optimizer.step()
        optimizer.clear_grad()
    return seen


@case
def recomputed(refusals):
    return trained(Recomputed(), refusals)


@case
def recomputed_by_saved_tensors(refusals):
    return trained(Recomputed(use_reentrant=False), refusals)


def refused_forward(net, refusals):
    with refusals:
        out = net(data(2))
    (out**2).sum().backward()
    return net


@case
def recomputed_forward(refusals):
    return sums(refused_forward(Recomputed(), refusals).parameters())


def accumulated(net, refusals):
    """The second of two backwards is refused memory."""
    (net(data(1)) ** 2).sum().backward()
    loss = (net(data(2)) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(list(net.parameters()) + net.unseen)


@case
def recomputed_in_a_list(refusals):
    return accumulated(RecomputedInAList(), refusals)


@case
def recomputed_forward_in_a_list(refusals):
    net = refused_forward(RecomputedInAList(), refusals)
    return sums(list(net.parameters()) + net.unseen)


@case
def in_a_list_accumulated(refusals):
    return accumulated(InAList(), refusals)


@case
def in_a_list_called_twice(refusals):
    net = InAList()
    loss = (net(data(1)) ** 2).sum() + (net(data(2)) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(list(net.parameters()) + net.unseen)


@case
def scaled_between(refusals):
    """What the loop does between two networks adds to a weight of the first."""
    first, second = Scaled(6, 32), Scaled(32, 4)
    for parameter in list(first.parameters()) + list(second.parameters()):
        parameter.clear_grad()
    loss = (second(first(data(1)) * first.scale) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(list(first.parameters()) + list(second.parameters()))


@case
def hook_between(refusals):
    """As before, and a hook must see the sum of both."""
    first, second, told = Scaled(6, 32, inside=True), Scaled(32, 4), []
    first.scale.register_hook(lambda gradient: (told.append(1), gradient.clip(-0.5, 0.5))[1])
    loss = (second(first(data(1)) * first.scale) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(first.parameters()) + [len(told)]


@case
def hooks_told_once(refusals):
    net, told = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)), []
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: told.append(1))
    loss = (net(data(2)) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(net.parameters()) + [len(told)]


@case
def hooks_stay(refusals):
    """Whatever came of a backward, the hooks are there at the next."""
    net, told = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)), []
    for number, parameter in enumerate(net.parameters()):
        parameter.register_hook(lambda gradient, number=number: (told.append(number), gradient * 2.0)[1])
    (net(data(1)) ** 2).sum().backward()
    loss = (net(data(2)) ** 2).sum()
    try:
        with refusals:
            loss.backward()
    except OUT_OF_MEMORY:
        pass
    del loss
    for parameter in net.parameters():
        parameter.clear_grad()
    told.clear()
    sum((p**2).sum() for p in net.parameters()).backward()
    return sums(net.parameters()) + sorted(told)


@case
def hooks_in_chunks_stay(refusals):
    """As before, of a network that runs in two chunks: all hooks are kept from it then."""
    net, told = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)), []
    for number, parameter in enumerate(net.parameters()):
        parameter.register_hook(lambda gradient, number=number: (told.append(number), gradient * 2.0)[1])
    try:
        with Refusals(1):
            out = net(data(1))
    except OUT_OF_MEMORY:  # nobody splits it
        out = net(data(1))
    (out**2).sum().backward()
    seen, loss = sums(net.parameters()) + sorted(told), (net(data(2)) ** 2).sum()
    try:
        with refusals:
            loss.backward()
    except OUT_OF_MEMORY:
        pass
    del loss
    for parameter in net.parameters():
        parameter.clear_grad()
    told.clear()
    sum((p**2).sum() for p in net.parameters()).backward()
    return seen + sums(net.parameters()) + sorted(told)


class TwoHeads(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.one, self.other = nn.Linear(6, 32), nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x):
        hidden = F.tanh(self.first(x))
        return self.one(hidden), self.other(hidden)


@case
def a_hook_of_what_is_not_reached(refusals):
    """The gradient of a weight with a hook is there, is not added to by a backward in chunks, and is by a penalty."""
    net, told = TwoHeads(), []
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: told.append(1))
    sum((one**2).sum() for one in net(data(1))).backward()
    loss = (net(data(2))[0] ** 2).sum()
    with refusals:
        loss.backward()
    sum((p**2).sum() for p in net.parameters()).backward()
    return sums(net.parameters()) + [len(told)]


@case
def hook_above(refusals):
    """Of a tensor between two networks that the loss takes as well: it is told once, of the sum."""
    first, second, told = Scaled(6, 32), Scaled(32, 4), []
    middle = first(data(1)) * 2.0
    middle.register_hook(lambda gradient: (told.append(1), gradient.clip(-0.5, 0.5))[1])
    loss = (second(middle * 1.5) ** 2).sum() + middle.sum()
    with refusals:
        loss.backward()
    return sums(first.parameters()) + [len(told)]


class Clip(PyLayer):
    """Through one of these Paddle crashes when a backward runs twice."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clip(-0.5, 0.5)


@case
def pylayer_above(refusals):
    """As hook_above: it clips the sum of both."""
    first, second = Scaled(6, 32), Scaled(32, 4)
    middle = Clip.apply(first(data(1)))
    loss = (second(middle * 1.5) ** 2).sum() + middle.sum()
    with refusals:
        loss.backward()
    return sums(first.parameters())


@case
def pylayer_in_the_loss(refusals):
    net = Scaled(6, 32)
    loss = (Clip.apply(net(data(1))) ** 2).sum()
    with refusals:
        loss.backward()
    return sums(net.parameters())


class ClipAndWeight(nn.Layer):
    """One of its outputs depends on the weights alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 16)

    def forward(self, x):
        return Clip.apply(self.linear(x)), Clip.apply(self.linear.weight) * 2.0, Clip.apply(self.linear.bias)


@case
def pylayer_and_a_constant(refusals):
    net = ClipAndWeight()
    with refusals:
        out = net(data(1))
    sum((one**2).sum() for one in out).backward()
    return sums(net.parameters())


def result_of(function, at):
    paddle.seed(1)
    np.random.seed(1)
    try:
        with paddle.enable_grad():  # after an exception Paddle may have left gradients off
            return function(Refusals(at))
    except OUT_OF_MEMORY:
        return "MemoryError"


def main(refusals):
    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    print(json.dumps({f.__name__: [result_of(f, at) for at in range(refusals + 1)] for f in CASES}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
