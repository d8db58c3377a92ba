"""PaddleDetection's own Trainer on a generated COCO data set: det.py OUT.npz [options]

Saves the losses of every update and the final weights.
"""

import argparse
import json
import os
import sys

import cv2
import numpy as np
import paddle

np.int, np.float, np.bool = int, float, bool  # as ppdet has it, which is older than NumPy 1.24
import ppdet.engine.callbacks  # noqa: E402
import yaml  # noqa: E402
from ppdet.core.workspace import load_config  # noqa: E402
from ppdet.engine import Trainer  # noqa: E402

# ppdet lays numbers end to end that this Paddle gives without a dimension.
lay = paddle.concat
paddle.concat = lambda parts, *more, **named: lay([p if p.ndim else p.reshape([1]) for p in parts], *more, **named)

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--model", default="yolov3", choices=["yolov3", "ppyoloe", "faster", "ssd"])
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--iterations", type=int, default=3)
parser.add_argument("--pixels", type=int, default=128)
options = parser.parse_args()

paddle.set_device("gpu")
paddle.seed(5)
np.random.seed(5)
SIZE = options.pixels


def write_data(folder, count):
    """Images of noise with bright rectangles of three classes, and their annotation."""
    os.makedirs(folder, exist_ok=True)
    random = np.random.RandomState(1)
    images, boxes = [], []
    for index in range(count):
        image = random.randint(0, 128, (SIZE, SIZE, 3)).astype("uint8")
        for _ in range(random.randint(1, 4)):
            kind = random.randint(1, 4)
            left, top = (int(x) for x in random.randint(0, SIZE // 2, 2))
            width, height = (int(x) for x in random.randint(SIZE // 5, SIZE // 2, 2))
            image[top : top + height, left : left + width, kind - 1] += 100
            box = {"id": len(boxes) + 1, "image_id": index, "category_id": int(kind), "iscrowd": 0}
            boxes.append(dict(box, bbox=[left, top, width, height], area=width * height))
        name = "%d.png" % index
        cv2.imwrite(os.path.join(folder, name), image)
        images.append({"id": index, "file_name": name, "width": SIZE, "height": SIZE})
    kinds = [{"id": kind, "name": "kind%d" % kind} for kind in (1, 2, 3)]
    with open(os.path.join(folder, "annotation.json"), "w") as file:
        json.dump({"images": images, "annotations": boxes, "categories": kinds}, file)


ANCHORS = [[10, 13], [16, 30], [33, 23], [30, 61], [62, 45], [59, 119], [116, 90], [156, 198], [373, 326]]
MASKS = [[6, 7, 8], [3, 4, 5], [0, 1, 2]]
NORMALIZE = {"NormalizeImage": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "is_scale": True}}
RESIZE = {"Resize": {"target_size": [SIZE, SIZE], "keep_ratio": False, "interp": 2}}
NMS = {"name": "MultiClassNMS", "keep_top_k": 10, "score_threshold": 0.01, "nms_threshold": 0.5, "nms_top_k": 100}

SAMPLED, PROPOSED = {"use_random": False}, {"min_size": 0.0, "nms_thresh": 0.7}

MODELS = {
    "yolov3": {
        "architecture": "YOLOv3",
        "YOLOv3": {"backbone": "MobileNet", "neck": "YOLOv3FPN", "yolo_head": "YOLOv3Head", "post_process": None},
        "MobileNet": {"scale": 0.25, "feature_maps": [4, 6, 13], "with_extra_blocks": False, "extra_block_filters": []},
        "YOLOv3FPN": {},
        "YOLOv3Head": {"anchors": ANCHORS, "anchor_masks": MASKS, "loss": "YOLOv3Loss"},
        "YOLOv3Loss": {"ignore_thresh": 0.7, "downsample": [32, 16, 8], "label_smooth": False},
        "TrainReader": {
            "sample_transforms": [
                {"Decode": {}},
                RESIZE,
                {"NormalizeBox": {}},
                {"PadBox": {"num_max_boxes": 5}},
                {"BboxXYXY2XYWH": {}},
            ],
            "batch_transforms": [
                NORMALIZE,
                {"Permute": {}},
                {"Gt2YoloTarget": {"anchor_masks": MASKS, "anchors": ANCHORS, "downsample_ratios": [32, 16, 8]}},
            ],
        },
    },
    "ppyoloe": {
        "architecture": "YOLOv3",
        "norm_type": "bn",
        "YOLOv3": {"backbone": "CSPResNet", "neck": "CustomCSPPAN", "yolo_head": "PPYOLOEHead", "post_process": None},
        "CSPResNet": {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 96, 128], "return_idx": [1, 2, 3]},
        "CustomCSPPAN": {"out_channels": [96, 64, 32], "stage_num": 1, "block_num": 1, "act": "swish", "spp": True},
        "PPYOLOEHead": {
            "fpn_strides": [32, 16, 8],
            "static_assigner_epoch": 1,
            "use_varifocal_loss": True,
            "loss_weight": {"class": 1.0, "iou": 2.5, "dfl": 0.5},
            "static_assigner": "ATSSAssigner",
            "assigner": "TaskAlignedAssigner",
            "nms": NMS,
        },
        "ATSSAssigner": {"topk": 9},
        "TaskAlignedAssigner": {"topk": 13, "alpha": 1.0, "beta": 6.0},
        "TrainReader": {
            "sample_transforms": [{"Decode": {}}, RESIZE],
            "batch_transforms": [NORMALIZE, {"Permute": {}}, {"PadGT": {}}],
        },
    },
    "faster": {
        "architecture": "FasterRCNN",
        "FasterRCNN": {
            "backbone": "ResNet",
            "neck": "FPN",
            "rpn_head": "RPNHead",
            "bbox_head": "BBoxHead",
            "bbox_post_process": "BBoxPostProcess",
        },
        "ResNet": {"depth": 18, "norm_type": "bn", "freeze_at": 0, "return_idx": [0, 1, 2, 3], "num_stages": 4},
        "FPN": {"out_channel": 32},
        "RPNHead": {
            "anchor_generator": {
                "aspect_ratios": [0.5, 1.0, 2.0],
                "anchor_sizes": [[16], [32], [64], [128], [256]],
                "strides": [4, 8, 16, 32, 64],
            },
            "rpn_target_assign": dict(
                SAMPLED, batch_size_per_im=64, fg_fraction=0.5, negative_overlap=0.3, positive_overlap=0.7
            ),
            "train_proposal": dict(PROPOSED, pre_nms_top_n=200, post_nms_top_n=100, topk_after_collect=True),
            "test_proposal": dict(PROPOSED, pre_nms_top_n=100, post_nms_top_n=100),
        },
        "BBoxHead": {
            "head": "TwoFCHead",
            "roi_extractor": {"resolution": 7, "sampling_ratio": 0, "aligned": True},
            "bbox_assigner": "BBoxAssigner",
        },
        "BBoxAssigner": dict(SAMPLED, batch_size_per_im=64, bg_thresh=0.5, fg_thresh=0.5, fg_fraction=0.25),
        "TwoFCHead": {"out_channel": 64},
        "BBoxPostProcess": {"decode": "RCNNBox", "nms": NMS},
        "TrainReader": {
            "sample_transforms": [{"Decode": {}}, RESIZE, NORMALIZE, {"Permute": {}}],
            "batch_transforms": [{"PadBatch": {"pad_to_stride": 32}}],
            "collate_batch": False,
        },
    },
}

write_data("data", options.batch * options.iterations)
config = {
    "use_gpu": True,
    "log_iter": 1,
    "save_dir": "saved",
    "snapshot_epoch": 1,
    "epoch": 1,
    "weights": "saved/model_final",
    "metric": "COCO",
    "num_classes": 3,
    "worker_num": 0,
    "use_ema": options.model == "ppyoloe",
    "TrainDataset": {
        "name": "COCODataSet",
        "image_dir": "",
        "anno_path": "annotation.json",
        "dataset_dir": "data",
        "data_fields": ["image", "gt_bbox", "gt_class", "is_crowd"],
    },
    "TestReader": {"sample_transforms": [{"Decode": {}}, RESIZE, NORMALIZE, {"Permute": {}}]},
    "LearningRate": {
        "base_lr": 0.002,
        "schedulers": [
            {"name": "PiecewiseDecay", "gamma": 0.1, "milestones": [10]},
            {"name": "LinearWarmup", "start_factor": 0.1, "steps": 3},
        ],
    },
    "OptimizerBuilder": {
        "optimizer": {"momentum": 0.9, "type": "Momentum"},
        "regularizer": {"factor": 0.0005, "type": "L2"},
    },
}
config.update(MODELS[options.model])
config["TrainReader"].update(batch_size=options.batch, shuffle=True, drop_last=True)
dataset = config.pop("TrainDataset")
name = dataset.pop("name")
lines = ["    %s: %s" % (key, json.dumps(value)) for key, value in dataset.items()]
text = "\n".join([yaml.safe_dump(config), "TrainDataset:", "  !" + name, *lines, ""])
with open("config.yml", "w") as file:
    file.write(text)

config = load_config("config.yml")
trainer = Trainer(config, mode="train")
recorded = []


class Record(ppdet.engine.callbacks.Callback):
    def on_step_end(self, status):
        losses = status["training_staus"].get()
        recorded.append([float(losses[name]) for name in sorted(losses)])


trainer.register_callbacks([Record(trainer)])
trainer.train(validate=False)
arrays = {"state_" + name: value.numpy() for name, value in trainer.model.state_dict().items()}
arrays["losses"] = np.asarray(recorded)
np.savez(options.out, **arrays)
print(len(recorded), "updates; losses", [loss[0] for loss in recorded], file=sys.stderr)
