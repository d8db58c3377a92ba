"""An ordinary training loop with a choice of models, for tests: training.py OUT.npz [options]

It knows nothing of bsguard. Saves the losses, the gradients of every step and the final weights and buffers.
"""

import argparse

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--model", default="cnn", choices=["cnn", "batchnorm", "dropout", "transformer", "loss-inside"])
parser.add_argument("--dtype", default="float64")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--last-batch", type=int, default=0, help="samples of the last step, as at the end of an epoch")
parser.add_argument("--loss", default="functional", choices=["functional", "layer"])
parser.add_argument("--optimizer", default="Adam")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clear", default="zero", choices=["zero", "drop", "never"])
parser.add_argument("--penalty", action="store_true", help="backward of a weight penalty before the forward")
parser.add_argument("--evaluate", type=int, default=0, help="samples of an evaluation after each step")
parser.add_argument("--look", action="store_true", help="write to the gradients between clear and backward")
options = parser.parse_args()

paddle.set_device("gpu")
paddle.set_default_dtype(options.dtype)
paddle.seed(7)
np.random.seed(7)


def block(inputs, outputs):
    layers = [nn.Conv2D(inputs, outputs, 3, padding=1)]
    if options.model == "batchnorm":
        layers.append(nn.BatchNorm2D(outputs))
    layers.append(nn.ReLU())
    if options.model == "dropout":
        layers.append(nn.Dropout(0.2))
    return layers


class Convolutional(nn.Layer):
    def __init__(self):
        super().__init__()
        layers = []
        for depth in range(5):
            layers += block(3 if depth == 0 else 16, 16)
        self.body, self.head = nn.Sequential(*layers), nn.Linear(16, 10)

    def forward(self, x, label=None):
        out = self.head(self.body(x).mean([2, 3]))
        if options.model == "loss-inside":
            return {"loss": F.cross_entropy(out, label), "logits": out}
        return out


class Transformer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(48, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0), 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x, label=None):
        tokens = x.reshape([x.shape[0], 64, 48])
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


net = Transformer() if options.model == "transformer" else Convolutional()
optimizer = getattr(paddle.optimizer, options.optimizer)(0.01, parameters=net.parameters())
loss_layer = nn.CrossEntropyLoss()
random = np.random.RandomState(3)
saved, losses, evaluations = {}, [], []

for step in range(options.steps):
    size = options.last_batch if options.last_batch and step == options.steps - 1 else options.batch
    if options.look:
        with paddle.no_grad():
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.add_(paddle.full_like(p.grad, 1e-3))
    if options.penalty:
        sum((p**2).sum() for p in net.parameters()).backward()
    total = 0.0
    for _ in range(options.accumulate):
        x = paddle.to_tensor(random.rand(size, 3, 32, 32).astype(options.dtype))
        label = paddle.to_tensor(random.randint(0, 10, (size, 1)))
        if options.model == "loss-inside":
            loss = net(x, label)["loss"]
        elif options.loss == "layer":
            loss = loss_layer(net(x), label)
        else:
            loss = F.cross_entropy(net(x), label)
        (loss / options.accumulate).backward()
        total += float(loss) / options.accumulate
    losses.append(total)
    for index, p in enumerate(net.parameters()):
        if p.grad is not None and not p.stop_gradient:
            saved["gradient_%d_%d" % (step, index)] = p.grad.numpy().copy()
    optimizer.step()
    if options.clear == "zero":
        optimizer.clear_grad()
    elif options.clear == "drop":
        optimizer.clear_grad(set_to_zero=False)
    if options.evaluate:
        net.eval()
        with paddle.no_grad():
            images = paddle.to_tensor(np.random.RandomState(5).rand(options.evaluate, 3, 32, 32).astype(options.dtype))
            out = net(images)
            evaluations.append(out.numpy())
            assert out.stop_gradient and out.shape[0] == options.evaluate
        net.train()

for name, value in net.state_dict().items():
    saved["state_" + name] = value.numpy()
np.savez(options.out, losses=np.array(losses), evaluations=np.array(evaluations), **saved)
print(len(losses))
