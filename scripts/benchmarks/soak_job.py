"""One job of `bench soak`, drawn by its seed: an ordinary training script that knows nothing of bsguard.

    soak_job.py SEED OUT.npz

Half of the seeds are one of sweep_job.py's models with a batch, an optimizer, clipping, accumulation and dropout of their
own, the others a network and loop of the grammar in tests/hooks/framework/jobs/generated.py.
"""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import paddle
import sweep_job
from paddle import nn

GENERATED = Path(__file__).resolve().parents[2] / "tests" / "hooks" / "framework" / "jobs" / "generated.py"
OPTIMIZERS = {
    "SGD": {},
    "Momentum": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {"weight_decay": 0.01},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {},
    "Lamb": {},
    "NAdam": {},
    "RAdam": {},
}


def drawn(seed):
    """A model with a loop of its own; {name: array} of what it left."""
    choice = random.Random(seed)
    kind = sweep_job.MODELS[choice.choice(sorted(sweep_job.MODELS))]
    size, accumulate = choice.choice((1, 2, 3, 5, 8, 13)), choice.choice((1, 1, 1, 2))
    name = choice.choice(sorted(name for name in OPTIMIZERS if hasattr(paddle.optimizer, name)))
    clip = choice.choice((None, nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByValue(0.05)))
    dropout, zero, evaluate = choice.choice((0, 0, 0.2)), choice.choice((True, False)), choice.choice((True, False))

    random_data = np.random.RandomState(seed)
    net = kind()
    if dropout:
        forward = net.forward
        net.forward = lambda x, *rest: forward(
            nn.functional.dropout(x, dropout) if "float" in str(x.dtype) else x, *rest
        )
    options = dict(OPTIMIZERS[name], grad_clip=clip)
    optimizer = getattr(paddle.optimizer, name)(learning_rate=0.01, parameters=net.parameters(), **options)
    losses = []
    for _ in range(3):
        for _ in range(accumulate):
            x, label = (paddle.to_tensor(array) for array in kind.data(random_data, size))
            loss = kind.loss(net, x, label) / accumulate
            loss.backward()
            losses.append(float(loss))
        optimizer.step()
        optimizer.clear_grad(set_to_zero=zero)
    saved = {"state_" + key: value.numpy() for key, value in net.state_dict().items()}
    if evaluate:
        net.eval()
        with paddle.no_grad():
            result = net(paddle.to_tensor(kind.data(random_data, size)[0]))
        for key, value in (result if isinstance(result, dict) else {"output": result}).items():
            saved["evaluation_" + key] = value.numpy()
    return dict(saved, losses=np.array(losses))


def generated(seed):
    """A network of the grammar; {name: array} of what it left."""
    spec = importlib.util.spec_from_file_location("generated", GENERATED)
    module = sys.modules["generated"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.Job(seed).run()
    found = {}

    def flatten(value, name):
        if isinstance(value, (list, tuple)):
            for index, one in enumerate(value):
                flatten(one, f"{name}_{index}")
        elif value is not None:
            found[name] = np.asarray(value)

    for key, value in result.items():
        flatten(value, key)
    return found


def main(seed, out):
    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    paddle.seed(int(seed))
    saved = drawn(int(seed)) if int(seed) % 2 else generated(int(seed))
    np.savez(out, **saved)


if __name__ == "__main__":
    main(*sys.argv[1:])
