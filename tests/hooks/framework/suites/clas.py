"""PaddleClas's own Engine on generated images: clas.py OUT.npz --ppcls FOLDER [options]

ppcls is what holds the package of that name. Saves the loss of every update, the result of the evaluation and the final
weights.
"""

import argparse
import os
import sys

import cv2
import numpy as np
import paddle

np.int, np.float, np.bool = int, float, bool  # as ppcls has it, which is older than NumPy 1.24
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--ppcls", required=True)
parser.add_argument("--model", default="MobileNetV3_small_x0_35")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--iterations", type=int, default=3)
parser.add_argument("--pixels", type=int, default=64)
parser.add_argument("--recognition", action="store_true", help="a recognition model with a triplet loss")
parser.add_argument("--amp", action="store_true")
options = parser.parse_args()
sys.path.insert(0, options.ppcls)

import ppcls.engine.train.train  # noqa: E402
from ppcls.engine.engine import Engine  # noqa: E402
from ppcls.utils.config import AttrDict, create_attr_dict  # noqa: E402

paddle.seed(5)
np.random.seed(5)
os.makedirs("data", exist_ok=True)
random = np.random.RandomState(1)
for part, count in (("train", options.batch * options.iterations), ("val", options.batch)):
    lines = []
    for index in range(count):
        kind = index % 4
        image = random.randint(0, 128, (options.pixels, options.pixels, 3)).astype("uint8")
        half = options.pixels // 2
        row, column = divmod(kind, 2)
        image[row * half : (row + 1) * half, column * half : (column + 1) * half] += 100
        name = "%s%d.png" % (part, index)
        cv2.imwrite(os.path.join("data", name), image)
        lines.append("%s %d\n" % (name, kind))
    with open("data/%s.txt" % part, "w") as file:
        file.writelines(lines)

NORMALIZE = {"scale": 1.0 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "order": ""}


def data(part):
    return {
        "dataset": {
            "name": "ImageNetDataset",
            "image_root": "data",
            "cls_label_path": "data/%s.txt" % part,
            "transform_ops": [
                {"DecodeImage": {"to_rgb": True, "channel_first": False}},
                {"NormalizeImage": dict(NORMALIZE)},
            ],
        },
        "sampler": {
            "name": "DistributedBatchSampler",
            "batch_size": options.batch,
            "drop_last": False,
            "shuffle": False,
        },
        "loader": {"num_workers": 0, "use_shared_memory": False},
    }


config = {
    "Global": {
        "checkpoints": None,
        "pretrained_model": None,
        "output_dir": "saved",
        "device": "gpu",
        "save_interval": 1,
        "eval_during_train": True,
        "eval_interval": 1,
        "epochs": 1,
        "print_batch_step": 1,
        "use_visualdl": False,
        "image_shape": [3, options.pixels, options.pixels],
        "save_inference_dir": "inference",
        "seed": None,
    },
    "Arch": {"name": options.model, "class_num": 4, "pretrained": False},
    "Loss": {"Train": [{"CELoss": {"weight": 1.0, "epsilon": 0.1}}], "Eval": [{"CELoss": {"weight": 1.0}}]},
    "Optimizer": {
        "name": "Momentum",
        "momentum": 0.9,
        "lr": {"name": "Cosine", "learning_rate": 0.01, "warmup_epoch": 0},
        "regularizer": {"name": "L2", "coeff": 0.0001},
    },
    "DataLoader": {"Train": data("train"), "Eval": data("val")},
    "Metric": {"Train": [{"TopkAcc": {"topk": [1, 2]}}], "Eval": [{"TopkAcc": {"topk": [1, 2]}}]},
    "profiler_options": None,
}
if options.recognition:
    config["Arch"] = {
        "name": "RecModel",
        "infer_output_key": "features",
        "infer_add_softmax": False,
        "Backbone": {"name": options.model, "pretrained": False, "class_num": 64},
        "BackboneStopLayer": {"name": "flatten"},
        "Head": {"name": "ArcMargin", "embedding_size": 64, "class_num": 4, "margin": 0.15, "scale": 30},
    }
    config["Loss"]["Train"].append({"TripletLossV2": {"weight": 1.0, "margin": 0.5}})
    del config["Metric"]["Train"], config["DataLoader"]["Eval"]
    config["Global"]["eval_during_train"] = False
if options.amp:
    config["AMP"] = {"scale_loss": 128.0, "use_dynamic_loss_scaling": True}
config = AttrDict(config)
create_attr_dict(config)
engine = Engine(config, mode="train")
recorded, evaluated = [], []
# ppcls takes the first entry of numbers that this Paddle gives without a dimension.
as_array = paddle.Tensor.numpy
paddle.Tensor.numpy = lambda self, *more: as_array(self, *more) if self.ndim else as_array(self, *more).reshape([1])
update, evaluate = ppcls.engine.train.train.update_loss, engine.eval


def recording(trainer, losses, batch_size):
    recorded.append([float(losses[name].numpy().reshape(-1)[0]) for name in sorted(losses)])
    return update(trainer, losses, batch_size)


def evaluating(*args):
    evaluated.append(float(evaluate(*args)))
    return evaluated[-1]


ppcls.engine.train.train.update_loss = recording
engine.eval = evaluating
engine.train()
arrays = {"state_" + name: value.numpy() for name, value in engine.model.state_dict().items()}
arrays["losses"] = np.asarray(recorded)
arrays["evaluated"] = np.asarray(evaluated)
np.savez(options.out, **arrays)
print(len(recorded), "updates; losses", [round(loss[-1], 4) for loss in recorded], file=sys.stderr)
