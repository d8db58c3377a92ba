"""Fails each allocation of an optimizer's first steps in turn:
optimizers.py NAME [clip] [groups] [decay] [fused] [scaler|minimize]

fused: one operator for all parameters (use_multi_tensor). scaler: with paddle.amp.GradScaler, which unscales the gradients
and moves its scale at each step; minimize: by its minimize().

Prints one line of JSON: how many allocations the step makes, and for each failed one whether the weights afterwards equal
those of a run without; or `why` the optimizer cannot be had so. The simulated driver is told through its control
functions; the training loop itself is ordinary.
"""

import ctypes
import inspect
import json
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

driver = ctypes.CDLL("libcuda.so.1")
driver.simgpu_calls.restype = ctypes.c_uint64
driver.simgpu_fail_at.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

# Paddle gives up after four refusals of the same request.
TERMINAL = 4

paddle.set_device("gpu")
name, options = sys.argv[1], sys.argv[2:]
scaling = [one for one in ("scaler", "minimize") if one in options]
# Fused operators and the scaler's know no float64.
paddle.set_default_dtype("float32" if scaling or "fused" in options else "float64")
kind = getattr(paddle.optimizer, name)
# Lamb's has a name of its own; Rprop, which looks at signs only, has none.
DECAY = next(
    (word for word in ("weight_decay", "lamb_weight_decay") if word in inspect.signature(kind).parameters), None
)
if "decay" in options and DECAY is None:
    print(json.dumps({"why": "it has no weight decay"}))
    sys.exit()
x = paddle.to_tensor(np.random.RandomState(0).rand(16, 32).astype(paddle.get_default_dtype()))
y = paddle.to_tensor(np.random.RandomState(1).randint(0, 8, (16, 1)))


def train(step_to_disturb=None, fail_at=0):
    """Three steps; returns (weights, allocations made by the disturbed step)."""
    paddle.seed(3)
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8))
    clip = nn.ClipGradByGlobalNorm(0.5) if "clip" in options else None
    parameters = net.parameters()
    if "groups" in options:
        parameters = [{"params": parameters[:3]}, {"params": parameters[3:], "learning_rate": 0.5}]
    extra = {"learning_rate": 0.01} if name != "Adadelta" else {"learning_rate": 1.0}
    if "decay" in options:
        extra[DECAY] = 0.1
    if name == "Rprop":
        extra["learning_rate_range"] = (1e-4, 1.0)
    if name == "ASGD":
        extra["batch_num"] = 2
    if name == "LBFGS":
        extra = {"learning_rate": 0.1, "max_iter": 3}
    if "fused" in options:
        extra["use_multi_tensor"] = True
    optimizer = kind(parameters=parameters, grad_clip=clip, **extra)
    made = 0
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0, incr_every_n_steps=1) if scaling else None

    def evaluate():
        optimizer.clear_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    closure = [evaluate] if name == "LBFGS" else []
    for step in range(3):
        loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            # It switches itself off where the type is another; nothing here is computed in float16.
            with paddle.amp.auto_cast(dtype="float16", custom_black_list=["linear", "matmul_v2", "matmul", "mul"]):
                loss = scaler.scale(loss)
        loss.backward()
        before = driver.simgpu_calls()
        if step == step_to_disturb and fail_at:
            paddle.device.cuda.empty_cache()
            driver.simgpu_fail_at(fail_at, TERMINAL)
        if "scaler" in options:
            scaler.step(optimizer)
            scaler.update()
        elif "minimize" in options:
            scaler.minimize(optimizer, loss)
        else:
            optimizer.step(*closure)
        driver.simgpu_fail_at(0, 0)
        if step == step_to_disturb:
            made = driver.simgpu_calls() - before
        optimizer.clear_grad()
        del loss
    if scaler is not None:
        assert scaler.is_enable()
        return [p.numpy() for p in [*net.parameters(), scaler._scale]], made
    return [p.numpy() for p in net.parameters()], made


reference, _ = train()
train(0, 10**9)  # warm
result = {"allocations": [], "equal": 0, "different": [], "raised": []}
for step in (0, 1):
    _, made = train(step, 10**9)
    result["allocations"].append(made)
    for position in range(1, made + 1):
        try:
            weights, _ = train(step, position)
        except MemoryError:
            driver.simgpu_fail_at(0, 0)
            result["raised"].append([step, position])
            continue
        largest = max(float(np.abs(a - b).max()) for a, b in zip(reference, weights))
        if largest <= 1e-12:
            result["equal"] += 1
        else:
            result["different"].append([step, position, largest])
print(json.dumps(result))
