"""bsguard plan: what fits on which card."""

from __future__ import annotations

import math
from typing import Any, Optional

import click

from bsguard_cli.errors import BAD, OK
from bsguard_cli.fit import HEADROOM, Fit, of_points, of_rank
from bsguard_cli.screen import json_option, print_json, run_argument
from bsguard_cli.words import SIZE_FORMS, parse_size, size

CARDS = (6, 8, 12, 16, 24, 40, 80)  # GB as they are sold: 10^9 bytes, which their drivers report at least, or nearly


class Size(click.ParamType):
    """Bytes, with an optional unit."""

    name = "size"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> int:
        if isinstance(value, int):
            return value
        parsed = parse_size(value)
        if not parsed:
            self.fail(
                f"{value!r} is not a size: {SIZE_FORMS}",
                param,
                ctx,
            )
        return parsed


class Peak(click.ParamType):
    """N:SIZE, a measured peak."""

    name = "peak"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        samples, _, text = value.partition(":")
        parsed = parse_size(text)
        if not samples.isascii() or not samples.isdigit() or not 0 < int(samples[:19]) < 2**31 or not parsed:
            self.fail(f"{value!r} is not allowed: SAMPLES:SIZE, such as 8:10365MB or 8:10GiB", param, ctx)
        return int(samples), parsed


@click.command("plan")
@run_argument
@click.option("--peak", "peaks", type=Peak(), metavar="N:SIZE", multiple=True,
    help="Plan from your own figures instead of a run: N samples took SIZE. Give it again for more.")  # fmt: skip
@click.option("--card", "cards", type=Size(), metavar="SIZE", multiple=True,
    help="Memory of a card, such as 24GB. Give it again for more. Left out: 6 to 80 GB.")  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1, 2**31), metavar="N", help="The batch to reach. Left out: that of the run."
)
@click.option("--lr", type=click.FloatRange(0, min_open=True), metavar="X", help="Its learning rate.")
@json_option
def command(
    run: Optional[str],
    peaks: tuple[tuple[int, int], ...],
    cards: tuple[int, ...],
    batch: Optional[int],
    lr: Optional[float],
    as_json: bool,
) -> None:
    """Say what fits on which card: micro-batch, accumulation steps, learning rate.

    The memory of n samples is taken as fixed + per_sample x n, from the report of RUN, or from the peaks of its steps
    at two or more micro-batches; 5 % of a card are kept free. With accumulation the batch stays, and so does the
    learning rate; where the batch itself is made smaller instead, the learning rate shrinks with it (linear scaling).

    \b
    bsguard plan --peak 1:2148MB --peak 4:5892MB --peak 8:10365MB --batch 32 --lr 0.007

    Exit status: 0; 1 where RUN says too little to plan, or nothing fits any of the cards.
    """
    if lr is not None and not math.isfinite(lr):
        raise click.UsageError("--lr must be a number")
    if peaks and run is not None:
        raise click.UsageError("--peak stands in place of a run: leave out one of them")
    if peaks:
        fit, source = of_points(peaks), "the given peaks"
    else:
        from bsguard_cli.runs import find, load

        loaded = load(find(run))
        ranks = sorted(loaded.ranks, key=lambda rank: -(rank.allocated_peak or 0))
        fit = next((found for found in map(of_rank, ranks) if found), None)
        batch = batch or next((rank.split[0] for rank in ranks if rank.split[0]), None)
        source = str(loaded.folder)
    if fit is None:
        click.echo(
            "bsguard: this run says too little: no step without an OOM has shown a peak of its own. Let it run at "
            "another size for some steps (bsguard set --micro-batch N), or give --peak N:SIZE",
            err=True,
        )
        raise SystemExit(BAD)
    lines = [_line(fit, card, batch, lr) for card in cards or [gb * 10**9 for gb in CARDS]]
    if as_json:
        print_json(
            {
                "schema": "bsguard.plan/1",
                "source": source,
                "fixed_bytes": round(fit.fixed),
                "per_sample_bytes": round(fit.per_sample),
                "measured": fit.exact,
                "headroom": HEADROOM,
                "batch": batch,
                "cards": lines,
            }
        )
    else:
        _print(fit, source, batch, lr, lines)
    raise SystemExit(OK if any(line["micro_batch"] for line in lines) else BAD)


def _line(fit: Fit, card: int, batch: Optional[int], lr: Optional[float]) -> dict[str, Any]:
    """What fits on a card of so many bytes."""
    largest = fit.largest(card * (1 - HEADROOM))
    micro_batch = min(largest, batch) if batch else largest
    line: dict[str, Any] = {
        "card_bytes": card,
        "largest": largest or None,
        "micro_batch": micro_batch or None,
        "accumulation_steps": None,
        "predicted_bytes": None,
        "whole_batch_fits": None,
        "learning_rate": None,
        "learning_rate_without_accumulation": None,
    }
    if not micro_batch:
        return line
    line["predicted_bytes"] = round(fit.at(micro_batch))
    if batch:
        # Equal pieces: as many as are needed, of as few samples as then are enough.
        steps = math.ceil(batch / micro_batch)
        line["micro_batch"] = math.ceil(batch / steps)
        line["accumulation_steps"] = steps
        line["predicted_bytes"] = round(fit.at(line["micro_batch"]))
        line["whole_batch_fits"] = micro_batch >= batch
        if lr:
            line["learning_rate"] = lr
            line["learning_rate_without_accumulation"] = lr * micro_batch / batch
    return line


def _card(bytes_: int) -> str:
    """As cards are sold; smaller ones, which only a limit or a test has, as exactly as was said."""
    return f"{bytes_ / 1e9:g} GB" if bytes_ >= 10**9 else size(bytes_)


def _print(fit: Fit, source: str, batch: Optional[int], lr: Optional[float], lines: list[dict[str, Any]]) -> None:
    from bsguard_cli.screen import console, row, say, table

    say(f"From {source}: {size(fit.fixed)} fixed + {size(fit.per_sample)} a sample ({fit.source}"
        + (f", at most {fit.error:.0%} off)" if fit.error is not None else ")"))  # fmt: skip
    if not fit.exact:
        say(
            "One size only was measured: larger ones are a safe bound, smaller ones are not told apart.", style="yellow"
        )
    columns = ["card", "largest micro-batch", "predicted"]
    if batch:
        columns += [f"batch {batch} as", "learning rate"]
    made = table(*columns, right=(0, 1, 2))
    for line in lines:
        cells = [_card(line["card_bytes"]), line["largest"] or "none", size(line["predicted_bytes"])]
        if not line["micro_batch"]:
            cells[2] = "too large"
        if batch and line["micro_batch"]:
            whole = line["whole_batch_fits"]
            cells.append("one piece" if whole else f"{line['accumulation_steps']} x {line['micro_batch']}")
            cells.append(_rate(line, lr, batch))
        elif batch:
            cells += ["-", "-"]
        row(made, *cells, style=None if line["micro_batch"] else "red")
    console().print(made)
    if batch:
        say("With accumulation the batch stays, and so does the learning rate.")


def _rate(line: dict[str, Any], lr: Optional[float], batch: int) -> str:
    if line["whole_batch_fits"]:
        return f"{lr:g}" if lr else "stays"
    largest = line["largest"]
    if lr:
        return f"{lr:g}; for batch {largest} alone {line['learning_rate_without_accumulation']:.2g}"
    return f"stays; for batch {largest} alone x {largest / batch:.2g}"
