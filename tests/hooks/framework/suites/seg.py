"""PaddleSeg's own training loop, paddleseg.core.train, on generated images: seg.py OUT.npz [options]

Saves the loss of every update, the result of the evaluation and the final weights.
"""

import argparse
import importlib
import sys

import numpy as np
import paddle
from paddleseg import models
from paddleseg.models import losses
from paddleseg.utils import metrics

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--model", default="unet")
parser.add_argument("--loss", default="CrossEntropyLoss")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--iterations", type=int, default=3)
parser.add_argument("--pixels", type=int, default=64)
parser.add_argument("--evaluate", type=int, default=4, help="images of the evaluation at the end")
parser.add_argument("--precision", default="fp32")
parser.add_argument("--ema", action="store_true")
options = parser.parse_args()

paddle.set_device("gpu")
paddle.seed(5)
np.random.seed(5)
CLASSES = 3


class Images(paddle.io.Dataset):
    """Noise with a bright rectangle of a class; what paddleseg.datasets.Dataset gives out."""

    num_classes, ignore_index, mode = CLASSES, 255, "train"

    def __init__(self, count, mode="train"):
        self.count, self.mode = count, mode

    def __getitem__(self, index):
        random = np.random.RandomState(index)
        image = random.rand(3, options.pixels, options.pixels).astype("float32")
        label = np.zeros((options.pixels, options.pixels), "int64")
        top, left = random.randint(0, options.pixels // 2, 2)
        kind = random.randint(1, CLASSES)
        part = slice(top, top + options.pixels // 2), slice(left, left + options.pixels // 2)
        label[part] = kind
        image[kind][part] += 0.5
        label[0] = 255
        if self.mode != "train":
            label = label[None]
        return {"img": image, "label": label, "trans_info": []}

    def __len__(self):
        return self.count


def backbone(name, **more):
    return getattr(models.backbones, name)(**more)


# How to build each, and how many outputs it has in training, each with a loss of its own.
NETWORKS = {
    "unet": (lambda: models.UNet(CLASSES), 1),
    "ppliteseg": (
        lambda: models.PPLiteSeg(CLASSES, backbone("STDC1"), arm_out_chs=[16, 32, 32], seg_head_inter_chs=[16, 16, 16]),
        3,
    ),
    "bisenet": (lambda: models.BiSeNetV2(CLASSES), 5),
    "deeplab": (lambda: models.DeepLabV3P(CLASSES, backbone("MobileNetV2_x0_25"), backbone_indices=(1, 3)), 1),
    "ocrnet": (lambda: models.OCRNet(CLASSES, backbone("HRNet_W18"), backbone_indices=(0,)), 2),
    "segformer": (lambda: models.SegFormer(CLASSES, backbone("MixVisionTransformer_B0"), embedding_dim=32), 1),
    "fastscnn": (lambda: models.FastSCNN(CLASSES), 2),
}
build, count = NETWORKS[options.model]
network = build()
if options.loss == "mixed":
    kind = [
        losses.MixedLoss([losses.CrossEntropyLoss(), losses.DiceLoss(), losses.LovaszSoftmaxLoss()], [0.5, 0.3, 0.2])
    ]
else:
    kind = [getattr(losses, options.loss)()]
schedule = paddle.optimizer.lr.PolynomialDecay(0.005, decay_steps=100, power=0.9)
optimizer = paddle.optimizer.Momentum(schedule, parameters=network.parameters(), weight_decay=4e-5)

loop = importlib.import_module("paddleseg.core.train")  # paddleseg.core.train is the function in it
recorded = []
compute = loop.loss_computation


def recording(*args, **kwargs):
    found = compute(*args, **kwargs)
    recorded.append([float(one.numpy().reshape(-1)[0]) for one in found])
    return found


def areas(prediction, label, classes, ignore_index=255):
    """paddleseg.utils.metrics.calculate_area, which is of a Paddle without tensors of no dimension."""
    seen = label != ignore_index
    pairs = paddle.stack([prediction.astype("int64"), label.astype("int64")])
    hits = [[(pairs[0] == k) & (pairs[1] == k) & seen, (pairs[0] == k) & seen, pairs[1] == k] for k in range(classes)]
    sums = [[mask.astype("int64").sum().reshape([1]) for mask in masks] for masks in hits]
    return tuple(paddle.concat(column) for column in zip(*sums))


loop.loss_computation = recording
metrics.calculate_area = areas
loop.train(
    network,
    Images(options.batch * options.iterations),
    val_dataset=Images(options.evaluate, "val") if options.evaluate else None,
    optimizer=optimizer,
    save_dir="saved",
    iters=options.iterations,
    batch_size=options.batch,
    save_interval=options.iterations,
    log_iters=100,
    losses={"types": kind * count, "coef": [1.0] + [0.4] * (count - 1)},
    precision=options.precision,
    use_ema=options.ema,
    test_config={"auc_roc": False},
)
arrays = {"state_" + name: value.numpy() for name, value in network.state_dict().items()}
arrays["losses"] = np.asarray(recorded)
arrays["rate"] = np.asarray(optimizer.get_lr())
np.savez(options.out, **arrays)
print(len(recorded), "updates; losses", [round(sum(loss), 4) for loss in recorded], file=sys.stderr)
