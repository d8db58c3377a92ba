"""Small jobs that use an autograd graph in every way that a cut could break.

Run as: transparent.py CASE, or --all.

Prints one line of JSON (with --all, by case): all gradients, whatever else the case looked at, and the exception where
one came through. It knows nothing of bsguard: the test compares a run under the preload with a plain one. ways.py runs it
too.
"""

import json
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

BATCH = 8

paddle.set_device("gpu")
paddle.set_default_dtype("float64")


class Net(nn.Layer):
    def __init__(self, form="", keep=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.form, self.keep = form, keep
        self.activation = F.sigmoid

    def forward(self, x):
        hidden = self.activation(self.first(x))
        if self.keep:
            self.feature = hidden
        out = self.second(hidden)
        if self.form == "saved":
            return F.sigmoid(out)
        if self.form == "time_major":
            steps = paddle.arange(1, 5).astype("float64").reshape([4, 1, 1])
            return F.log_softmax(out.unsqueeze(0).tile([4, 1, 1]), -1) * steps
        if self.form == "twice":
            return out, out
        if self.form == "parameter":
            return out, self.second.weight
        if self.form == "input":
            return out, x
        if self.form == "dict":
            return {"logits": out, "hidden": [hidden, None], "label": "text"}
        return out


class Weighted(nn.Layer):
    """Takes eight class weights, which are no batch although there are as many."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 3)

    def forward(self, x, weights):
        return (self.first(x).unsqueeze(1) * weights.unsqueeze(0).unsqueeze(-1)).sum(1)


class Attention(nn.Layer):
    """Takes a square mask whose side equals the batch."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 4), nn.Linear(6, 4)
        self.out = nn.Linear(6, 3)

    def forward(self, tokens, mask):
        scores = self.query(tokens) @ self.key(tokens).transpose([0, 2, 1]) + mask
        return self.out(F.softmax(scores, -1) @ tokens).mean(1)


def data(seed=0):
    random = np.random.RandomState(seed)
    return paddle.to_tensor(random.randn(BATCH, 6)), paddle.to_tensor(random.randint(0, 3, (BATCH,)))


seen = {}


def plain(net, x, y):
    F.cross_entropy(net(x), y).backward()


def output_changed_in_place(net, x, y):
    out = net(x)
    out.add_(paddle.ones_like(out))
    (out * out).mean().backward()


def output_assigned_in_place(net, x, y):
    out = net(x)
    out[:, 0] = 0.0
    (out * out).mean().backward()


def feature_kept_aside(net, x, y):
    (F.cross_entropy(net(x), y) + (net.feature**2).mean()).backward()


def weight_in_loss(net, x, y):
    weight = net.second.weight
    (F.cross_entropy(net(x), y) + (weight**2).sum() + (weight**4).sum()).backward()


def gradient_of_input(net, x, y):
    x.stop_gradient = False
    (gradient,) = paddle.grad(F.cross_entropy(net(x), y), x, retain_graph=True)
    seen["input"] = float(gradient.abs().sum())


def gradient_of_input_then_backward(net, x, y):
    x.stop_gradient = False
    loss = F.cross_entropy(net(x), y)
    paddle.grad(loss, x, retain_graph=True)
    loss.backward()
    seen["input"] = float(x.grad.abs().sum())


def gradient_of_parameters(net, x, y):
    gradients = paddle.grad(F.cross_entropy(net(x), y), net.parameters())
    seen["parameters"] = [float(gradient.abs().sum()) for gradient in gradients]


def gradient_of_output(net, x, y):
    out = net(x)
    (gradient,) = paddle.grad(F.cross_entropy(out, y), out, retain_graph=True)
    seen["output"] = float(gradient.abs().sum())


def gradient_of_the_unreachable(net, x, y):
    other = paddle.ones([3])
    other.stop_gradient = False
    paddle.grad(F.cross_entropy(net(x), y), other)


def gradient_penalty(net, x, y):
    x.stop_gradient = False
    out = net(x)
    (gradient,) = paddle.grad(out.sum(), x, create_graph=True)
    (F.cross_entropy(out, y) + ((gradient.norm(2, axis=1) - 1) ** 2).mean()).backward()


def retained(net, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward(retain_graph=True)
    loss.backward()


def second_backward_without_retain(net, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    loss.backward()


def two_losses(net, x, y):
    out = net(x)
    first, second = F.cross_entropy(out, y), (out**2).mean()
    first.backward(retain_graph=True)
    second.backward()


def two_losses_at_once(net, x, y):
    out = net(x)
    paddle.autograd.backward([F.cross_entropy(out, y), (out**2).mean()])


def backward_with_a_seed(net, x, y):
    out = net(x)
    out.backward(paddle.full_like(out, 0.5))


def accumulated(net, x, y):
    for part in range(2):
        (F.cross_entropy(net(x[part * 4 : part * 4 + 4]), y[part * 4 : part * 4 + 4]) / 2).backward()


def penalty_first(net, x, y):
    sum((p**2).sum() for p in net.parameters()).backward()
    F.cross_entropy(net(x), y).backward()


def input_changed_in_place(net, x, y):
    loss = F.cross_entropy(net(x), y)
    x.scale_(0.0)
    loss.backward()


def twice(net, x, y):
    first, second = net(x)
    (F.cross_entropy(first, y) + (second**2).mean()).backward()


def parameter_returned(net, x, y):
    out, weight = net(x)
    (F.cross_entropy(out, y) + (weight**2).mean()).backward()


def input_returned(net, x, y):
    out, same = net(x)
    seen["same"] = same is x
    (F.cross_entropy(out, y) + (same**2).mean()).backward()


def dict_returned(net, x, y):
    out = net(x)
    seen["label"] = out["label"]
    (F.cross_entropy(out["logits"], y) + (out["hidden"][0] ** 2).mean()).backward()


def time_major(net, x, y):
    out = net(x)
    (out**2 * paddle.arange(8).astype("float64").reshape([1, 8, 1])).mean().backward()


def class_weights(net, x, y):
    F.cross_entropy(net(x, paddle.arange(8).astype("float64")), y).backward()


def square_mask(net, x, y):
    tokens = paddle.to_tensor(np.random.RandomState(3).randn(BATCH, BATCH, 6))
    mask = paddle.to_tensor(np.triu(np.full((BATCH, BATCH), -1e9), 1))
    F.cross_entropy(net(tokens, mask), y).backward()


def parameter_hook(net, x, y):
    calls = []

    def clip(gradient):
        calls.append(1)
        return gradient.clip(-0.01, 0.01)

    net.second.weight.register_hook(clip)
    F.cross_entropy(net(x), y).backward()
    seen["calls"] = len(calls)


def output_hook(net, x, y):
    out = net(x)
    out.register_hook(lambda gradient: gradient * 2)
    F.cross_entropy(out, y).backward()


def frozen_before(net, x, y):
    for parameter in net.first.parameters():
        parameter.stop_gradient = True
    F.cross_entropy(net(x), y).backward()


def frozen_after_forward(net, x, y):
    loss = F.cross_entropy(net(x), y)
    for parameter in net.first.parameters():
        parameter.stop_gradient = True
    loss.backward()


def weight_changed_in_between(net, x, y):
    loss = F.cross_entropy(net(x), y)
    with paddle.no_grad():
        net.second.weight.scale_(0.5)
    loss.backward()


def step_in_between(net, x, y):
    optimizer = paddle.optimizer.SGD(0.5, parameters=net.parameters())
    first, second = net(x), net(x * 0.5)
    F.cross_entropy(first, y).backward()
    optimizer.step()
    optimizer.clear_grad()
    F.cross_entropy(second, y).backward()


def no_backward(net, x, y):
    seen["loss"] = float(F.cross_entropy(net(x), y))


def layers_called_one_by_one(net, x, y):
    F.cross_entropy(net.second(F.sigmoid(net.first(x))), y).backward()


def siamese(net, x, y):
    near, far = net(x), net(x + 0.1)
    F.cross_entropy(near @ far.t(), paddle.arange(BATCH)).backward()


def generator_and_critic(net, x, y):
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    fake = net(x)
    (-critic(fake).mean() + (fake**2).mean()).backward()
    seen["critic"] = [float(p.grad.abs().sum()) for p in critic.parameters()]


def hook_raises(net, x, y):
    def fail(_):
        raise KeyError("user")

    net.second.weight.register_hook(fail)
    F.cross_entropy(net(x), y).backward()


def hook_interrupts(net, x, y):
    def fail(_):
        raise KeyboardInterrupt()

    net.second.weight.register_hook(fail)
    F.cross_entropy(net(x), y).backward()


def forward_raises(net, x, y):
    def fail(_):
        raise KeyError("user")

    net.activation = fail
    net(x)


def memory_error_of_the_host(net, x, y):
    def fail(_):
        raise MemoryError("Unable to allocate 3 TiB for an array")

    net.activation = fail
    net(x)


FORMS = {
    "output_changed_in_place": "saved",
    "output_assigned_in_place": "saved",
    "time_major": "time_major",
    "twice": "twice",
    "parameter_returned": "parameter",
    "input_returned": "input",
    "dict_returned": "dict",
}
CASES = [
    name for name, value in list(globals().items()) if callable(value) and getattr(value, "__code__", None) and
    value.__code__.co_varnames[:3] == ("net", "x", "y")
]  # fmt: skip


def run(case):
    """One case from a fresh state; what it left, as JSON-able values."""
    seen.clear()
    paddle.seed(1)
    np.random.seed(1)
    kinds = {"class_weights": Weighted, "square_mask": Attention}
    net = kinds[case]() if case in kinds else Net(FORMS.get(case, ""), keep=case == "feature_kept_aside")
    x, y = data()
    result = {}
    try:
        globals()[case](net, x, y)
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        result["exception"] = [type(error).__name__, lines[0][:200]]
    result["gradients"] = [None if p.grad is None else np.array(p.grad.numpy()) for p in net.parameters()]
    result["seen"] = dict(seen)
    return result


if __name__ == "__main__":
    found = {case: run(case) for case in CASES} if sys.argv[1] == "--all" else run(sys.argv[1])
    print(json.dumps(found, default=lambda array: array.tolist()))
