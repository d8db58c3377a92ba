"""Lets a script that says `gpu` run on the simulated one: a Paddle custom device of type "gpu".

Paddle's CPU wheel knows nothing of CUDA, so names like ``paddle.CUDAPlace``, ``"cuda:0"``, ``tensor.cuda()`` and
``paddle.device.cuda.*`` are given their meaning here, after Paddle was imported. Paddle's own code goes on seeing what it is:
a CPU build with a custom device.

Test equipment: nothing of bsguard's own work may depend on it.
"""

import os
import re
import sys
from pathlib import Path

from . import hook

__all__ = ["activate"]


def activate(plugins):
    """Waits for `paddle` to be imported. plugins: folder that has plugin-VERSION for each Paddle version."""
    hook.install("paddle", before=lambda spec: _choose_plugin(spec, Path(plugins)), after=_patch)


def _say(line):
    sys.stderr.write(f"simgpu: {line}\n")


def _version_file(spec):
    text = (Path(spec.origin).parent / "version" / "__init__.py").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+)\s*=\s*'([^']*)'", text, re.MULTILINE))


def _choose_plugin(spec, plugins):
    """Points Paddle, which is about to be imported, to the plug-in of its version. False: leave it alone."""
    facts = _version_file(spec)
    version = facts.get("full_version", "of unknown version")
    if facts.get("cuda_version", "False") != "False":
        _say(f"paddlepaddle {version} is a CUDA build; the simulated GPU needs the CPU wheel: pip install paddlepaddle")
        return False
    folder = plugins / f"plugin-{version}"
    if not (folder / "libpaddle-simgpu.so").exists():
        _say(
            f"there is no plug-in for paddlepaddle {version} in {plugins}: run scripts/setup, or "
            f"tests/simgpu/build_plugin.py --paddle-python {sys.executable}"
        )
        return False
    os.environ["CUSTOM_DEVICE_ROOT"] = str(folder)
    # What a CUDA build knows by itself: which devices launch is to count, and which collectives are theirs.
    os.environ.setdefault("PADDLE_XCCL_BACKEND", "gpu")
    os.environ.setdefault("PADDLE_DISTRI_BACKEND", "xccl")
    # Loading a custom device makes Paddle print a dozen lines that no script of a real GPU has.
    _quiet.restore = os.environ.get("GLOG_minloglevel")
    os.environ.setdefault("GLOG_minloglevel", "1")
    return True


class _quiet:
    """GLOG_minloglevel as it was before the import."""

    restore = None


def _patch(paddle):
    if _quiet.restore is None:
        os.environ.pop("GLOG_minloglevel", None)
    if "gpu" not in paddle.base.core.get_all_custom_device_type():
        _say(f"paddlepaddle {paddle.__version__} did not load {os.environ['CUSTOM_DEVICE_ROOT']}: GLOG_v=3 tells more")
        return
    from . import amp, memory, places

    for part in (places, memory, amp):
        part.patch(paddle)
