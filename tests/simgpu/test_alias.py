"""The sitecustomize of the simulated GPU beside those of others: none hides another, in any order. No Paddle needed."""

import json
import os
import subprocess
import sys

import pytest
from simgpu_support import REPO

ALIAS = REPO / "tests" / "simgpu" / "alias"

USERS = "import builtins; builtins.users_site = True; VALUE = 42\n"

# Another sitecustomize of the sort that injects itself: a finder of its own for paddle, then the next one down the path.
RIVAL = """
import builtins, importlib.machinery, importlib.util, os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "paddle": return None
        rest = sys.meta_path[sys.meta_path.index(self) + 1:]
        spec = next(filter(None, (f.find_spec(name, path, target) for f in rest)), None)
        if spec:
            run = spec.loader.exec_module
            def exec_module(module):
                run(module); module.hooks.append("rival")
            spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
folder = os.path.dirname(os.path.abspath(__file__))
index = next(i for i, p in enumerate(sys.path) if os.path.abspath(p) == folder)
rest = sys.path[index + 1:]
del sys.path[index]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
if spec:
    module = importlib.util.module_from_spec(spec); sys.modules["sitecustomize"] = module; spec.loader.exec_module(module)
"""

# A package called paddle that can be imported: a plug-in for it is there, and it has no custom device.
PADDLE = """
import os, types
hooks, __version__ = [], "9.9.9"
root, level = os.environ.get("CUSTOM_DEVICE_ROOT"), os.environ.get("GLOG_minloglevel")
base = types.SimpleNamespace(core=types.SimpleNamespace(get_all_custom_device_type=lambda: []))
"""


@pytest.fixture
def world(tmp_path):
    """Folders user/, rival/ (a sitecustomize each), lib/ (a package paddle) and plugins/ (a plug-in for it)."""
    for name, text in (("user", USERS), ("rival", RIVAL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    version = tmp_path / "lib" / "paddle" / "version"
    version.mkdir(parents=True)
    (version.parent / "__init__.py").write_text(PADDLE)
    (version / "__init__.py").write_text("full_version     = '9.9.9'\ncuda_version     = 'False'\n")
    plugin = tmp_path / "plugins" / "plugin-9.9.9"
    plugin.mkdir(parents=True)
    (plugin / "libpaddle-simgpu.so").touch()
    return tmp_path


def python(world, order, code, plugins=True, **environment):
    """Result of json.loads of what `code` prints, and standard error."""
    folders = {"alias": ALIAS, "user": world / "user", "rival": world / "rival"}
    path = [str(folders[name]) for name in order] + [str(world / "lib")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SIMGPU_", "GLOG", "CUSTOM_"))}
    variables = {**clean, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    if plugins:
        variables["SIMGPU_PLUGINS"] = str(world / "plugins")
    done = subprocess.run(
        [sys.executable, "-c", "import json, sys, os, builtins\n" + code],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("plugins", [True, False])
@pytest.mark.parametrize(
    "order", [["alias", "user"], ["alias", "rival", "user"], ["rival", "alias", "user"], ["user", "alias", "rival"]]
)
def test_the_users_sitecustomize_runs_and_is_the_module(world, order, plugins):
    code = "import sitecustomize; print(json.dumps([hasattr(builtins, 'users_site'), sitecustomize.VALUE, sys.path]))"
    (ran, value, path), said = python(world, order, code, plugins)
    assert ran and value == 42 and said == ""
    assert order[0] == "user" or str(ALIAS) not in path


@pytest.mark.parametrize("order", [["alias", "rival"], ["rival", "alias"]])
def test_finders_for_paddle_nest(world, order):
    code = "import paddle; print(json.dumps([paddle.hooks, paddle.root, paddle.level, os.environ.get('GLOG_minloglevel')]))"
    (hooks, root, level_inside, level_after), said = python(world, order, code)
    assert hooks == ["rival"]
    assert root == str(world / "plugins" / "plugin-9.9.9")
    assert (level_inside, level_after) == ("1", None)
    assert "did not load" in said and said.count("\n") == 1  # this package has no custom device


def test_the_users_log_level_stays(world):
    code = "import paddle; print(json.dumps([paddle.level, os.environ.get('GLOG_minloglevel')]))"
    levels, _ = python(world, ["alias"], code, GLOG_minloglevel="0")
    assert levels == ["0", "0"]


def test_an_error_of_the_users_sitecustomize_is_reported_as_ever(world):
    (world / "user" / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    _, with_us = python(world, ["alias", "user"], "print(1)")
    _, without = python(world, ["user"], "print(1)")
    assert with_us == without and "mine" in without


def test_no_plugin_for_this_version_is_one_line(world):
    (world / "plugins" / "plugin-9.9.9" / "libpaddle-simgpu.so").unlink()
    code = "import paddle; print(json.dumps(paddle.root))"
    root, said = python(world, ["alias"], code)
    assert root is None and said.count("\n") == 1
    assert "9.9.9" in said and "scripts/setup" in said and "build_plugin.py" in said


def test_a_cuda_build_is_left_alone_in_one_line(world):
    version = world / "lib" / "paddle" / "version" / "__init__.py"
    version.write_text("full_version     = '9.9.9'\ncuda_version     = '12.6'\n")
    root, said = python(world, ["alias"], "import paddle; print(json.dumps(paddle.root))")
    assert root is None and said.count("\n") == 1 and "CUDA build" in said


@pytest.mark.parametrize("order", [["alias"], ["alias", "rival"]])
def test_inactive_without_the_launcher(world, order):
    code = "import paddle; print(json.dumps([paddle.hooks, paddle.root, 'simgpu_alias' in sys.modules]))"
    (hooks, root, loaded), said = python(world, order, code, plugins=False)
    assert root is None and not loaded and said == "" and hooks == order[1:]


def test_asking_for_the_spec_changes_nothing(world):
    code = "import importlib.util as u; s = u.find_spec('paddle')\n"
    code += "print(json.dumps([s.origin, os.environ.get('CUSTOM_DEVICE_ROOT')]))"
    (origin, root), said = python(world, ["alias"], code)
    assert origin == str(world / "lib" / "paddle" / "__init__.py") and root is None and said == ""


def test_a_missing_paddle_is_still_missing(world):
    (world / "lib" / "paddle" / "__init__.py").rename(world / "gone.py")
    (world / "lib" / "paddle").rename(world / "lib" / "other")
    code = "try: import paddle\nexcept ModuleNotFoundError as e: print(json.dumps(e.name))"
    # An interpreter that has the real one would find that: hide it.
    name, said = python(world, ["alias"], "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n" + code)
    assert name == "paddle" and said == ""
