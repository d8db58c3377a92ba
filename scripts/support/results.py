"""Sums test results from JUnit XML, as ctest and pytest write it. Standard library only."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tally:
    """Numbers of test cases. A case that failed in any way counts once; one not run counts as skipped.

    late: names of those among the passed that had failed at first.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    late: tuple[str, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        numbers = (self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)
        return Tally(*numbers, self.late + other.late)

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text


def read_junit(path: Path) -> Tally:
    """Counts the cases of one file. Raises OSError or ElementTree.ParseError where there is none or a torn one.

    Cases are counted, not the totals in the head of the file: with those, writers disagree about what an error is.
    """
    tally = Tally()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            tally.failed += 1
        elif "skipped" in kinds:
            tally.skipped += 1
        else:
            tally.passed += 1
    return tally


def tried_again(first: Tally, again: Path) -> Tally:
    """The tally after the failed cases were run once more.

    again: the JUnit file of the second run. Where it is missing, torn or about fewer cases, what failed stays failed.
    """
    try:
        cases = list(ElementTree.parse(again).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return first
    if len(cases) != first.failed:
        return first
    late = tuple(f"{case.get('classname')}::{case.get('name')}" for case in cases if not len(case))
    return Tally(first.passed + len(late), first.failed - len(late), first.skipped, late)


def tally_of(path: Path, status: int, nothing_is_fine: bool = False) -> Tally:
    """The tally of a runner that ended with `status` and should have written `path`.

    A runner that ended badly without naming a failed case (it crashed, or collected nothing) counts as one failure.
    nothing_is_fine: no case at all is no failure (pytest says so with status 5).
    """
    try:
        tally = read_junit(path)
    except (OSError, ElementTree.ParseError):
        tally = Tally()
    nothing = tally == Tally()
    if nothing and nothing_is_fine and status in (0, 5):
        return tally
    if (status != 0 or nothing) and tally.failed == 0:
        tally.failed = 1
    return tally
