"""Runs scripts one after another, each in a process that has Paddle imported already: `warm_server.py`, below scripts/simgpu.

The 3-10 s that Paddle's import takes are paid once. This process imports Paddle but keeps it from loading the simulated
device, so that neither driver nor library has begun when it forks; the child then sets its environment, loads the device,
installs bsguard where that is preloaded, and runs the script as Python would, to the very end of the interpreter. One
line of JSON in, one out, see warm.py. Test equipment: knows how the simulated GPU and bsguard come into a process.
"""

import importlib.machinery
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path


class _Later:
    """A finder that keeps Paddle from looking for devices in its import; `now` does it."""

    now = None

    def find_spec(self, name, path=None, target=None):
        if name != "paddle.base.core":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _Later.now = module.init_devices
            module.init_devices = lambda: None

        spec.loader.exec_module = exec_module
        return spec


class Warm:
    """Paddle, imported without a device and without bsguard, and what a child needs to make up for that."""

    def __init__(self):
        self._plugins = os.environ["SIMGPU_PLUGINS"]
        self._alias = self._guard = None
        for finder in list(sys.meta_path):
            module = type(finder).__module__
            if module == "simgpu_alias.hook":
                self._alias = sys.modules["simgpu_alias"]
                sys.meta_path.remove(finder)
            elif module == "bsguard_paddle.post_import":
                self._guard = sys.modules[module]
                sys.meta_path.remove(finder)
        os.environ["GLOG_minloglevel"] = "1"  # loading a device is told in a dozen lines
        sys.meta_path.insert(0, _Later())
        import paddle

        self._paddle = paddle

    def complete(self):
        """In the child: what importing Paddle would have done."""
        paddle = self._paddle
        os.environ["CUSTOM_DEVICE_ROOT"] = str(Path(self._plugins) / ("plugin-" + paddle.__version__))
        _Later.now()
        self._alias._patch(paddle)
        if self._guard is not None and os.environ.get("BSGUARD", "1") != "0":
            self._guard._install(paddle)


def child(warm, order):
    """Becomes the process that the order names."""
    os.setsid()
    os.chdir(order["folder"])
    for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        handle = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.update(order["env"])
    warm.complete()
    sys.argv = [order["script"], *order["arguments"]]
    sys.path[0] = os.path.dirname(order["script"])
    runpy.run_path(order["script"], run_name="__main__")


def wait(pid, timeout):
    """(status as os.wait has it, hung) of a child, which is ended where it takes longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    pause = 0.001
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status, False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1], True


def main():
    warm = Warm()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(warm, order)
            return
        status, hung = wait(pid, order["timeout"])
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        print(json.dumps({"code": code, "hung": hung, "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    main()
