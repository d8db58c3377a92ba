"""The training suites whose own options make a batch smaller, and where each keeps its checkpoints: a table, data only.

A suite is recognized by what its training script imports. The table was held against the sources of each: their argument
parsers (`-o` of PaddleOCR and PaddleDetection takes a list, and a second one would replace the first; that of PaddleClas is
repeated), their names of settings, and their folders of checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

OPTION = "option"  # --name VALUE
LISTED = "listed"  # -o NAME=VALUE NAME=VALUE ...
REPEATED = "repeated"  # -o NAME=VALUE -o NAME=VALUE ...


@dataclass(frozen=True)
class Setting:
    """Something that a command line or a configuration may set. flags: how it is given where it is no option of its own.
    default: that of the suite; None: it has none that holds for all of it."""

    name: str
    style: str = OPTION
    flags: tuple[str, ...] = ()
    default: Optional[str] = None


@dataclass(frozen=True)
class Checkpoints:
    """folder: the setting that names their folder; below it, in a folder named by `below`, are either files PREFIX.ENDING
    for each ending, or folders PREFIX with these files. resume: the setting that takes one up, named by PREFIX."""

    folder: Setting
    resume: Setting
    pattern: str
    files: tuple[str, ...]
    below: Optional[Setting] = None
    below_config: bool = False  # a folder that is named after the configuration file


@dataclass(frozen=True)
class Suite:
    """size: samples of a step on one device. same: settings that must be the same number, where they are there at all.
    accumulation: pieces of a step; with it the batch of a step, and so the learning rate, stays."""

    name: str
    package: str
    size: Setting
    config: tuple[str, ...] = ("-c", "--config")
    same: tuple[Setting, ...] = ()
    accumulation: Optional[Setting] = None
    checkpoints: Optional[Checkpoints] = None


def _o(style: str, name: str, default: Optional[str] = None) -> Setting:
    return Setting(name, style, ("-o", "--opt") if style == LISTED else ("-o", "--override"), default)


SUITES = (
    Suite("PaddleOCR", "ppocr", _o(LISTED, "Train.loader.batch_size_per_card"),
          same=(_o(LISTED, "Train.sampler.first_bs"),),
          checkpoints=Checkpoints(_o(LISTED, "Global.save_model_dir", "output"), _o(LISTED, "Global.checkpoints"),
                                  r"(latest|iter_epoch_\d+)", (".pdparams", ".pdopt"))),
    Suite("PaddleDetection", "ppdet", _o(LISTED, "TrainReader.batch_size"),
          checkpoints=Checkpoints(_o(LISTED, "save_dir", "output"), Setting("--resume", flags=("-r",)),
                                  r"(\d+|model_final)", (".pdparams", ".pdopt"), below_config=True)),
    Suite("PaddleClas", "ppcls", _o(REPEATED, "DataLoader.Train.sampler.batch_size"),
          checkpoints=Checkpoints(_o(REPEATED, "Global.output_dir", "output"), _o(REPEATED, "Global.checkpoints"),
                                  r"(latest|epoch_\d+)", (".pdparams", ".pdopt"), below=_o(REPEATED, "Arch.name"))),
    Suite("PaddleSeg", "paddleseg", Setting("--batch_size"), config=("--config",),
          checkpoints=Checkpoints(Setting("--save_dir", default="output"), Setting("--resume_model"),
                                  r"iter_\d+", ("model.pdparams", "model.pdopt"))),
    Suite("PaddleNLP", "paddlenlp", Setting("--per_device_train_batch_size", default="8"), config=(),
          accumulation=Setting("--gradient_accumulation_steps", default="1"),
          checkpoints=Checkpoints(Setting("--output_dir"), Setting("--resume_from_checkpoint"),
                                  r"checkpoint-\d+", ("trainer_state.json",))),
)  # fmt: skip

# Where nothing of the table is meant: an option, or a variable, that anybody would call so.
COMMON_OPTIONS = r"--?(train[-_])?(batch([-_]?size)?|bs)"
COMMON_VARIABLES = ("BATCH_SIZE", "TRAIN_BATCH_SIZE")
