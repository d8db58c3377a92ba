"""The loops that tutorials teach: an MLP of 784-128-10 on 800 samples, SGD at 0.01, five epochs. reference_loops.py LOOP

LOOP is batch16, batch64, accumulate, amp or warmup. Prints one line of JSON: losses and sums of the weights.
"""

import json
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

loop = sys.argv[1]
paddle.set_device("gpu")
if loop != "amp":
    paddle.set_default_dtype("float64")
paddle.seed(2026)
random = np.random.RandomState(2026)
images = random.rand(800, 784).astype(paddle.get_default_dtype())
labels = random.randint(0, 10, (800, 1))


class Data(paddle.io.Dataset):
    def __getitem__(self, index):
        return images[index], labels[index]

    def __len__(self):
        return 800


class Perceptron(nn.Layer):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(784, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


model = Perceptron()
rate = 0.01
if loop == "warmup":
    decay = paddle.optimizer.lr.StepDecay(0.01, 20)
    rate = paddle.optimizer.lr.LinearWarmup(decay, warmup_steps=10, start_lr=0.0, end_lr=0.01)
optimizer = paddle.optimizer.SGD(rate, parameters=model.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
loader = paddle.io.DataLoader(Data(), batch_size=64 if loop == "batch64" else 16, shuffle=False)
losses = []
for _ in range(5):
    for step, (x, y) in enumerate(loader, 1):
        if loop == "amp":
            with paddle.amp.auto_cast(level="O1"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
        elif loop == "accumulate":
            loss = F.cross_entropy(model(x), y)
            (loss / 4).backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.clear_grad()
        else:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            if loop == "warmup":
                rate.step()
        losses.append(float(loss))
weights = [float(p.astype("float64").abs().sum()) for p in model.parameters()]
print(json.dumps({"losses": losses, "weights": weights, "rate": optimizer.get_lr(), "steps": len(losses)}))
