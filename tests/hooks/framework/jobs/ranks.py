"""Small jobs of many ranks; it knows nothing of bsguard.

    ranks.py CASE [ARGUMENT...]

The last line of each rank is JSON: what the case made of itself, with its weights as text.
"""

import base64
import json
import sys
import time

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn as nn
import paddle.nn.functional as F

WIDTH = 64


class Net(nn.Layer):
    def __init__(self, norm=None):
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)
        self.norm = norm

    def forward(self, x):
        hidden = self.first(x)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.last(F.relu(hidden))


def data(step, samples=32):
    mine = np.random.RandomState([step, dist.get_rank()])
    kind = paddle.get_default_dtype()
    return paddle.to_tensor(mine.rand(samples, 16).astype(kind)), paddle.to_tensor(mine.rand(samples, 4).astype(kind))


def text_of(parameters):
    return base64.b64encode(np.concatenate([p.numpy().ravel() for p in parameters]).tobytes()).decode()


def train(model, optimizer, steps=4, loss=F.mse_loss):
    for step in range(steps):
        x, y = data(step)
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.clear_grad()


def optimizer_of(model):
    return paddle.optimizer.SGD(0.1, parameters=model.parameters())


def plain():
    """Nothing special, as long as it is asked to."""
    net = Net()
    model = paddle.DataParallel(net)
    train(model, optimizer_of(model), int(sys.argv[2]))
    return text_of(net.parameters())


def slow():
    """Steps without end, each said."""
    model = paddle.DataParallel(Net())
    optimizer = optimizer_of(model)
    for step in range(100000):
        x, y = data(step)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.clear_grad()
        print("step", step, flush=True)
        time.sleep(0.01)


def hooks():
    """Hooks on weights see each gradient once, before it is exchanged, as Paddle has it."""
    net, seen = Net(), []
    model = paddle.DataParallel(net)
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: seen.append(float(gradient.sum())))
    net.last.bias.register_hook(lambda gradient: gradient * 2)
    train(model, optimizer_of(model))
    return text_of(net.parameters()), sorted(seen)


def gradients():
    """What `.grad` is after each backward, with accumulation, a handle to it, and a second backward of the same graph."""
    net, seen = Net(), []
    model = paddle.DataParallel(net)
    for step in range(3):
        with model.no_sync():
            x, y = data(step)
            F.mse_loss(model(x), y).backward()
        handle = net.first.weight.grad
        seen.append(text_of([p.grad for p in net.parameters()]))
        x, y = data(step + 10)
        loss = F.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        seen.append(text_of([handle] + [p.grad for p in net.parameters()]))
        loss.backward()  # nothing is exchanged: Paddle does so once for a forward
        seen.append(text_of([handle] + [p.grad for p in net.parameters()]))
        for p in net.parameters():
            p.clear_grad()
    return seen


def two_networks():
    """A generator and a critic, both data-parallel: their gradients are exchanged in one order on all ranks."""
    maker, critic = nn.Linear(16, 16), Net()
    first, second = paddle.DataParallel(maker), paddle.DataParallel(critic)
    one, two = optimizer_of(first), optimizer_of(second)
    for step in range(3):
        x, y = data(step)
        F.mse_loss(second(first(x).detach()), y).backward()
        two.step()
        two.clear_grad()
        F.mse_loss(second(first(x)), 1 - y).backward()
        one.step()
        one.clear_grad()
        two.clear_grad()
    return text_of(list(maker.parameters()) + list(critic.parameters()))


def wrapped():
    """The data-parallel layer is inside another one."""

    class Outer(nn.Layer):
        def __init__(self):
            super().__init__()
            self.model = paddle.DataParallel(Net())

        def forward(self, x):
            return self.model(x) * 2

    net = Outer()
    train(net, optimizer_of(net))
    return text_of(net.parameters())


def by_hand():
    """No DataParallel: the job sums its gradients itself."""
    net = Net()
    optimizer = optimizer_of(net)
    for parameter in net.parameters():
        dist.broadcast(parameter, src=0)
    for step in range(4):
        x, y = data(step)
        F.mse_loss(net(x), y).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.clear_grad()
    return text_of(net.parameters())


def sync_batch_norm():
    net = Net(nn.BatchNorm1D(WIDTH))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = paddle.DataParallel(net)
    # Its kernel is a device's own; what is asked here is whether it is recognised before it runs.
    try:
        train(model, optimizer_of(model), 1)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return "Paddle: " + type(error).__name__
    return text_of(net.parameters())


def collective_in_forward():
    class Gathers(Net):
        def forward(self, x):
            out = super().forward(x)
            mean = out.mean(0).detach()
            dist.all_reduce(mean)
            return out - mean

    net = Gathers()
    model = paddle.DataParallel(net)
    train(model, optimizer_of(model))
    return text_of(net.parameters())


def fleet_with(**degrees):
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1, **degrees}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.distributed.fleet.meta_parallel.model_parallel_random_seed(3)
    return fleet


def fleet_data_parallel():
    fleet = fleet_with(dp_degree=dist.get_world_size())
    net = Net()
    model = fleet.distributed_model(net)
    optimizer = fleet.distributed_optimizer(optimizer_of(net))
    train(model, optimizer)
    return text_of(net.parameters())


def tensor_parallel():
    fleet = fleet_with(mp_degree=dist.get_world_size())
    meta = fleet.meta_parallel
    net = nn.Sequential(
        meta.ColumnParallelLinear(16, WIDTH, has_bias=True, gather_output=False),
        nn.ReLU(),
        meta.RowParallelLinear(WIDTH, 4, has_bias=True, input_is_parallel=True),
    )
    train(net, optimizer_of(net), 2)
    return text_of(net.parameters())


def pipeline():
    """Two stages; a loop of Paddle's own runs them, four micro-batches at a time."""
    paddle.set_default_dtype("float32")  # it hands on losses of 32 bits only
    from paddle.distributed import fleet

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": dist.get_world_size()}
    strategy.pipeline_configs = {"accumulate_steps": 4, "micro_batch_size": 8}
    fleet.init(is_collective=True, strategy=strategy)
    stages = fleet.meta_parallel.PipelineLayer(
        [
            fleet.meta_parallel.LayerDesc(nn.Linear, 16, WIDTH),
            nn.Tanh(),
            fleet.meta_parallel.LayerDesc(nn.Linear, WIDTH, 4),
        ],
        num_stages=dist.get_world_size(),
        loss_fn=nn.MSELoss(),
    )
    model = fleet.distributed_model(stages)
    optimizer = fleet.distributed_optimizer(optimizer_of(stages))
    losses = [model.train_batch(list(data(step)), optimizer).numpy().ravel().tolist() for step in range(3)]
    return losses, text_of(stages.parameters())


def experts():
    """A mixture of experts. Its kernels are a device's own, and without them Paddle crashes: tokens stay where they are."""
    from paddle.incubate.distributed.models.moe import MoELayer

    class Sparse(Net):
        def __init__(self):
            super().__init__()
            group = dist.new_group(list(range(dist.get_world_size())))
            gate = {"type": "naive", "top_k": 1}
            self.experts = MoELayer(8, nn.LayerList([nn.Linear(8, 8)]), gate=gate, moe_group=group)
            self.experts.forward = lambda x: self.experts.experts[0](x)

        def forward(self, x):
            return super().forward(self.experts(x.reshape([-1, 2, 8])).reshape([-1, 16]))

    net = Sparse()
    train(net, optimizer_of(net), 2)
    return text_of(net.parameters())


def sharded():
    paddle.set_default_dtype("float32")  # Paddle's buffers know no other of the two
    net = Net()
    optimizer = paddle.optimizer.AdamW(0.1, parameters=net.parameters())
    model, optimizer, _ = dist.sharding.group_sharded_parallel(net, optimizer, sys.argv[2])
    train(model, optimizer, 2)
    return text_of(net.first.parameters()) if sys.argv[2] != "p_g_os" else None


if __name__ == "__main__":
    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    dist.init_parallel_env()
    paddle.seed(5 + dist.get_rank())  # what the ranks begin with is made equal by Paddle
    print(json.dumps(globals()[sys.argv[1]]()))
    sys.stdout.flush()
