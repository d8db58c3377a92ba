"""Sums of JUnit files: no failure may be lost between a runner and the last line."""

import pytest

from support.results import Tally, read_junit, tally_of

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux-c++" tests="4" failures="1" disabled="0" skipped="1">
  <testcase name="a" classname="a" time="0.1" status="run"/>
  <testcase name="b" classname="b" time="0.1" status="run"><system-out>text</system-out></testcase>
  <testcase name="c" classname="c" time="0.1" status="fail"><failure message="Failed"/><system-out/></testcase>
  <testcase name="d" classname="d" time="0.1" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
</testsuite>
"""
PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="5">
  <testcase classname="x" name="a"/>
  <testcase classname="x" name="b"><failure message="assert">text</failure></testcase>
  <testcase classname="x" name="c"><error message="setup">text</error></testcase>
  <testcase classname="x" name="d"><failure message="1"/><error message="teardown"/></testcase>
  <testcase classname="x" name="e"><skipped type="pytest.skip" message="why"/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "junit.xml"
        path.write_text(text)
        return path

    return write


def test_ctest(write):
    assert read_junit(write(CTEST)) == Tally(passed=2, failed=1, skipped=1)


def test_pytest_counts_a_case_once(write):
    assert read_junit(write(PYTEST)) == Tally(passed=1, failed=3, skipped=1)


def test_sum_and_text():
    total = Tally(3, 0, 1) + Tally(4, 2, 0)
    assert str(total) == "7 passed, 2 failed, 1 skipped"
    assert str(Tally(1, 0, 0)) == "1 passed, 0 failed"


@pytest.mark.parametrize("text", ["", "<testsuite><testcase name='a'/>", "not xml"])
def test_a_torn_file_is_a_failure(write, text):
    assert tally_of(write(text), 0) == Tally(failed=1)


def test_no_file_is_a_failure(tmp_path):
    assert tally_of(tmp_path / "none.xml", 0) == Tally(failed=1)


def test_a_bad_status_without_a_failed_case_is_a_failure(write):
    path = write("<testsuite><testcase name='a'/></testsuite>")
    assert tally_of(path, 3) == Tally(passed=1, failed=1)
    assert tally_of(path, 0) == Tally(passed=1)


def test_no_case_at_all(write):
    empty = write("<testsuite/>")
    assert tally_of(empty, 5) == Tally(failed=1)
    assert tally_of(empty, 0) == Tally(failed=1)
    assert tally_of(empty, 5, nothing_is_fine=True) == Tally()
    assert tally_of(empty, 2, nothing_is_fine=True) == Tally(failed=1)
