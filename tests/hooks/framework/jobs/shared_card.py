"""One of two trainings on one card, which take turns: shared_card.py FOLDER ME (0 or 1). Whoever has not the turn keeps what
its framework has cached, until the other has run out of memory. So it is known who holds what when, however fast each
of them runs. Of bsguard only the events are read.

The last line is JSON: the losses, one a step; of the first also those of the same training before the other came.
"""

import gc
import json
import os
import pathlib
import sys
import time

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

STEPS, BATCH, WIDTH = 5, 512, 256
folder, me = pathlib.Path(sys.argv[1]), int(sys.argv[2])
turn = folder / "turn"  # who may take a step: the first at even numbers


def ooms_of(one):
    """How often a job has run out of memory."""
    found = (folder / f"job{one}").glob("bsguard/*/events.jsonl")
    return sum(path.read_text().count('"type":"oom"') for path in found)


def wait_for(number):
    """Until it is turn `number`; what is cached is given back once for each time that the other runs out of memory."""
    known = 0
    while not turn.exists() or int(turn.read_text()) < number:
        now = ooms_of(1 - me)
        if now > known:
            known = now
            paddle.device.cuda.empty_cache()
        time.sleep(0.01)


def give(number):
    """The turn goes to the other."""
    partial = folder / f"turn{me}"
    partial.write_text(str(number))
    os.replace(partial, turn)


def train(takes_turns):
    """The losses."""
    paddle.seed(5)
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    optimizer = paddle.optimizer.SGD(0.05, parameters=net.parameters())
    losses = []
    for step in range(STEPS):
        if takes_turns:
            wait_for(2 * step + me)
        random = np.random.RandomState([step, 3])
        x, y = paddle.to_tensor(random.rand(BATCH, WIDTH)), paddle.to_tensor(random.rand(BATCH, WIDTH))
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
        x = y = loss = None
        if takes_turns:
            give(2 * step + me + 1)
    return losses


paddle.set_default_dtype("float64")
if me:
    wait_for(0)  # the first has tried alone
paddle.set_device("gpu")
alone = [] if me else train(False)
if not me:
    gc.collect()
    paddle.device.cuda.empty_cache()
    give(0)
print(json.dumps({"alone": alone, "losses": train(True)}))
