"""`bench rescue`: a job that runs in k chunks, against accumulation by hand of the same micro-batch, as a ratio of samples/s.

On the plain CPU, so that Paddle's own computing is timed and no simulated device. Three processes for each model and k take
turns, a step each and never at the same time, in the order A B B A: one without the preload, which accumulates by hand, and
two under it whose loop knows of no chunks, one for each kind of loss. These are told their size by a request.json, as
`bsguard set` writes it, and believe in a device that has room for what the accumulation by hand took at its peak, and a
little more: what would not fit there may not be kept. `idle`: one chunk and room enough, against the same without the
preload.

Paddle's CPU draws dropout's masks one number at a time, as no device does. They are half of this Transformer's forward, and
so would be what a second forward costs: there is no dropout unless --dropout asks for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import retry
from benchmarks.job import Job, one_of, two
from demonstration import options
from support.environ import BUILD, VENV

WORKER = Path(__file__).resolve().parent / "rescue_worker.py"
MODELS = ("resnet18", "transformer")
LOSSES = ("foreseeable", "opaque")
CHUNKS = (1, 2, 4, 8)
BATCH = 32  # samples; as in rescue_worker.py
ROOM = 1.3  # of the peak by hand: with a tenth, which an allocator that caches cannot use, and a little for what saves a forward
AMPLE = 4  # of the peak of the whole batch
WARM_STEPS = 4
PATIENCE = 20  # seconds for a request to be answered; it takes one step


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "rescue",
        allow_abbrev=False,
        help="samples a second of a job in chunks over those of accumulation by hand, on the plain CPU",
    )
    parser.add_argument(
        "models",
        nargs="*",
        type=one_of(MODELS, "model"),
        metavar="MODEL",
        help=f"of {', '.join(MODELS)} (default: all)",
    )
    parser.add_argument(
        "--chunks",
        type=_chunks,
        default=list(CHUNKS),
        metavar="K,...",
        help=f"divisors of the batch of {BATCH}; 1 is idle (default: {','.join(map(str, CHUNKS))})",
    )
    parser.add_argument("--rounds", type=options.count, default=3, metavar="N", help="rounds of a set (default: 3)")
    parser.add_argument("--steps", type=two, default=6, metavar="N", help="steps a round, at least 2 (default: 6)")
    parser.add_argument(
        "--sets",
        type=options.count,
        default=3,
        metavar="N",
        help="how often with new processes, which are never quite alike (default: 3)",
    )
    parser.add_argument(
        "--dropout",
        type=options.fraction,
        default=0.0,
        metavar="P",
        help="of the Transformer (default: 0; masks take a CPU long)",
    )
    parser.add_argument(
        "--retry", action="store_true", help="instead: milliseconds from the exception to the next attempt"
    )
    parser.add_argument(
        "--networks",
        type=options.count,
        default=40,
        metavar="N",
        help="of --retry: each fails three times (default: 40)",
    )

    def chosen(asked: Any) -> int:
        models = asked.models or list(MODELS)
        if asked.retry:
            return retry.run(models, asked.networks)
        return run(models, asked.chunks, asked.sets, asked.rounds, asked.steps, asked.dropout)

    parser.set_defaults(run=chosen)


def _chunks(text: str) -> list[int]:
    found = [options.count(word) for word in text.split(",")]
    odd = [k for k in found if BATCH % k]
    if odd:
        raise argparse.ArgumentTypeError(f"{odd[0]} is no divisor of the batch of {BATCH}")
    return found


class Worker(Job):
    """A rescue_worker.py, plain (device_bytes 0) or under the preload."""

    def __init__(self, model: str, dropout: float, folder: Path, device_bytes: int = 0) -> None:
        folder.mkdir()
        command: list[object] = [VENV / "bin" / "python", WORKER, model, "--dropout", dropout]
        if device_bytes:
            command += ["--as-device", device_bytes]
        driver = {"LD_LIBRARY_PATH": str(BUILD / "simgpu" / "lib"), "SIMGPU_MEMORY": str(1 << 36)}
        super().__init__(command, bool(device_bytes), folder, driver)
        self._folder = folder

    def run(self, steps: int, chunks: int, loss: str) -> list[float]:
        """Times of so many steps in seconds."""
        self.order(json.dumps({"steps": steps, "chunks": chunks, "loss": loss}))
        return self.answer()

    def peak(self) -> int:
        """Bytes that tensors took at their highest so far."""
        self.order(json.dumps({"peak": True}))
        return self.answer()

    def split(self, chunks: int, loss: str) -> None:
        """Has bsguard run the batch in so many chunks from now on. Raises RuntimeError where it does not."""
        self.run(1, 1, loss)
        (folder,) = (path.parent for path in (self._folder / "bsguard").glob("*/control.json"))
        request = folder / "request.json"
        draft = folder / "request.draft"
        draft.write_text(json.dumps({"schema": "bsguard.request/1", "micro_batch": BATCH // chunks}))
        draft.rename(request)
        until = time.monotonic() + PATIENCE
        while request.exists() and time.monotonic() < until:
            self.run(1, 1, loss)
        said = json.loads((folder / "control.json").read_text())
        if said["accumulation_steps"] != chunks:
            raise RuntimeError(f"the request for {chunks} chunks was not obeyed: {said}")


def measure(model: str, chunks: int, rounds: int, steps: int, dropout: float, folder: Path) -> dict[str, list[float]]:
    """{loss, or "idle" at one chunk: [guarded samples/s over plain of each round]}."""
    jobs: list[Worker] = []
    guarded: dict[str, Worker] = {}
    try:
        plain = Worker(model, dropout, folder / "plain")
        jobs.append(plain)
        for loss in LOSSES:
            plain.run(WARM_STEPS, chunks, loss)
        device = int(plain.peak() * (AMPLE if chunks == 1 else ROOM))
        for loss in LOSSES if chunks > 1 else LOSSES[:1]:
            guarded[loss] = Worker(model, dropout, folder / loss, device)
            jobs.append(guarded[loss])
            if chunks > 1:
                guarded[loss].split(chunks, loss)
            guarded[loss].run(WARM_STEPS, 1, loss)
        found: dict[str, list[float]] = {loss: [] for loss in guarded}
        for _ in range(rounds):
            by_hand: dict[str, list[float]] = {loss: [] for loss in guarded}
            rescued: dict[str, list[float]] = {loss: [] for loss in guarded}
            for _ in range(steps // 2):
                for loss, job in guarded.items():
                    by_hand[loss] += plain.run(1, chunks, loss)
                    rescued[loss] += job.run(2, 1, loss)
                    by_hand[loss] += plain.run(1, chunks, loss)
            for loss in guarded:
                found[loss].append(statistics.median(by_hand[loss]) / statistics.median(rescued[loss]))
        return found if chunks > 1 else {"idle": found[LOSSES[0]]}
    finally:
        for job in jobs:
            job.end()


def run(models: list[str], chunks: list[int], sets: int, rounds: int, steps: int, dropout: float) -> int:
    """Prints one line of JSON for each model, k and loss; returns the exit status."""
    for model in models:
        for k in chunks:
            found: dict[str, list[float]] = {}
            try:
                for _ in range(sets):
                    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
                        for loss, ratios in measure(model, k, rounds, steps, dropout, Path(folder)).items():
                            found.setdefault(loss, []).extend(ratios)
            except (RuntimeError, OSError, ValueError) as error:
                print(f"bench: rescue {model} k={k}: {error}", file=sys.stderr)
                return 1
            for loss, ratios in found.items():
                row = {"bench": "rescue", "model": model, "k": k, "loss": loss}
                row.update(
                    ratio=round(statistics.median(ratios), 4),
                    ratio_min=round(min(ratios), 4),
                    ratio_max=round(max(ratios), 4),
                )
                print(json.dumps(row), flush=True)
    return 0
