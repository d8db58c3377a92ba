"""Random networks and loops from a grammar, one for each seed. It knows nothing of bsguard. Run by ways.py:

    ways.py generated.py OUT.pickle --ways plain 17 18x32   seeds 17 and 18, the second with 32 times the samples

A network is a chain of layers over vectors, sequences or images, now and then with something that a cut must not miss:
samples that see each other, randomness, state, a gradient of its own. describe() says what a seed is.
"""

import random
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

paddle.set_device("gpu")

CASES = [str(seed) for seed in range(40)]
AT_THE_END = []  # functions to be called as a job has run, before its networks go
NOTES = []  # what a forward of a network may fill, as scripts do


class Doubled(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Normalised(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1.0)


class Residual(nn.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Gate(nn.Layer):
    """A learnt factor that begins at `start`, on a function of the batch."""

    def __init__(self, start, function):
        super().__init__()
        self.gate = self.create_parameter([1], default_initializer=nn.initializer.Constant(start))
        self.function = function

    def forward(self, x):
        return x + self.gate * self.function(x)


class Function(nn.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Counting(nn.Layer):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1.0 + 0.01 * self.calls)


class First(nn.Layer):
    """Of a layer that returns more than one tensor."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attending(nn.Layer):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attention = nn.MultiHeadAttention(width, heads, dropout=dropout)

    def forward(self, x):
        return self.attention(x, x, x)


def noted(x):
    NOTES.append(x)
    return x


def noisy(x):
    return x + 0.1 * paddle.randn(x.shape, x.dtype)


def scaled_by_chance(x):
    return x * (0.5 + random.random())


def doubled_on_the_way_back(x):
    if not x.stop_gradient:
        x.register_hook(lambda gradient: gradient * 2)
    return x * 1.0


def clipped_on_the_way_back(x):
    if not x.stop_gradient:
        x.register_hook(lambda gradient: gradient * (0.1 / (0.1 + gradient.norm())))
    return x * 1.0


def neighbours(x):
    return paddle.concat([x[-1:], x[:-1]]) if x.shape[0] > 1 else x


class Grammar:
    """Makes the choices of one seed and remembers them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.words = []

    def choose(self, *options):
        """One of the options; (weight, option) pairs or plain ones."""
        return self.random.choice(options)

    def say(self, word, value=None):
        self.words.append(word)
        return value

    def activation(self):
        kind = self.choose(nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid, nn.LeakyReLU)
        return self.say(kind.__name__, kind())

    def odd(self, vector):
        """Something that a cut must not miss. vector: it works on [B, n]."""
        name, layer = self.choose(
            ("batch mean", lambda: Function(lambda x: x - 0.5 * x.mean(0, keepdim=True))),
            ("neighbours", lambda: Function(lambda x: x + 0.3 * neighbours(x))),
            ("gate 0 on batch mean", lambda: Gate(0.0, lambda x: x.mean(0, keepdim=True))),
            ("gate 1 on itself", lambda: Gate(1.0, paddle.tanh)),
            ("gate 0 on itself", lambda: Gate(0.0, paddle.tanh)),
            ("noise", lambda: Function(noisy)),
            ("python random", lambda: Function(scaled_by_chance)),
            ("dropout", lambda: nn.Dropout(0.3)),
            ("counter", Counting),
            ("noted", lambda: Function(noted)),
            ("doubled gradient", lambda: Function(Doubled.apply)),
            ("normalised gradient", lambda: Function(Normalised.apply)),
            ("hook", lambda: Function(doubled_on_the_way_back)),
            ("hook over the batch", lambda: Function(clipped_on_the_way_back)),
            ("softmax over the batch", lambda: Function(lambda x: x * F.softmax(x, 0))),
            ("sorted", lambda: Function(lambda x: x.sort(0))),
            ("running sum", lambda: Function(lambda x: x.cumsum(0))),
        )
        return self.say(name, layer())

    def vector(self, width, depth):
        layers = []
        for _ in range(depth):
            kind = self.choose(
                "linear", "linear", "activation", "norm", "residual", "batch norm", "odd", "twice", "weight norm"
            )
            if kind == "linear":
                new = self.choose(3, 4, 6)
                layers.append(self.say("linear%d" % new, nn.Linear(width, new)))
                width = new
            elif kind == "activation":
                layers.append(self.activation())
            elif kind == "norm":
                layers.append(self.say("layer norm", nn.LayerNorm(width)))
            elif kind == "residual":
                layers.append(self.say("residual", Residual(nn.Sequential(nn.Linear(width, width), nn.Tanh()))))
            elif kind == "batch norm":
                norm = nn.BatchNorm1D(width, use_global_stats=self.choose(None, True))
                if self.choose(True, False):
                    self.say("frozen")
                    norm.eval()
                layers.append(self.say("batch norm", norm))
            elif kind == "odd" and self.choose(True, False):
                layers.append(self.odd(True))
            elif kind == "twice":
                same = nn.Linear(width, width)
                layers += [same, nn.Tanh(), same]
                self.say("twice the same")
            elif kind == "weight norm":
                layers.append(self.say("weight norm", nn.utils.weight_norm(nn.Linear(width, width))))
        return layers, width

    def sequence(self, width, depth):
        layers = []
        for _ in range(depth):
            kind = self.choose("rnn", "attention", "encoder", "linear", "activation", "conv", "odd")
            if kind == "rnn":
                cell = self.choose(nn.LSTM, nn.GRU, nn.SimpleRNN)
                both = self.choose("forward", "bidirect")
                layers.append(First(cell(width, 4, direction=both, dropout=self.choose(0.0, 0.2))))
                width = 4 if both == "forward" else 8
                self.say(cell.__name__)
            elif kind == "attention" and width % 2 == 0:
                layers.append(self.say("attention", Attending(width, 2, self.choose(0.0, 0.0, 0.2))))
            elif kind == "encoder" and width % 2 == 0:
                rate = self.choose(0.0, 0.0, 0.1)
                layers.append(self.say("encoder", nn.TransformerEncoderLayer(width, 2, 8, dropout=rate)))
            elif kind == "linear":
                layers.append(self.say("linear", nn.Linear(width, 6)))
                width = 6
            elif kind == "activation":
                layers.append(self.activation())
            elif kind == "conv":
                layers.append(self.say("conv1d", nn.Conv1D(width, 4, 3, padding=1, data_format="NLC")))
                width = 4
            elif self.choose(True, False, False):
                layers.append(self.odd(False))
        pool = self.choose("mean", "last", "max", "flat")
        self.say("pool " + pool)
        functions = {"mean": lambda x: x.mean(1), "last": lambda x: x[:, -1], "max": lambda x: x.max(1)}
        if pool == "flat":
            layers.append(nn.Flatten())
            width *= self.steps
        else:
            layers.append(Function(functions[pool]))
        return layers, width

    def image(self, depth):
        layers, channels = [], 3
        for _ in range(depth):
            kind = self.choose("conv", "conv", "activation", "group norm", "instance norm", "batch norm", "pool", "odd")
            if kind == "conv":
                layers.append(self.say("conv", nn.Conv2D(channels, 4, 3, padding=1, groups=1)))
                channels = 4
            elif kind == "activation":
                layers.append(self.activation())
            elif kind == "group norm" and channels == 4:
                layers.append(self.say("group norm", nn.GroupNorm(2, channels)))
            elif kind == "instance norm":
                layers.append(self.say("instance norm", nn.InstanceNorm2D(channels)))
            elif kind == "batch norm":
                layers.append(self.say("batch norm", nn.BatchNorm2D(channels)))
            elif kind == "pool":
                layers.append(self.say("max pool", nn.MaxPool2D(3, 1, 1)))
            elif self.choose(True, False, False):
                layers.append(self.odd(False))
        layers.append(Function(lambda x: x.mean([2, 3])))
        return layers, channels


class Network(nn.Layer):
    """A chain, and a head that decides what comes out. loss: of what is computed inside, None where nothing is. unseen:
    weights that are no layer's; the output is multiplied by each."""

    def __init__(self, chain, width, head, inside, unseen):
        super().__init__()
        self.chain, self.head = nn.Sequential(*chain), nn.Linear(width, 3)
        self._head, self._inside = head, inside
        self.unseen = unseen

    def forward(self, x, label=None):
        hidden = self.chain(x)
        out = self.head(hidden)
        for weight in self.unseen:
            out = out * weight
        if self._inside == "mean":
            return F.cross_entropy(out, label), out
        if self._inside == "sum":
            return F.cross_entropy(out, label, reduction="sum"), out
        if self._inside == "valid":
            return F.cross_entropy(out, paddle.where(label == 2, paddle.full_like(label, -100), label)), out
        if self._head == "dict":
            return {"out": out, "hidden": hidden}
        if self._head == "tuple":
            return out, hidden
        if self._head == "twice":
            return out, out
        if self._head == "parameter":
            return out, self.head.weight
        if self._head == "input":
            return out, x
        if self._head == "penalty":
            return out, (self.head.weight**2).sum()
        return out


class Job:
    """A network, its data, its loss and its loop."""

    def __init__(self, seed, times=1):
        g = self.grammar = Grammar(seed)
        paddle.set_default_dtype("float64")
        paddle.seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        NOTES.clear()
        self.batch = g.choose(1, 2, 3, 5, 6, 8, 9, 12)
        kind = g.choose("vector", "vector", "sequence", "image", "ids")
        g.steps = g.choose(3, 4, self.batch)
        g.say("%s of %d" % (kind, self.batch))
        depth = g.choose(1, 2, 3, 4, 5)
        self.batch *= times
        chain = []
        if kind == "vector":
            self.shape = [self.batch, 6]
            chain, width = g.vector(6, depth)
        elif kind == "image":
            self.shape = [self.batch, 3, 5, 5]
            chain, width = g.image(depth)
        else:
            self.shape = [self.batch, g.steps] + ([6] if kind == "sequence" else [])
            chain, width = g.sequence(6, depth)
            if kind == "ids":
                chain = [nn.Embedding(11, 6), *chain]
        more, width = g.vector(width, g.choose(0, 1, 2))
        self.ids = kind == "ids"
        self.inside = g.choose(None, None, None, None, "mean", "sum", "valid")
        self.head = g.choose("bare", "bare", "dict", "tuple", "twice", "parameter", "input", "penalty")
        if self.ids and self.head == "input":
            self.head = "bare"
        self.unseen = []
        if random.Random("unseen %d" % seed).random() < 0.15:  # drawn apart, so that a seed is otherwise what it was
            g.say("a weight in a list")
            start = nn.initializer.Constant(0.8)
            self.unseen = [paddle.create_parameter([1], "float64", default_initializer=start)]
        self.net = Network([*chain, *more], width, self.head, self.inside, self.unseen)
        g.say("head %s, loss inside %s" % (self.head, self.inside))
        self.loss = g.choose("cross entropy", "sum", "contrastive", "by sample", "with weights", "twice")
        self.loop = g.choose(
            "steps", "steps", "accumulate", "siamese", "input gradient", "two losses", "paddle.grad", "chain"
        )
        if any("d gradient" in word for word in g.words) and self.loop in ("two losses", "paddle.grad"):
            self.loop = "steps"  # a second backward through a PyLayer crashes Paddle itself
        self.clip = g.choose(None, nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByValue(0.05))
        self.optimizer = g.choose(paddle.optimizer.SGD, paddle.optimizer.Momentum)
        if g.choose(True, False, False, False):
            g.say("first half frozen")
            for p in self.net.parameters()[: len(self.net.parameters()) // 2]:
                p.stop_gradient = True
        if g.choose(True, False, False, False):
            g.say("parameter hook")
            self.net.head.weight.register_hook(lambda gradient: gradient.clip(-0.02, 0.02))
        g.say("loss %s, loop %s" % (self.loss, self.loop))

    def data(self, step):
        generator = np.random.RandomState(step)
        x = generator.randint(0, 11, self.shape) if self.ids else generator.randn(*self.shape)
        return paddle.to_tensor(x), paddle.to_tensor(generator.randint(0, 3, (self.batch,)))

    def loss_of(self, outputs, label):
        more = 0.0
        if self.inside is not None:
            inner, out = outputs
            more = inner
        elif self.head == "dict":
            out, more = outputs["out"], (outputs["hidden"] ** 2).mean()
        elif self.head in ("tuple", "twice", "parameter", "input", "penalty"):
            out, second = outputs
            more = (second**2).mean()
        else:
            out = outputs
        if self.loss == "sum":
            return F.cross_entropy(out, label, reduction="sum") + more
        if self.loss == "contrastive":
            return F.cross_entropy(out @ out.t(), paddle.arange(out.shape[0])) + more
        if self.loss == "by sample":
            weights = paddle.linspace(0.5, 1.5, out.shape[0]).astype("float64")
            return (F.cross_entropy(out, label, reduction="none") * weights).mean() + more
        if self.loss == "with weights":
            return F.cross_entropy(out, label) + sum((p**2).sum() for p in self.net.parameters()) * 0.01 + more
        if self.loss == "twice":
            return F.cross_entropy(out, label) * (out**2).mean() + more
        return F.cross_entropy(out, label) + more

    def call(self, x, label):
        return self.net(x, label) if self.inside is not None else self.net(x)

    def step(self, step, seen):
        x, label = self.data(step)
        before = None
        if self.loop == "chain" and not self.ids:
            before = self.before
            shape = x.shape
            x = before(x.reshape([-1, shape[-1]])).reshape(shape)
        if self.loop == "input gradient" and not self.ids:
            x.stop_gradient = False
        loss = self.loss_of(self.call(x, label), label)
        seen.append(float(loss))
        if self.loop == "siamese":
            loss = loss + self.loss_of(self.call(x if self.ids else x * 0.5, label), label)
        if self.loop == "paddle.grad":
            weights = [p for p in self.net.parameters() if not p.stop_gradient]
            found = paddle.grad(loss, weights, retain_graph=True, allow_unused=True)
            seen.append([None if one is None else np.array(one.numpy()) for one in found])
        if self.loop == "two losses":
            loss.backward(retain_graph=True)
            (loss * 0.5).backward()
        elif self.loop == "accumulate":
            (loss / 2).backward()
            x, label = self.data(step + 100)
            (self.loss_of(self.call(x, label), label) / 2).backward()
        else:
            loss.backward()
        if x.grad is not None:
            seen.append(np.array(x.grad.numpy()))

    def run(self):
        """Two steps: gradients of each, and the weights and buffers afterwards."""
        seen, networks = [], [self.net]
        if self.loop == "chain" and not self.ids:
            self.before = nn.Linear(self.shape[-1], self.shape[-1])
            networks.append(self.before)
        weights = [p for network in networks for p in network.parameters()] + self.unseen
        optimizer = self.optimizer(0.05, parameters=weights, grad_clip=self.clip)
        gradients = []
        for step in range(2):
            self.step(step, seen)
            gradients.append([None if p.grad is None else np.array(p.grad.numpy()) for p in weights])
            optimizer.step()
            optimizer.clear_grad()
        state = [np.array(value.numpy()) for network in networks for value in network.state_dict().values()]
        for function in AT_THE_END:
            function()
        return {"gradients": gradients, "state": state, "seen": seen, "notes": len(NOTES)}


def job_of(case):
    """The job of a case: a seed, or a seed and how many times the samples ("17x32")."""
    seed, _, times = case.partition("x")
    return Job(int(seed), int(times or 1))


def describe(case):
    """What a case is, in words."""
    return ", ".join(job_of(case).grammar.words)


def run(case):
    """One case; what it left, or the exception that it raised."""
    job = None
    try:
        job = job_of(case)
        return job.run()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return {"exception": [type(error).__name__, lines[0][:200]]}


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(one, describe(one), run(one).get("exception", ""))
