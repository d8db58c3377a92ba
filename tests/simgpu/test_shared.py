"""SIMGPU_SHARED: several processes on one capacity, and what becomes of the share of one that ended or was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from simgpu_support import MIB, OUT_OF_MEMORY, SUCCESS

HERE = Path(__file__).parent
TALKER = """
import sys
from simgpu_support import Driver
driver = Driver()
for line in sys.stdin:  # expressions in, values out
    print(eval(line), flush=True)
"""


class Process:
    """A process with a driver in it that evaluates expressions."""

    def __init__(self, table, memory="16MiB", **options):
        environment = dict(os.environ, SIMGPU_SHARED=str(table), SIMGPU_MEMORY=memory, PYTHONPATH=str(HERE))
        environment.update({"SIMGPU_" + name.upper(): str(value) for name, value in options.items()})
        self.process = subprocess.Popen(
            [sys.executable, "-c", TALKER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )

    def ask(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        return self.process.stderr.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def start(tmp_path):
    """Starts processes that share one table, and ends them."""
    started = []

    def one(**options):
        started.append(Process(tmp_path / "table", **options))
        return started[-1]

    yield one
    for each in started:
        each.process.kill()
        each.process.wait(60)
        for pipe in (each.process.stdin, each.process.stdout, each.process.stderr):
            pipe.close()


def test_two_processes_share_the_memory(start):
    first, second = start(), start()
    assert first.ask("driver.try_alloc(10 << 20)[0]") == SUCCESS
    assert second.ask("driver.info()") == (6 * MIB, 16 * MIB)
    assert second.ask("driver.used()") == 0  # its own
    assert second.ask("driver.lib.simgpu_used_by_others(0)") == 10 * MIB
    assert second.ask("driver.try_alloc(7 << 20)[0]") == OUT_OF_MEMORY
    assert second.ask("driver.try_alloc(6 << 20)[0]") == SUCCESS
    assert first.ask("driver.info()") == (0, 16 * MIB) and first.ask("driver.try_alloc(1)[0]") == OUT_OF_MEMORY
    assert second.ask("driver.lib.cuDevicePrimaryCtxReset_v2(0)") == SUCCESS
    assert first.ask("driver.try_alloc(6 << 20)[0]") == SUCCESS
    assert first.end() == second.end() == ""


def test_the_share_of_one_that_ended_is_the_others(start):
    first, second = start(), start()
    assert first.ask("driver.try_alloc(16 << 20)[0]") == SUCCESS
    assert second.ask("driver.try_alloc(1)[0]") == OUT_OF_MEMORY
    first.end()
    assert second.ask("driver.info()[0]") == 16 * MIB and second.ask("driver.try_alloc(16 << 20)[0]") == SUCCESS


def test_the_share_of_one_that_was_killed_is_the_others(start):
    first, second = start(), start()
    assert second.ask("driver.try_alloc(2 << 20)[0]") == SUCCESS
    for _ in range(3):
        assert first.ask("driver.try_alloc(14 << 20)[0]") == SUCCESS
        assert second.ask("driver.try_alloc(1)[0]") == OUT_OF_MEMORY
        first.kill()
        assert second.ask("driver.info()") == (14 * MIB, 16 * MIB)
        first = start()  # in the dead one's slot, with nothing of it
        assert first.ask("driver.info()") == (14 * MIB, 16 * MIB)
    assert second.ask("driver.try_alloc(14 << 20)[0]") == SUCCESS


def test_devices_are_apart_and_many_processes_fit(start):
    many = [start(devices=2) for _ in range(8)]
    for i, each in enumerate(many):
        assert each.ask("driver.use(%d) and driver.try_alloc(4 << 20)[0]" % (i % 2)) == SUCCESS
    assert [each.ask("driver.info()[0]") for each in many] == [0] * 8
    assert [each.ask("driver.try_alloc(1)[0]") for each in many] == [OUT_OF_MEMORY] * 8


def test_a_forked_child_leaves_its_parents_share_alone(start):
    first, second = start(), start()
    assert first.ask("driver.try_alloc(10 << 20)[0]") == SUCCESS
    assert first.ask("[__import__('os').waitpid(pid, 0)[1] for pid in [__import__('os').fork() or exit()]]") == [0]
    assert second.ask("driver.info()[0]") == 6 * MIB


def test_a_table_that_cannot_be_used_is_one_line(tmp_path):
    alone = Process(tmp_path / "no" / "such")
    assert alone.ask("driver.try_alloc(16 << 20)[0]") == SUCCESS
    said = alone.end()
    assert said.count("\n") == 1 and str(tmp_path) in said
