"""A job that cannot be split is started again by its suite's own option, from its last checkpoint.

The stand-ins have the argument parsers of the suites, read a configuration as they do, and keep checkpoints where they do;
they run out of memory above a batch, as far as anybody can tell from the run folder that they leave.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from bsguard_cli.relaunch import change, get, last_checkpoint, put, value_of
from bsguard_cli.suites import SUITES, Setting

HEAD = """
import argparse, json, os, sys, time
import yaml

def checkpoint(*parts):
    for part in parts:
        os.makedirs(os.path.dirname(part), exist_ok=True)
        open(part, "w").close()

def train(batch, resumed, **more):
    if batch > int(os.environ["FITS"]):
        folder = f"bsguard/{time.strftime('%Y%m%dT%H%M%SZ')}-{os.getpid()}"
        os.makedirs(folder)
        with open(f"{folder}/report.json", "w") as file:
            json.dump({"schema": "bsguard.report/1", "pid": os.getpid(), "totals": {"unrescued": 1},
                       "oom": {"verdict": "unrescued", "answer": "cannot"}}, file)
        sys.exit(1)
    print(json.dumps({"batch": batch, "resumed": resumed, **more}))

class Tagged(yaml.SafeLoader):
    pass

Tagged.add_multi_constructor("!", lambda loader, suffix, node: loader.construct_mapping(node))

def load(path):
    with open(path) as file:
        config = yaml.load(file, Tagged)
    for base in config.pop("_BASE_", []):
        config = {**load(os.path.join(os.path.dirname(path), base)), **config}
    return config

def override(config, pairs):
    for pair in pairs or []:
        name, value = pair.split("=")
        *path, last = name.split(".")
        at = config
        for part in path:
            at = at[part]
        at[last] = yaml.safe_load(value)
    return config
"""
OCR = """
import ppocr
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config"); parser.add_argument("-o", "--opt", nargs="+"); parser.add_argument("-p")
options = parser.parse_args()
config = override(load(options.config), options.opt)
folder = config["Global"]["save_model_dir"]
checkpoint(f"{folder}/latest.pdparams", f"{folder}/latest.pdopt", f"{folder}/best_accuracy.pdparams")
assert config["Global"]["epoch_num"] == 3  # what the user had set stays
assert config["Train"]["sampler"]["first_bs"] == config["Train"]["loader"]["batch_size_per_card"]
train(config["Train"]["loader"]["batch_size_per_card"], config["Global"].get("checkpoints"))
"""
DETECTION = """
from ppdet import nothing
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config"); parser.add_argument("-o", "--opt", nargs="*")
parser.add_argument("-r", "--resume"); parser.add_argument("--eval", action="store_true")
options = parser.parse_args()
config = override(load(options.config), options.opt)
folder = f"{config['save_dir']}/{os.path.basename(options.config).split('.')[0]}"
checkpoint(f"{folder}/0.pdparams", f"{folder}/0.pdopt", f"{folder}/1.pdparams")  # the second is not whole
train(config["TrainReader"]["batch_size"], options.resume, evaluates=options.eval)
"""
CLAS = """
from ppcls import nothing
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config"); parser.add_argument("-o", "--override", action="append", default=[])
options = parser.parse_args()
config = override(load(options.config), options.override)
folder = f"{config['Global']['output_dir']}/{config['Arch']['name']}"
checkpoint(f"{folder}/latest.pdparams", f"{folder}/latest.pdopt")
train(config["DataLoader"]["Train"]["sampler"]["batch_size"], config["Global"].get("checkpoints"))
"""
SEG = """
from paddleseg import nothing
parser = argparse.ArgumentParser()
parser.add_argument("--config"); parser.add_argument("--batch_size", type=int); parser.add_argument("--resume_model")
parser.add_argument("--save_dir", default="./output"); parser.add_argument("--do_eval", action="store_true")
options = parser.parse_args()
checkpoint(f"{options.save_dir}/iter_9/model.pdparams", f"{options.save_dir}/iter_9/model.pdopt")
train(options.batch_size or load(options.config)["batch_size"], options.resume_model)
"""
NLP = """
from paddlenlp import nothing
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir"); parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1); parser.add_argument("--resume_from_checkpoint")
options = parser.parse_args()
checkpoint(f"{options.output_dir}/checkpoint-20/trainer_state.json")
train(options.per_device_train_batch_size, options.resume_from_checkpoint, steps=options.gradient_accumulation_steps)
"""
OWN = """
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH_SIZE", "64")))
train(parser.parse_args().batch_size, None)
"""
CONFIGS = {
    "ocr.yml": "Global: {epoch_num: 9, save_model_dir: ./out/rec}\n"
    "Train:\n  loader: {batch_size_per_card: &bs 40}\n  sampler: {first_bs: *bs}\n",
    "base/reader.yml": "TrainReader:\n  batch_size: 8\n  batch_transforms:\n  - PadBatch: {}\n",
    "yolo.yml": "_BASE_: [base/reader.yml]\nsave_dir: out\nLearningRate:\n  schedulers:\n  - !Cosine {max_epochs: 3}\n",
    "clas.yaml": "Global: {output_dir: ./out/}\nArch: {name: ResNet50}\nDataLoader: {Train: {sampler: {batch_size: 64}}}\n",
    "seg.yml": "batch_size: 6\n",
}
# name: script, arguments, what fits, what the last try says, and of what is told
CASES = {
    "ocr": (OCR, ["-c", "ocr.yml", "-o", "Global.epoch_num=3", "-p", "x"], 20,
            {"batch": 20, "resumed": "out/rec/latest"},
            ["PaddleOCR's Train.loader.batch_size_per_card 20 instead of 40, Train.sampler.first_bs with it", "rate x0.5"]),
    "detection": (DETECTION, ["-c", "yolo.yml", "--eval"], 2, {"batch": 2, "resumed": "out/yolo/0", "evaluates": True},
                  ["TrainReader.batch_size 4 instead of 8", "TrainReader.batch_size 2 instead of 4", "out/yolo/0"]),
    "clas": (CLAS, ["-c", "clas.yaml", "-o", "Arch.name=PPLCNet"], 32, {"batch": 32, "resumed": "out/PPLCNet/latest"},
             ["DataLoader.Train.sampler.batch_size 32 instead of 64"]),
    "seg": (SEG, ["--config", "seg.yml", "--do_eval", "--save_dir=there"], 3, {"batch": 3, "resumed": "there/iter_9"},
            ["--batch_size 3 instead of 6"]),
    "nlp": (NLP, ["--output_dir", "out", "--per_device_train_batch_size=6"], 3,
            {"batch": 3, "resumed": "out/checkpoint-20", "steps": 2},
            ["--gradient_accumulation_steps 2 instead of 1: the batch of a step stays"]),
    "own": (OWN, ["--batch-size", "50"], 25, {"batch": 25, "resumed": None}, ["--batch-size 25 instead of 50"]),
}  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with the configurations, and with packages by the names of the suites."""
    for name, text in CONFIGS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for one in SUITES:
        (tmp_path / "tools" / one.package).mkdir(parents=True)
        (tmp_path / "tools" / one.package / "__init__.py").write_text("nothing = None\n")
    return tmp_path


def write_script(folder: Path, text: str) -> Path:
    path = folder / "tools" / "train.py"
    path.write_text(HEAD + text)
    return path


@pytest.mark.parametrize("name", list(CASES))
def test_a_suite_is_started_again_by_its_own_option(start, suite: Path, name: str) -> None:
    script, arguments, fits, last, told = CASES[name]
    path = write_script(suite, script).relative_to(suite)
    done = start("run", "--restarts", "3", "--", sys.executable, path, *arguments, env={"FITS": str(fits)}, cwd=suite)
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == last, done
    for text in told:
        assert text in done.stderr, done
    assert f"restarted as: {sys.executable} {path}" in done.stderr


def test_a_variable(start, suite: Path) -> None:
    path = write_script(suite, OWN)
    words = ["--", sys.executable, path]
    done = start("run", "--restarts", "1", *words, env={"FITS": "32", "BATCH_SIZE": "64"}, cwd=suite)
    assert json.loads(done.stdout)["batch"] == 32 and "BATCH_SIZE=32 instead of 64" in done.stderr, done
    none_left = start("run", "--restarts", "1", *words, "--batch-size=9", env={"FITS": "0"}, cwd=suite)
    assert none_left.returncode == 1 and "no restart is left of 1" in none_left.stderr, none_left
    unknown = start("run", "--restarts", "1", *words, env={"FITS": "32"}, cwd=suite)
    assert unknown.returncode == 1 and "no option for its batch is known" in unknown.stderr, unknown


def test_every_suite_is_tested() -> None:
    scripts = "".join(script for script, *_ in CASES.values())
    for one in SUITES:
        assert f"{one.package}\n" in scripts or f"from {one.package} " in scripts, one.name


def test_an_old_checkpoint_is_left_alone(suite: Path) -> None:
    path = write_script(suite, SEG)
    (seg,) = (one for one in SUITES if one.name == "PaddleSeg")
    folder = suite / "output" / "iter_5"
    folder.mkdir(parents=True)
    for name in ("model.pdparams", "model.pdopt"):
        (folder / name).touch()
    command = [sys.executable, str(path), "--batch_size", "8", "--save_dir", str(suite / "output")]
    assert last_checkpoint(seg, command, 0) == folder
    os.utime(folder / "model.pdopt", (1000, 1000))
    assert last_checkpoint(seg, command, 2000) is None
    assert "from the start" in change(command, {}, 2000).told
    told = change([*command, "--resume_model", "mine"], {}, 2000)
    assert "from mine again" in told.told and told.command[-1] == "mine"


@pytest.mark.parametrize(
    "words, name, expected",
    [
        ("-c x", "batch", "-c x -o batch=4"),
        ("-o batch=8 lr=1 -c x", "batch", "-o batch=4 lr=1 -c x"),
        ("-o lr=1 -c x", "batch", "-o lr=1 batch=4 -c x"),
        ("--opt lr=1 mybatch=2", "batch", "--opt lr=1 mybatch=2 batch=4"),
    ],
)
def test_a_list_of_settings_is_not_replaced(words: str, name: str, expected: str) -> None:
    setting = Setting(name, "listed", ("-o", "--opt"))
    assert put(words.split(), setting, "4") == expected.split()
    assert get(expected.split(), setting) == "4"


def test_a_configuration_that_is_none(suite: Path) -> None:
    path = write_script(suite, OCR)
    (ocr,) = (one for one in SUITES if one.name == "PaddleOCR")
    config = suite / "bad.yml"
    command = [sys.executable, str(path), "-c", str(config)]
    for text in (
        "",
        "- 1\n",
        "a: [",
        "_BASE_: [bad.yml]\n",
        "Train: {loader: 3}\n",
        "x: !!python/object/apply:os.abort []\n",
    ):
        config.write_text(text)
        assert value_of(ocr, command, ocr.size) is None
        assert change(command, {}, 0) is None
    config.write_text(textwrap.dedent(CONFIGS["ocr.yml"]))
    assert value_of(ocr, command, ocr.size) == "40"
