"""Failures on demand, what counts as an allocation call, the log and the statistics."""

import ctypes
import os
import subprocess
import sys

import pytest
from simgpu_support import OUT_OF_MEMORY, SUCCESS, Driver, fresh


def refused(driver, count, size=512):
    """Numbers, from 1, of the refused ones among `count` allocations."""
    return [i + 1 for i in range(count) if driver.try_alloc(size)[0] == OUT_OF_MEMORY]


@fresh(fail_at="3")
def test_the_nth(driver):
    assert refused(driver, 6) == [3]
    assert driver.lib.simgpu_calls() == 6 and driver.lib.simgpu_failures() == 1
    assert driver.used() == 5 * 512


@fresh(fail_at="2:2,6,8:1")
def test_ranges(driver):
    assert refused(driver, 10) == [2, 3, 6, 8]


@fresh(fail_every=3)
def test_every_nth(driver):
    assert refused(driver, 10) == [3, 6, 9]
    driver.lib.simgpu_fail_every(0)
    assert refused(driver, 10) == []


@fresh(fail_size="1KiB")
def test_by_size(driver):
    assert refused(driver, 2, size=1023) == []
    assert refused(driver, 2, size=1024) == [1, 2]
    driver.lib.simgpu_fail_size(0)
    assert refused(driver, 1, size=1024) == []


@fresh
def test_ordered_by_the_test_itself(driver):
    refused(driver, 5)
    driver.lib.simgpu_fail_at(2, 3)
    assert refused(driver, 6) == [2, 3, 4]
    driver.lib.simgpu_fail_at(1, 1)
    driver.lib.simgpu_fail_at(0, 0)
    assert refused(driver, 3) == []


@fresh(fail_at="1:100")
def test_only_allocation_calls_are_counted_and_failed(driver):
    pointer, stream = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.lib.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(64), 0) == SUCCESS
    assert driver.lib.cuStreamCreate(ctypes.byref(stream), 0) == SUCCESS
    assert driver.try_alloc(0)[0] != OUT_OF_MEMORY
    assert driver.lib.simgpu_calls() == 0
    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    assert driver.lib.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(64), 1) == OUT_OF_MEMORY
    n = ctypes.c_size_t
    assert driver.lib.cuMemAllocPitch_v2(ctypes.byref(address), ctypes.byref(pitch), n(64), n(1), 4) == OUT_OF_MEMORY
    assert driver.lib.cuMemAlloc(ctypes.byref(address), 64) == OUT_OF_MEMORY
    assert driver.lib.simgpu_calls() == driver.lib.simgpu_failures() == 3
    assert address.value == 0  # a failed call leaves its outputs alone


def run(environment, code):
    """Standard error of a Python process with a driver in it."""
    program = f"import simgpu_support as s; d = s.Driver(); {code}"
    folder = os.path.dirname(os.path.abspath(sys.modules[Driver.__module__].__file__))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": folder, **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        universal_newlines=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MEMORY", "12 parsecs", "KiB"),
        ("MEMORY", "-1", "KiB"),
        ("MEMORY", "99999999999GiB", "KiB"),
        ("MEMORY", "0", "KiB"),
        ("GRANULARITY", "3000", "power of two"),
        ("DEVICES", "17", "0 to 16"),
        ("DEVICES", "two", "0 to 16"),
        ("FAIL_AT", "0", "N:COUNT"),
        ("FAIL_AT", "3:", "N:COUNT"),
        ("FAIL_AT", "3,,4", "N:COUNT"),
        ("FAIL_EVERY", "1.5", "integer"),
        ("PROTECT", "yes", "0 or 1"),
    ],
)
def test_a_wrong_option_is_one_line_and_the_default(name, value, allowed):
    said = run({"SIMGPU_" + name: value}, "assert d.info() == (1 << 30, 1 << 30); d.alloc(1); assert d.used() == 512")
    assert said.count("\n") == 1, said
    assert f"SIMGPU_{name}={value}" in said and allowed in said


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("3KB", 3000), ("3kib", 3072), ("2 MiB", 2 << 20), ("1GB", 10**9), ("7B", 7)]
)
def test_sizes(text, size):
    assert run({"SIMGPU_MEMORY": text}, f"assert d.info()[1] == {size}") == ""


def test_the_log_has_a_line_for_each_event(tmp_path):
    log = tmp_path / "log"
    code = "a = d.alloc(1000); d.try_alloc(2 << 20); d.free(a); d.lib.simgpu_fail_at(1, 1); d.try_alloc(1)"
    run({"SIMGPU_LOG": str(log), "SIMGPU_MEMORY": "1MiB"}, code)
    lines = [line.split(" ", 2)[2] for line in log.read_text().splitlines()]
    address = lines[0].split("address=")[1].split()[0]
    assert lines == [
        f"alloc device=0 bytes=1000 address={address} used=1024 call=1",
        "fail device=0 bytes=2097152 address=0x0 used=1024 call=2 cause=capacity",
        f"free device=0 bytes=1000 address={address} used=0 call=2",
        "fail device=0 bytes=1 address=0x0 used=0 call=3 cause=fault",
    ]


def test_a_log_that_cannot_be_opened_is_one_line(tmp_path):
    said = run({"SIMGPU_LOG": str(tmp_path / "no" / "such")}, "d.alloc(1); d.alloc(1)")
    assert said.count("\n") == 1 and str(tmp_path) in said


def test_statistics_come_from_those_who_allocated():
    assert run({"SIMGPU_STATS": "1"}, "d.info()") == ""
    said = run({"SIMGPU_STATS": "1", "SIMGPU_FAIL_AT": "2"}, "d.alloc(1000); d.try_alloc(1)")
    assert "2 allocation calls, 1 refused" in said and "peak 1024 of 1073741824 bytes" in said
    assert "1024 bytes in 1 allocations at exit" in said
