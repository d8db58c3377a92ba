"""Training loops of several steps, whose loss can be foreseen, or seems to be: see CASES. It knows nothing of bsguard.

A case gives step(net, optimizer, x, y, number), which does whatever it does with one batch; what every step leaves in
`.grad`, and the weights at the end, are compared. Run by ways.py.
"""

import threading

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

BATCH, STEPS, CLASSES = 8, 5, 3
CASES = []

paddle.set_device("gpu")


def case(**options):
    """Registers a case; options: of train()."""

    def register(function):
        CASES.append(function.__name__)
        _cases[function.__name__] = function, options
        return function

    return register


_cases = {}


def run(name):
    """One case from a fresh state; what it left."""
    paddle.set_default_dtype("float64")
    paddle.seed(1)
    np.random.seed(1)
    function, options = _cases[name]
    result = {"seen": [], "losses": []}
    try:
        net = train(function, result, **options)
        result["state"] = [array(value) for value in net.state_dict().values()]
    except Exception as error:
        result["exception"] = [type(error).__name__, (str(error).splitlines() or [""])[0][:200]]
    return result


def array(tensor):
    return None if tensor is None else np.array(tensor.numpy())


def mlp(dropout=0.0, norm=False):
    middle = [nn.BatchNorm1D(7)] if norm else []
    return nn.Sequential(nn.Linear(6, 7), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, CLASSES))


class TwoHeads(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(6, 7), nn.Linear(7, CLASSES), nn.Linear(7, CLASSES)

    def forward(self, x):
        x = F.tanh(self.body(x))
        return self.one(x), self.other(x)


class LossInside(nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


class WeightInAList(nn.Layer):
    """It trains a weight that no layer knows of: `parameters()` leaves it out."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.temperature = [paddle.create_parameter([1], "float64", default_initializer=nn.initializer.Constant(1.0))]

    def forward(self, x):
        return self.net(x) * self.temperature[0]


class Data(paddle.io.Dataset):
    def __init__(self, samples):
        random = np.random.RandomState(3)
        self.x, self.y = random.randn(samples, 6), random.randint(0, CLASSES, samples)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def __len__(self):
        return len(self.x)


def train(step, result, make=mlp, samples=BATCH * STEPS, clip=None, resident=False):
    """Runs the steps of a case. resident: the same two tensors at each step, and no loader."""
    net = make()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters(), grad_clip=clip)
    batches = paddle.io.DataLoader(Data(samples), batch_size=BATCH)
    if resident:
        batches = [next(iter(batches))] * STEPS
    for number, (x, y) in enumerate(batches):
        loss = step(net, optimizer, x, y, number)
        result["losses"].append(None if loss is None else array(loss))
        result["seen"].append([array(p.grad) for p in net.parameters()])
        if number != getattr(step, "skips", None):
            optimizer.step()
            optimizer.clear_grad()
    return net


@case()
def cross_entropy(net, optimizer, x, y, number):
    loss = nn.CrossEntropyLoss()(net(x), y)
    loss.backward()
    return loss


@case(resident=True)
def resident_tensors(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


@case(samples=BATCH * 4 + 5)
def smaller_last_batch(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


@case(make=lambda: mlp(dropout=0.4))
def dropout(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


@case(make=lambda: mlp(norm=True))
def batch_norm(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


@case(clip=nn.ClipGradByGlobalNorm(0.05))
def clipped(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


@case()
def mean_square(net, optimizer, x, y, number):
    loss = nn.MSELoss()(net(x), F.one_hot(y, CLASSES).astype("float64"))  # made in the loop
    loss.backward()
    return loss


@case()
def sum_of_squares(net, optimizer, x, y, number):
    loss = F.mse_loss(net(x), y.astype("float64").reshape([-1, 1]), reduction="sum")
    loss.backward()
    return loss


@case()
def against_a_new_tensor(net, optimizer, x, y, number):
    loss = F.l1_loss(net(x), paddle.full([1], 0.25, "float64"))
    loss.backward()
    return loss


@case()
def by_the_sample(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y, reduction="none").mean()
    loss.backward()
    return loss


@case()
def ignored_labels(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y, ignore_index=0)
    loss.backward()
    return loss


@case()
def weighed_classes(net, optimizer, x, y, number):
    if number == 0:
        step.weights = paddle.to_tensor([1.0, 2.0, 0.5], "float64")
    loss = F.cross_entropy(net(x), y, weight=step.weights)
    loss.backward()
    return loss


@case()
def scaled_by_a_scaler(net, optimizer, x, y, number):
    if number == 0:
        step.scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    loss = F.cross_entropy(net(x), y)
    step.scaler.scale(loss).backward()
    return loss


def step():
    """Holds what lasts for more than one step."""


@case()
def scale_moves(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    (loss * (1024.0 if number < 3 else 512.0)).backward()
    return loss


@case()
def divided_and_accumulated(net, optimizer, x, y, number):
    for _ in range(3):
        loss = F.cross_entropy(net(x), y) / 3
        loss.backward()
    return loss


@case()
def cleared_before(net, optimizer, x, y, number):
    optimizer.clear_grad()
    return cross_entropy(net, optimizer, x, y, number)


@case()
def cleared_between(net, optimizer, x, y, number):
    (net[0].weight * 1.0).sum().backward()
    loss = F.cross_entropy(net(x), y)
    optimizer.clear_grad()
    loss.backward()
    return loss


@case()
def cleared_to_nothing_between(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    optimizer.clear_grad(set_to_zero=False)
    loss.backward()
    return loss


@case()
def cleared_after(net, optimizer, x, y, number):
    loss = cross_entropy(net, optimizer, x, y, number)
    if number == 3:
        optimizer.clear_grad()
    return loss


@case()
def no_backward_in_one_step(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    if number != 3:
        loss.backward()
    return loss


@case()
def no_update_in_one_step(net, optimizer, x, y, number):
    return cross_entropy(net, optimizer, x, y, number)


no_update_in_one_step.skips = 3


@case()
def exception_between(net, optimizer, x, y, number):
    try:
        loss = F.cross_entropy(net(x), y)
        if number == 3:
            raise ValueError("of the loop's own")
        loss.backward()
        return loss
    except ValueError:
        return None


@case()
def loss_changes(net, optimizer, x, y, number):
    criterion = F.cross_entropy if number < 3 else F.multi_margin_loss
    loss = criterion(net(x), y)
    loss.backward()
    return loss


@case()
def labels_changed_in_place(net, optimizer, x, y, number):
    out = net(x)
    if number == 3:
        y.set_value((y + 1) % CLASSES)
    loss = F.cross_entropy(out, y)
    loss.backward()
    return loss


@case()
def other_labels(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y if number < 3 else paddle.flip(y, 0))
    loss.backward()
    return loss


@case(make=TwoHeads)
def two_losses(net, optimizer, x, y, number):
    one, other = net(x)
    loss = F.cross_entropy(one, y) + 0.4 * F.cross_entropy(other, y, label_smoothing=0.1)
    loss.backward()
    return loss


@case(make=TwoHeads)
def one_output_unused(net, optimizer, x, y, number):
    one, other = net(x)
    loss = F.cross_entropy(one if number < 3 else other, y)
    loss.backward()
    return loss


@case()
def two_losses_of_one_output(net, optimizer, x, y, number):
    out = net(x)
    loss = F.cross_entropy(out, y) + F.multi_margin_loss(out, y)
    loss.backward()
    return loss


@case()
def loss_and_a_metric(net, optimizer, x, y, number):
    out = net(x)
    with paddle.no_grad():
        metric = F.multi_margin_loss(out, y)
    loss = F.cross_entropy(out, y)
    loss.backward()
    return loss + metric


@case()
def and_a_penalty(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y) + 0.01 * sum((p**2).sum() for p in net.parameters())
    loss.backward()
    return loss


@case()
def loss_that_writes_to_the_outputs(net, optimizer, x, y, number):
    out = net(x)
    out.scale_(1.5 if number >= 3 else 1.0)
    loss = F.cross_entropy(out, y)
    loss.backward()
    return loss


@case()
def contrastive(net, optimizer, x, y, number):
    out = net(x)
    loss = F.cross_entropy(paddle.matmul(out, out, transpose_y=True), paddle.arange(len(x)))
    loss.backward()
    return loss


@case()
def twice_through_the_graph(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


@case()
def gradient_of_the_outputs(net, optimizer, x, y, number):
    out = net(x)
    loss = F.cross_entropy(out, y)
    (asked,) = paddle.grad(loss, [out], retain_graph=True)
    (loss + asked.abs().sum()).backward()
    return asked


@case()
def gradient_of_a_weight_first(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    (asked,) = paddle.grad(loss, [net[0].weight], retain_graph=True)
    loss.backward()
    return asked


@case()
def two_forwards_at_once(net, optimizer, x, y, number):
    first, second = F.cross_entropy(net(x), y), F.cross_entropy(net(x * 2), y)
    (first + second).backward()
    return first + second


@case()
def in_another_thread(net, optimizer, x, y, number):
    found = []
    thread = threading.Thread(target=lambda: found.append(cross_entropy(net, optimizer, x, y, number)))
    thread.start()
    thread.join()
    return found[0]


@case(make=LossInside)
def loss_inside(net, optimizer, x, y, number):
    loss = net(x, y) / (2 if number < 3 else 4)
    loss.backward()
    return loss


@case()
def hook_on_a_weight(net, optimizer, x, y, number):
    if number == 0:
        net[0].weight.register_hook(lambda gradient: gradient * 2)
    return cross_entropy(net, optimizer, x, y, number)


@case()
def hook_between(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    handle = net[0].weight.register_hook(lambda gradient: gradient / (1 + gradient.abs().sum()))  # to be called once
    loss.backward()
    handle.remove()
    return loss


@case()
def frozen_between(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    net[0].weight.stop_gradient = number == 3
    loss.backward()
    net[0].weight.stop_gradient = False
    return loss


@case()
def no_number_in_one_step(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y) * (float("nan") if number == 3 else 1.0)
    loss.backward()
    if number == 3:
        optimizer.clear_grad(set_to_zero=False)
    return loss


@case()
def mixed_precision(net, optimizer, x, y, number):
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss


@case(make=WeightInAList)
def weight_in_a_list(net, optimizer, x, y, number):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    (weight,) = net.temperature
    weight.set_value(weight - 0.5 * weight.grad)
    weight.clear_gradient()
    return loss


@case(make=WeightInAList)
def weight_in_a_list_with_a_gradient(net, optimizer, x, y, number):
    (net.temperature[0] * 0.1).sum().backward()
    return weight_in_a_list(net, optimizer, x, y, number)
