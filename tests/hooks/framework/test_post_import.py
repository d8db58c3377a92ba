"""The hook on `import paddle` composes with other tools' hooks: each wraps the loader once, whoever came first."""

import os
import sys

import pytest

SCRIPT = """
import sys

class Other:
    count = 0

    def find_spec(self, name, path=None, target=None):
        if name != "paddle":
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)))
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            Other.count += 1

        spec.loader.exec_module = exec_module
        return spec

from bsguard_paddle import post_import

installed = []
post_import._install = installed.append
other = Other()
if {first!r} == "other":
    sys.meta_path.insert(0, other)
    post_import.arm()
else:
    post_import.arm()
    sys.meta_path.insert(0, other)
import paddle

assert Other.count == 1, Other.count
assert installed == [paddle], installed
assert not any(type(finder).__module__.startswith("bsguard") for finder in sys.meta_path)
"""


@pytest.mark.parametrize("first", ["other", "ours"])
def test_each_hook_runs_once(run_plain, repo, tmp_path, first):
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").write_text("")
    path = os.pathsep.join([str(tmp_path), str(repo / "hooks" / "framework")])
    job = run_plain([sys.executable, "-c", SCRIPT.format(first=first)], env={"PYTHONPATH": path})
    assert job.returncode == 0, job


HALF_WAY = """
    import json, sys, types

    class Broken(types.ModuleType):
        def patch(self):
            raise RuntimeError("half-way")

    sys.modules["bsguard_paddle.scaler"] = Broken("bsguard_paddle.scaler")  # the last one whose patch is called
    import paddle

    def is_ours(value):
        value = value.fget if isinstance(value, property) else value
        value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        return isinstance(value, types.FunctionType) and "bsguard_paddle" in value.__code__.co_filename

    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("paddle", "sys", "threading"):
            continue
        for key, value in list(vars(module).items()):
            if is_ours(value):
                found.append(name + "." + key)
            if isinstance(value, type):
                found += ["%s.%s" % (value, one) for one, held in list(vars(value).items()) if is_ours(held)]
    paddle.set_device("gpu")
    network = paddle.nn.Linear(4, 1)
    network(paddle.ones([8, 4])).mean().backward()
    paddle.optimizer.SGD(0.1, parameters=network.parameters()).step()
    print(json.dumps(sorted(set(found))))
"""


def test_what_fails_half_way_leaves_nothing_behind(run_job):
    job = run_job(HALF_WAY)
    assert job.returncode == 0, job
    assert job.result == [], job
    assert [line for line in job.lines_of_bsguard if "half-way" in line and "runs unguarded" in line], job
    assert len(job.lines_of_bsguard) == 1, job
    assert job.events_of("start")[0]["framework"] is None, job
