"""What a run says about memory and batch size: peak(n) = fixed + per_sample x n, and the largest n that fits.

The points are the framework's own allocated peaks per micro-batch, which is what a smaller size lowers: what the driver saw
stays high after a large one. A fit that the report brings is taken as it is. Pure functions over numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from bsguard_cli import records

HEADROOM = 0.05  # of a card, for what fragments and for what the fit does not know: its own error is a few percent


@dataclass(frozen=True)
class Fit:
    """Bytes at n samples: fixed + per_sample x n.

    exact: whether both were measured. With one size measured only they are a bound: above it this says too much, below it
    the measured peak itself is what is known. error: the largest miss at a measured point, as a share of it. margin: the
    most bytes that a point lies above the line; what is said to fit has that much to spare.
    """

    fixed: float
    per_sample: float
    points: tuple[tuple[int, int], ...]
    exact: bool
    source: str
    error: Optional[float] = None
    margin: float = 0.0

    def at(self, samples: int) -> float:
        """Bytes at so many samples."""
        if not self.exact and self.points and samples < self.points[0][0]:
            return float(self.points[0][1])
        return self.fixed + self.per_sample * samples + self.margin

    def largest(self, bytes_available: float) -> int:
        """The most samples that fit; 0: not even one."""
        if self.at(1) > bytes_available:
            return 0
        if self.per_sample <= 0:
            return 2**31
        if not self.exact and bytes_available < self.points[0][1]:
            return 0
        return max(1, min(2**31, math.floor((bytes_available - self.fixed - self.margin) / self.per_sample)))


def of_points(peaks: Union[Mapping[int, int], Iterable[tuple[int, int]]]) -> Optional[Fit]:
    """A fit of (samples, bytes): least squares through two or more sizes, a bound from one, None from none.

    A line that falls, or that starts below nothing, is no memory: it is then laid through the origin.
    """
    points = sorted(dict(peaks).items())
    points = [(samples, peak) for samples, peak in points if samples > 0 and peak > 0]
    if not points:
        return None
    if len(points) == 1:
        samples, peak = points[0]
        return Fit(0.0, peak / samples, tuple(points), False, "one measured size")
    mean_x = sum(samples for samples, _ in points) / len(points)
    mean_y = sum(peak for _, peak in points) / len(points)
    spread = sum((samples - mean_x) ** 2 for samples, _ in points)
    slope = sum((samples - mean_x) * (peak - mean_y) for samples, peak in points) / spread
    fixed = mean_y - slope * mean_x
    if slope <= 0:
        samples, peak = points[-1]
        return Fit(0.0, peak / samples, ((samples, max(p for _, p in points)),), False, "sizes without a trend")
    if fixed < 0:
        fixed = 0.0
        slope = sum(s * p for s, p in points) / sum(s * s for s, _ in points)
    error = max(abs(fixed + slope * samples - peak) / peak for samples, peak in points)
    margin = max(0.0, *(peak - fixed - slope * samples for samples, peak in points))
    return Fit(fixed, slope, tuple(points), True, f"{len(points)} measured sizes", error, margin)


def of_report(brought: Optional[records.Fit]) -> Optional[Fit]:
    """The fit that a report brings, where it is there and makes sense."""
    if brought is None or not brought.per_sample_bytes:
        return None
    points = tuple((point.micro_batch, point.peak_bytes) for point in brought.points)
    error = None if brought.error_permille is None else brought.error_permille / 1000
    fixed, per_sample, margin = map(float, (brought.fixed_bytes, brought.per_sample_bytes, brought.margin_bytes or 0))
    return Fit(fixed, per_sample, points, True, "the report", error, margin)


def of_rank(rank: Any) -> Optional[Fit]:
    """The fit of one process of a run: that of its report, else of its steps."""
    brought = of_report(rank.report.fit) if rank.report else None
    return brought or of_points(rank.micro_batch_peaks)
