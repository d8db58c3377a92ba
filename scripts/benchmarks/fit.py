"""`bench fit`: how well is the peak of a batch foretold that was never run?

Each model runs at a few small sizes under the preload; report.json of that run has the fit. The same model is then run
alone at larger sizes, without the preload, and Paddle's own allocated peak is held against the line. Prints a table, or
one line of JSON a row; the exit status is 1 where the median error is above 5 %.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from support.environ import BUILD, REPO, VENV, job_environment

SIZED = Path(__file__).resolve().parent / "sized.py"
MODELS = ("mlp", "cnn", "transformer")
SMALL = (16, 32, 48)
LARGE = (64, 128, 256)
MEMORY = "1GiB"  # far more than any of the models takes
MOST = 5.0  # per cent


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "fit",
        allow_abbrev=False,
        help="the peak of batches that were never run: foretold from smaller ones, and measured",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON a row instead of a table")
    parser.set_defaults(run=lambda asked: run(asked.json))


def train(model: str, sizes: tuple[int, ...], folder: Path, preload: bool) -> int:
    """The allocated peak in bytes of a run at these sizes. Raises RuntimeError with what it said where it died."""
    environment = {**job_environment(), "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    if preload:
        environment["LD_PRELOAD"] = str(BUILD / "libbsguard.so")
    command = [REPO / "scripts" / "simgpu", "--memory", MEMORY, "--", VENV / "bin" / "python", SIZED, model, *sizes]
    words = [str(word) for word in command]
    job = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    if job.returncode != 0:
        raise RuntimeError(f"{model} ended with status {job.returncode}:\n{job.stderr[-2000:]}")
    return int(job.stdout.splitlines()[-1])


def rows_of(model: str) -> list[dict]:
    """What is foretold for each larger size, and what it took."""
    with tempfile.TemporaryDirectory(prefix="bsguard-fit-") as name:
        folder = Path(name)
        train(model, SMALL, folder, preload=True)
        (path,) = (folder / "bsguard").glob("*/report.json")
        fit = json.loads(path.read_text())["fit"]
        if fit is None:
            raise RuntimeError(f"{model}: the report has no fit")
        rows = []
        for size in LARGE:
            measured = train(model, (size,), folder, preload=False)
            predicted = fit["fixed_bytes"] + fit["per_sample_bytes"] * size
            error = 100 * abs(predicted - measured) / measured
            rows.append(
                {
                    "model": model,
                    "batch": size,
                    "points": len(fit["points"]),
                    "predicted_bytes": predicted,
                    "measured_bytes": measured,
                    "error_percent": round(error, 2),
                }
            )
        return rows


def run(as_json: bool) -> int:
    """Prints the rows and the median; the exit status."""
    rows = [row for model in MODELS for row in rows_of(model)]
    median = statistics.median(row["error_percent"] for row in rows)
    if as_json:
        for row in rows:
            print(json.dumps(row))
        print(json.dumps({"median_error_percent": median}))
    else:
        print(f"{'model':<12} {'batch':>6} {'points':>6} {'predicted':>12} {'measured':>12} {'error':>8}")
        for row in rows:
            print(
                f"{row['model']:<12} {row['batch']:>6} {row['points']:>6} {row['predicted_bytes']:>12} "
                f"{row['measured_bytes']:>12} {row['error_percent']:>6.2f} %"
            )
        print(f"median error {median:.2f} % (at most {MOST:.0f} % is good)")
    return 1 if median > MOST else 0
