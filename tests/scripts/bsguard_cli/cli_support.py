"""What the tests of the command share: runs of our own making, and how the command is started."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from support.environ import REPO, job_environment

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"
RESCUED = RECORDED / "20261130T232328Z-30825"

# A training loop of a user: a network whose activations decide, an option for the batch size, nothing of bsguard.
JOB = """
import argparse, numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F

class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    def forward(self, x):
        out = self.body(x)
        return out - out.mean(axis=0) if options.centred else out

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1024)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--centred", action="store_true", help="rows depend on each other: the batch cannot be split")
options = parser.parse_args()
paddle.set_device("gpu"); paddle.seed(0)
net = Net(); optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
random = np.random.RandomState(0)
for step in range(options.steps):
    x = paddle.to_tensor(random.rand(options.batch_size, 64).astype("float32"))
    y = paddle.to_tensor(random.randint(0, 10, (options.batch_size, 1)))
    loss = F.cross_entropy(net(x), y)
    loss.backward(); optimizer.step(); optimizer.clear_grad()
    print("step", step, float(loss), flush=True)
"""
MEMORY = "9MiB"  # a step takes some 13 MiB as a whole, and fits in two pieces


@dataclass
class Said:
    """What a call of the command printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def arguments_of(*arguments: Any) -> list[str]:
    """The command as a process: what the console script does."""
    return [sys.executable, "-c", "from bsguard_cli.main import main; main()", *map(str, arguments)]


def process_environment(**more: str) -> dict[str, str]:
    return {**job_environment(), "PYTHONPATH": str(REPO / "scripts"), **more}


def simulated(script: Path, *arguments: Any, memory: str = MEMORY) -> list[str]:
    """The command line of a job on the simulated GPU."""
    return [
        str(REPO / "scripts" / "simgpu"),
        "--memory",
        memory,
        "--",
        sys.executable,
        str(script),
        *map(str, arguments),
    ]


def full_report() -> dict[str, Any]:
    """A report with everything in it that the library may say: an OOM that could not be helped."""
    mib = 1 << 20
    site = {
        "site": 7,
        "frames": [
            "_ZN6paddle6memory10allocation9Allocator8AllocateEm+0x20 (libphi_core.so)",
            "_ZN3phi4CopyINS_13DeviceContextEEEvRKT_RKNS_11DenseTensorENS_5PlaceEbPS5_+0x4ef (libphi_core.so)",
            "_PyEval_EvalFrameDefault+0x2e53 (python3.11)",
        ],
        "raw": [],
    }
    return {
        "schema": "bsguard.report/1",
        "why": "unrescued",
        "time": "2026-11-30T18:31:22.000Z",
        "pid": 4711,
        "rank": None,
        "version": "0.1.0",
        "mode": "guard",
        "command": "train.py",
        "framework": "paddle 3.3.1",
        "device": {"device": 0, "name": "NVIDIA A10", "total_bytes": 24 << 30, "driver": 12040},
        "verdict": {
            "outcome": "unrescued",
            "cause": "leak",
            "culprit": "list kept at train.py:31",
            "cause_bytes": 9000 * mib,
            "fits_micro_batch": 12,
        },
        "oom": {
            "time": "2026-11-30T18:31:21.000Z",
            "mono_ns": 151233000111,
            "verdict": "unrescued",
            "answer": "cannot",
            "device": 0,
            "step": 117,
            "phase": "forward",
            "api": "cuMemAlloc_v2",
            "request_bytes": 64 * mib,
            "attempts": 8,
            "site": 7,
            "boundary": "ResNet",
            "batch": 32,
            "micro_batch": 32,
            "accumulation_steps": 1,
            "exactness": "refused",
            "because": "rows depend on their neighbours",
            "exception": "Out of memory error on GPU 0.",
            "signature": "float32[3,224,224]",
            "thread": 4711,
            "python_stack": ["train.py:31 in step", "train.py:60 in main"],
        },
        "memory": {
            "capacity_bytes": 24 << 30,
            "free_bytes": 30 * mib,
            "live_bytes": 20000 * mib,
            "peak_bytes": 21000 * mib,
            "not_in_ledger_bytes": (24 << 30) - 20030 * mib,
            "live_count": 812,
        },
        "accounting": {
            "capacity_bytes": 24 << 30,
            "parts": [
                {"part": "framework_live", "bytes": 18000 * mib},
                {"part": "framework_cached", "bytes": 2000 * mib},
                {"part": "other_processes", "bytes": 4000 * mib},
                {"part": "driver_own", "bytes": (24 << 30) - 24030 * mib},
                {"part": "free", "bytes": 30 * mib},
            ],
            "sum_bytes": 24 << 30,
            "framework_told": True,
        },
        "fit": {
            "boundary": "ResNet",
            "signature": "float32[3,224,224]",
            "method": "least_squares",
            "peaks_of": "framework",
            "points": [
                {"micro_batch": 8, "peak_bytes": 10365 * mib, "steps": 12},
                {"micro_batch": 16, "peak_bytes": 18940 * mib, "steps": 9},
            ],
            "fixed_bytes": 1790 * mib,
            "per_sample_bytes": 1072 * mib,
            "margin_bytes": 0,
            "error_permille": 2,
            "available_bytes": 20000 * mib,
            "largest_micro_batch": 16,
        },
        "state": {"parameter_bytes": 90 * mib, "gradient_bytes": 90 * mib, "optimizer_bytes": 180 * mib},
        "modules": [{"path": "/usr/lib/libphi_core.so", "build_id": "00ff"}],
        "fragmentation": {
            "idle_in_framework_bytes": 2000 * mib,
            "largest_free_piece_below_bytes": 64 * mib,
            "largest_free_piece_at_least_bytes": 32 * mib,
            "map": None,
        },
        "timeline_total": 0,
        "timeline": [],
        "control": {"sequence": 1, "applied": 1},
        "notes": {"FLAGS_allocator_strategy": "auto_growth"},
        "groups": {
            "total_bytes": 20000 * mib,
            "listed_bytes": 19000 * mib,
            "with_site_bytes": 12000 * mib,
            "phases": [{"phase": "forward", "bytes": 19000 * mib, "allocations": 700}],
            "rows": [
                {
                    "site": 7,
                    "phase": "forward",
                    "bytes": 12000 * mib,
                    "allocations": 600,
                    "first_step": 1,
                    "last_step": 117,
                },
                {
                    "site": None,
                    "phase": "init",
                    "bytes": 7000 * mib,
                    "allocations": 100,
                    "first_step": 1,
                    "last_step": 1,
                },
            ],
        },
        "growth": {
            "last_good_step": 116,
            "since_bytes": 77 * mib,
            "since": [],
            "trend": "leak",
            "steps": 116,
            "held_first_bytes": 400 * mib,
            "held_last_bytes": 9400 * mib,
            "bytes_per_step": 77 * mib,
        },
        "held": [{"what": "list kept at train.py:31", "tensors": 116, "bytes": 9000 * mib, "with_graph": 0}],
        "others": {"total": 1, "own_pid_seen": True, "processes": [{"pid": 99, "name": "python", "bytes": 4000 * mib}]},
        "holders": [
            {
                "bytes": 640 * mib,
                "api": "cuMemAlloc_v2",
                "step": 3,
                "phase": "forward",
                "site": 7,
                "kind": "plain",
            }
        ],
        "holders_bytes": 640 * mib,
        "sites": [site],
        "decisions_total": 1,
        "decisions": [
            {
                "sequence": 1,
                "time": "2026-11-30T18:30:13.000Z",
                "reason": "start",
                "boundary": "ResNet",
                "batch": 32,
                "micro_batch": 32,
                "accumulation_steps": 1,
                "why": "first step",
                "trigger": None,
            }
        ],
        "totals": {"ooms": 1, "absorbed": 2, "rescued_steps": 0, "unrescued": 1},
        "advice": [
            {
                "measure": "release",
                "text": "Keep numbers, not tensors: the list at train.py:31 holds 8.8 GiB.",
                "source": "measured: 116 tensors",
            },
            {"measure": "smaller_batch", "text": "Batch 12 with 3 accumulation steps fits.", "source": None},
        ],
        "missing": ["fragmentation: no map was made"],
    }


def write_run(
    folder: Path, events: list[dict[str, Any]], report: Optional[dict[str, Any]] = None, **control: Any
) -> Path:
    """Writes a run of our own making."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"schema": "bsguard.event/1", "time": "2026-11-30T18:30:12.001Z"}
    lines = [{**head, "seq": n, "mono_ns": 10**9 * n, **event} for n, event in enumerate(events, 1)]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    if control:
        base = {"schema": "bsguard.control/1", "sequence": 1, "pid": 4711}
        (folder / "control.json").write_text(json.dumps({**base, **control}))
    return folder


def started(total_bytes: int = 24 << 30, pid: int = 2**22 + 1) -> dict[str, Any]:
    """A start event of a process that is not there any more."""
    device = {"device": 0, "name": "NVIDIA A10", "total_bytes": total_bytes}
    return {"type": "start", "pid": pid, "command": "train.py", "framework": "paddle 3.3.1", "devices": [device]}
