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
