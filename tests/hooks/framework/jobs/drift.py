"""Data-parallel trainings by seed, each run without faults and again with the device's memory refused on some ranks at
some steps: in the forward, the loss, the backward, the exchange of gradients, or the optimizer's step, there where a card
is asked for memory: for the norms of clipping and for what is kept for each parameter. (Updates in place take nothing on
a card; here their operators run on the host and the copy back takes some.) Knows nothing of bsguard.

    drift.py FIRST COUNT

After each training the ranks compare their weights bit by bit, and with those of the run without faults. The last line
is JSON: {"cases", "unequal": [seeds], "worst": the largest difference, "hit": {phase: refusals}}.
"""

import ctypes
import json
import os
import sys

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn as nn
import paddle.nn.functional as F

PHASES = ("forward", "loss", "backward", "optimizer")
STEPS, OUTPUTS = 4, 48
cuda = ctypes.CDLL("libcuda.so.1")
cuda.simgpu_failures.restype = ctypes.c_uint64
ATTEMPTS = 4  # of Paddle, before it gives up


class Spot(nn.Layer):
    """Refuses memory, where it is asked to, as soon as a gradient comes by: in the middle of the network's backward."""

    wanted = (0, 0)

    def forward(self, x):
        if not x.stop_gradient:
            x.register_hook(self.reached)
        return x

    @staticmethod
    def reached(gradient):
        refusals, Spot.wanted = Spot.wanted, (0, 0)
        if refusals[1]:
            cuda.simgpu_fail_at(ctypes.c_uint64(refusals[0]), ctypes.c_uint64(refusals[1]))


class Branches(nn.Layer):
    """A network that leaves a part of itself out, now and then."""

    def __init__(self, width):
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, OUTPUTS)
        self.spot = Spot()

    def forward(self, x, extra=True):
        hidden = self.spot(F.tanh(self.first(x)))
        if extra:
            hidden = hidden + F.tanh(self.extra(hidden))
        return self.last(hidden)


class Step:
    """Refuses memory, where it is asked to, at one place of the optimizer's step."""

    wanted = 0

    @classmethod
    def refusing(cls, function):
        """function(), refused memory until as many refusals are used up as are wanted."""

        def refused(*args, **kwargs):
            before, count = cuda.simgpu_failures(), cls.wanted
            if not count:
                return function(*args, **kwargs)
            empty_the_cache()
            cuda.simgpu_fail_at(ctypes.c_uint64(1), ctypes.c_uint64(count))
            try:
                return function(*args, **kwargs)
            finally:
                cuda.simgpu_fail_at(ctypes.c_uint64(0), ctypes.c_uint64(0))
                cls.wanted = max(0, count - (cuda.simgpu_failures() - before))

        return refused


def empty_the_cache():
    """So that what comes next must be had from the device. Paddle 2.6 lets go of its cache only when something fails."""
    if not paddle.__version__.startswith("2."):
        paddle.device.cuda.empty_cache()
        return
    try:
        paddle.empty([1 << 40])
    except MemoryError:
        pass


class Training:
    """One training; `plan` is {(step, phase): (first refusal, how many)} of this rank."""

    def __init__(self, seed, plan):
        self.random = np.random.RandomState(seed)
        self.plan, self.hit = plan, dict.fromkeys(PHASES, 0)
        paddle.seed(seed)
        choose = self.random
        width = int(choose.randint(64, 256))
        self.branching = bool(choose.randint(2))
        self.tied, self.twice = bool(choose.randint(2)), choose.randint(4) == 0
        self.parts = int(choose.randint(1, 3))
        if self.branching:
            net = Branches(width)
            self.shared = net.last.weight
        else:
            middle = [nn.LayerNorm(width)] if choose.randint(2) else []
            net = nn.Sequential(nn.Linear(12, width), *middle, nn.GELU(), Spot(), nn.Linear(width, OUTPUTS))
            self.shared = net[0].weight
        self.model = paddle.DataParallel(net, find_unused_parameters=self.branching, comm_buffer_size=1)
        clip = nn.ClipGradByGlobalNorm(0.5) if choose.randint(2) else None
        kinds = {"SGD": {}, "Momentum": {}, "AdamW": {"epsilon": 1e-4}}
        kind = sorted(kinds)[choose.randint(3)]
        self.optimizer = getattr(paddle.optimizer, kind)(
            0.05, parameters=self.model.parameters(), grad_clip=clip, **kinds[kind]
        )
        self.optimizer._add_accumulator = Step.refusing(self.optimizer._add_accumulator)
        self.scaler = paddle.amp.GradScaler(init_loss_scaling=256.0) if choose.randint(3) == 0 else None

    def refuse(self, step, phase):
        """From here on as planned, or as it was where nothing is."""
        first, count = self.plan.get((step, phase), (0, 0))
        if count:
            empty_the_cache()
        self._before = cuda.simgpu_failures()
        if phase == "optimizer":
            Step.wanted = count
            return
        if phase == "backward":
            # Not in what the loss itself takes, of which nothing can be done once more where no graph is held.
            Spot.wanted = first, count
            return
        cuda.simgpu_fail_at(ctypes.c_uint64(first), ctypes.c_uint64(count))

    def allow(self, phase):
        """The device gives what it has again."""
        Spot.wanted, Step.wanted = (0, 0), 0
        cuda.simgpu_fail_at(ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.hit[phase] += cuda.simgpu_failures() - self._before

    def loss(self, step, part):
        samples = 160 + 64 * step + 3 * part
        mine = np.random.RandomState([self.seed, step, part, dist.get_rank()])
        x, y = paddle.to_tensor(mine.rand(samples, 12)), paddle.to_tensor(mine.rand(samples, OUTPUTS))
        extra = () if not self.branching else ((step + dist.get_rank()) % 3 != 0,)
        self.refuse(step, "forward")
        out = self.model(x, *extra)
        if self.twice:
            out = out + self.model(x * 2, *extra)
        self.allow("forward")
        self.refuse(step, "loss")
        loss = F.mse_loss(out, y)
        self.allow("loss")
        if self.tied:
            loss = loss + 0.01 * (self.shared**2).sum()
        return loss / self.parts

    def backward(self, step, loss):
        self.refuse(step, "backward")
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        self.allow("backward")

    def run(self, seed):
        """Trains; returns the weights, one after another."""
        self.seed = seed
        for step in range(STEPS):
            for part in range(self.parts):
                if part < self.parts - 1:
                    with self.model.no_sync():
                        self.backward(step, self.loss(step, part))
                else:
                    self.backward(step, self.loss(step, part))
            self.refuse(step, "optimizer")
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.clear_grad()
            self.allow("optimizer")
        return np.concatenate([p.numpy().ravel() for p in self.model.parameters()])


def plan_of(seed, rank, phases):
    """Where this rank is refused memory; most ranks are, at up to five places."""
    random = np.random.RandomState([seed, 7])
    plans = []
    for _ in range(dist.get_world_size()):
        plan = {}
        for _ in range(random.randint(0, 6)):
            step, phase = int(random.randint(STEPS)), phases[random.randint(len(phases))]
            place = (0 if phase == "optimizer" else step, phase)  # what it keeps is made in its first step
            plan[place] = (int(random.randint(1, 3)), ATTEMPTS * int(random.randint(1, 3)))
        plans.append(plan)
    return plans[rank]


def same_on_all(weights):
    gathered = []
    dist.all_gather(gathered, paddle.to_tensor(weights))
    return all(np.array_equal(one.numpy(), weights) for one in gathered)


def main(first, count):
    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    dist.init_parallel_env()
    paddle.nn.clip._squared_l2_norm = Step.refusing(paddle.nn.clip._squared_l2_norm)
    # A rank that is not prepared for it can be rescued in its forward alone.
    phases = PHASES if os.environ.get("BSGUARD_ARM") == "always" else ("forward",)
    result = {"cases": 0, "unequal": [], "worst": 0.0, "hit": dict.fromkeys(PHASES, 0)}
    for seed in range(first, first + count):
        whole = Training(seed, {}).run(seed)
        training = Training(seed, plan_of(seed, dist.get_rank(), phases))
        weights = training.run(seed)
        if not (same_on_all(whole) and same_on_all(weights)):
            result["unequal"].append(seed)
        result["cases"] += 1
        result["worst"] = max(result["worst"], float(np.abs(weights - whole).max()))
        for phase, times in training.hit.items():
            result["hit"][phase] += times
        print("case", seed, float(np.abs(weights - whole).max()), training.hit, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
