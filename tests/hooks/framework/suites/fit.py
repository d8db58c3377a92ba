"""paddle.Model.fit as the documentation teaches it, on generated images: fit.py OUT.npz [options]

Saves the loss of every batch, the results of every evaluation, the number of updates and the final weights. It knows
nothing of bsguard.
"""

import argparse
import sys

import numpy as np
import paddle
from paddle.vision import models

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--model", default="lenet", choices=["lenet", "resnet18", "mobilenet"])
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--samples", type=int, default=88, help="the last batch of an epoch may be a short one")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pixels", type=int, default=32)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--evaluate", type=int, default=0, help="samples of an evaluation after each epoch")
parser.add_argument("--amp", default="O0")
parser.add_argument("--frozen-statistics", action="store_true", help="BatchNorm by its running statistics")
options = parser.parse_args()

paddle.set_device("gpu")
paddle.seed(5)


class Images(paddle.io.Dataset):
    """Noise, brighter in the corner that the label names."""

    def __init__(self, count, channels):
        random = np.random.RandomState(count)
        half = options.pixels // 2
        self.images = random.rand(count, channels, options.pixels, options.pixels).astype("float32")
        self.labels = random.randint(0, 4, (count, 1)).astype("int64")
        for image, (label,) in zip(self.images, self.labels):
            row, column = divmod(int(label), 2)
            image[:, row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.5

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __len__(self):
        return len(self.images)


class Record(paddle.callbacks.Callback):
    """What a user's own callback would look at."""

    def __init__(self):
        super().__init__()
        self.losses, self.evaluations, self.rates = [], [], []

    def on_train_batch_end(self, step, logs=None):
        self.losses.append(float(np.asarray(logs["loss"]).reshape(-1)[0]))
        self.rates.append(self.model._optimizer.get_lr())

    def on_eval_end(self, logs=None):
        self.evaluations.append([float(np.asarray(logs["loss"]).reshape(-1)[0]), float(logs["acc"])])


if options.model == "lenet":
    options.pixels, channels = 28, 1
    network = models.LeNet(num_classes=4)
elif options.model == "resnet18":
    channels = 3
    network = models.resnet18(num_classes=4)
else:
    channels = 3
    network = models.mobilenet_v1(scale=0.25, num_classes=4)
if options.frozen_statistics:
    for layer in network.sublayers():
        if isinstance(layer, paddle.nn.BatchNorm2D):
            layer._use_global_stats = True
            layer.weight.set_value(paddle.full_like(layer.weight, 0.5))  # nothing keeps the signal from growing

schedule = paddle.optimizer.lr.StepDecay(0.01, step_size=2, gamma=0.5)
optimizer = paddle.optimizer.Momentum(schedule, parameters=network.parameters(), weight_decay=1e-4)
model = paddle.Model(network)
mixed = None if options.amp == "O0" else {"level": options.amp, "init_loss_scaling": 256.0}
model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy(), amp_configs=mixed)
record = Record()
model.fit(
    Images(options.samples, channels),
    Images(options.evaluate, channels) if options.evaluate else None,
    batch_size=options.batch,
    epochs=options.epochs,
    accumulate_grad_batches=options.accumulate,
    shuffle=False,
    verbose=0,
    callbacks=[record],
)
arrays = {"state_" + name: value.numpy() for name, value in network.state_dict().items()}
arrays["losses"] = np.asarray(record.losses)
arrays["rates"] = np.asarray(record.rates)
if record.evaluations:
    arrays["evaluations"] = np.asarray(record.evaluations)
np.savez(options.out, **arrays)
print(len(record.losses), "batches; losses", [round(loss, 4) for loss in record.losses], file=sys.stderr)
