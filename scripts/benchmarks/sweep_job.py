"""The jobs of `bench sweep`: an ordinary training script that knows nothing of bsguard.

    sweep_job.py MODEL OUT.npz [BATCH]

Trains three steps in float64, evaluates once, and saves losses, weights and what the evaluation gave. The models are so
large that their activations take some tens of MiB, and what does not get smaller with the batch takes little.
"""

import sys

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

STEPS = 3


class Convolutional(nn.Layer):
    """A CNN over images of 24 x 24; the loss is outside."""

    batch = 48

    def __init__(self):
        super().__init__()
        layers = []
        for depth in range(5):
            layers += [nn.Conv2D(3 if depth == 0 else 16, 16, 3, padding=1), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x).mean([2, 3]))

    @staticmethod
    def data(random, size):
        return random.rand(size, 3, 24, 24), random.randint(0, 10, (size, 1))

    @staticmethod
    def loss(net, x, label):
        return F.cross_entropy(net(x), label)

    @staticmethod
    def optimizer(parameters):
        return paddle.optimizer.Adam(0.01, parameters=parameters)


class Transformer(nn.Layer):
    """A Transformer encoder over 48 tokens that says a class for each token: outputs as large as its activations."""

    batch = 40

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0), 2)
        self.head = nn.Linear(32, 100)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))

    @staticmethod
    def data(random, size):
        tokens = random.randint(0, 100, (size, 48))
        return tokens, np.roll(tokens, 1, axis=1)

    @staticmethod
    def loss(net, x, label):
        return F.cross_entropy(net(x), label.unsqueeze(-1))

    @staticmethod
    def optimizer(parameters):
        clip = nn.ClipGradByGlobalNorm(1.0)
        return paddle.optimizer.AdamW(0.01, parameters=parameters, weight_decay=0.01, grad_clip=clip)


class Recurrent(nn.Layer):
    """An LSTM over 60 frames, with CTC over the time axis."""

    batch = 24
    frames = 60

    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(40, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.lstm = nn.LSTM(128, 64, num_layers=2)
        self.head = nn.Linear(64, 30)

    def forward(self, x):
        return self.head(self.lstm(self.bottom(x))[0])

    @classmethod
    def data(cls, random, size):
        return random.rand(size, cls.frames, 40), random.randint(1, 30, (size, 12)).astype("int32")

    @classmethod
    def loss(cls, net, x, label):
        size = x.shape[0]
        frames = paddle.full([size], cls.frames, "int64")
        return F.ctc_loss(net(x).transpose([1, 0, 2]), label, frames, paddle.full([size], 12, "int64"))

    @staticmethod
    def optimizer(parameters):
        return paddle.optimizer.Momentum(0.01, 0.9, parameters=parameters)


class Detector(nn.Layer):
    """A detector of one class that returns a dict of losses in training and boxes in evaluation."""

    batch = 24

    def __init__(self):
        super().__init__()
        layers = []
        for depth in range(4):
            layers += [nn.Conv2D(3 if depth == 0 else 16, 16, 3, padding=1), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.score, self.box = nn.Conv2D(16, 1, 1), nn.Conv2D(16, 4, 1)

    def forward(self, images, targets=None):
        features = self.backbone(images)
        score, box = self.score(features)[:, 0], self.box(features)
        if targets is None:
            return {"score": F.sigmoid(score), "box": box}
        inside = targets[:, 4]
        return {
            "loss_cls": F.binary_cross_entropy_with_logits(score, inside),
            "loss_box": F.smooth_l1_loss(box, targets[:, :4]),
        }

    @staticmethod
    def data(random, size):
        targets = random.rand(size, 5, 32, 32)
        targets[:, 4] = targets[:, 4] > 0.8
        return random.rand(size, 3, 32, 32), targets

    @staticmethod
    def loss(net, x, label):
        losses = net(x, label)
        return losses["loss_cls"] + losses["loss_box"]

    @staticmethod
    def optimizer(parameters):
        return paddle.optimizer.SGD(0.05, parameters=parameters, weight_decay=1e-4)


MODELS = {"cnn": Convolutional, "transformer": Transformer, "lstm-ctc": Recurrent, "detector": Detector}


def main(name, out, batch="0"):
    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    paddle.seed(11)
    kind = MODELS[name]
    size = int(batch) or kind.batch
    random = np.random.RandomState(5)
    net = kind()
    optimizer = kind.optimizer(net.parameters())
    saved, losses = {}, []
    for _ in range(STEPS):
        x, label = (paddle.to_tensor(array) for array in kind.data(random, size))
        loss = kind.loss(net, x, label)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    del x, label, loss
    net.eval()
    with paddle.no_grad():
        result = net(paddle.to_tensor(kind.data(random, size)[0]))
    for key, value in (result if isinstance(result, dict) else {"output": result}).items():
        saved["evaluation_" + key] = value.numpy()
    for key, value in net.state_dict().items():
        saved["state_" + key] = value.numpy()
    np.savez(out, losses=np.array(losses), **saved)
    print(" ".join("%.17g" % one for one in losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
