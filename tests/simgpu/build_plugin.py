#!/usr/bin/env python3
"""Builds the Paddle plug-in of the simulated GPU for one Paddle version.

    tests/simgpu/build_plugin.py [--paddle-python PYTHON] [--output FOLDER]

The result is FOLDER/plugin-VERSION/libpaddle-simgpu.so, where VERSION is that of the paddlepaddle that PYTHON would import
(it is not imported). Nothing is done when sources, compiler flags and Paddle are those of the last build. Takes about 15 s
otherwise. FOLDER is <repository>/build/simgpu unless said otherwise. Needs a C++17 compiler: $CXX, or g++, or c++.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = ("driver.cc", "runtime.cc", "kernels.cc", "ranks.cc", "collectives.cc")
NAME = "libpaddle-simgpu.so"
LOCATE = "import importlib.util as u; s = u.find_spec('paddle'); print(s.origin if s else '')"


class BuildError(Exception):
    """What a person can act on; shown without a traceback."""


def find_paddle(python):
    """Returns (folder of the paddle package, its version) for an interpreter, without importing Paddle."""
    try:
        # -S -E would hide the packages; the simulated GPU's own sitecustomize does nothing without its variables.
        found = subprocess.run([python, "-c", LOCATE], check=True, stdout=subprocess.PIPE, universal_newlines=True)
    except OSError as error:
        raise BuildError(f"--paddle-python {python}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"--paddle-python {python}: ended with status {error.returncode}") from None
    origin = found.stdout.strip()
    if not origin:
        raise BuildError(
            f"{python} has no paddle: pip install paddlepaddle into it, or name another with --paddle-python"
        )
    folder = pathlib.Path(origin).parent
    text = (folder / "version" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r"^full_version\s*=\s*'([^']+)'", text, re.MULTILINE)
    if not version:
        raise BuildError(f"{folder}/version/__init__.py does not say full_version")
    return folder, version.group(1)


def compile_flags(paddle, version):
    """Flags that Paddle's headers need; -w because they do not compile without warnings."""
    include = paddle / "include"
    return [
        "-O2", "-std=c++17", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=1",
        f"-DSIMGPU_PADDLE_MAJOR={version.split('.')[0]}",
        "-DPADDLE_WITH_CUSTOM_DEVICE", "-DPADDLE_WITH_CUSTOM_KERNEL",
        f"-I{include}", f"-I{include}/third_party", f"-I{include}/third_party/install/onednn/include",
    ]  # fmt: skip


def link_flags(paddle):
    """Paddle's own libraries: which there are differs from version to version."""
    libraries = [paddle / "base" / "libpaddle.so"]
    libraries += [paddle / "libs" / name for name in ("libphi_core.so", "libcommon.so", "libphi.so")]
    return [
        "-Wl,--unresolved-symbols=ignore-all",
        *(str(lib) for lib in libraries if lib.exists()),
        "-ldl",
        "-lpthread",
    ]


def fingerprint(command_parts, paddle):
    """Changes whenever a build could give something else."""
    digest = hashlib.sha256()
    for part in command_parts:
        digest.update(part.encode() + b"\0")
    for path in sorted((HERE / "plugin").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    library = (paddle / "base" / "libpaddle.so").stat()
    digest.update(f"{library.st_size} {library.st_mtime_ns}".encode())
    return digest.hexdigest()


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}\nthe compiler ended with status {done.returncode}")


def build(python, output):
    """Builds what is out of date. Returns (path of the plug-in, whether anything was done)."""
    paddle, version = find_paddle(python)
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise BuildError("no C++ compiler: install g++, or set CXX")
    flags, links = compile_flags(paddle, version), link_flags(paddle)
    target = pathlib.Path(output) / f"plugin-{version}" / NAME
    stamp = target.parent / ".fingerprint"  # a dot: Paddle loads every library of this folder
    wanted = fingerprint([compiler, *flags, *links], paddle)
    if target.exists() and stamp.exists() and stamp.read_text() == wanted:
        return target, False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="simgpu-") as scratch:
        objects = []
        for source in SOURCES:
            objects.append(os.path.join(scratch, source + ".o"))
            run([compiler, *flags, "-c", str(HERE / "plugin" / source), "-o", objects[-1]])
        library = os.path.join(scratch, NAME)
        run([compiler, "-shared", "-o", library, *objects, *links])
        # Two steps on one file system, so that a running job never sees half a library.
        shutil.copy(library, f"{target}.new")
        os.replace(f"{target}.new", target)
    stamp.write_text(wanted)
    return target, True


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--paddle-python", default=sys.executable, metavar="PYTHON", help="interpreter that has paddlepaddle"
    )
    parser.add_argument("--output", default=str(HERE.parents[1] / "build" / "simgpu"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    try:
        target, done = build(options.paddle_python, options.output)
    except BuildError as error:
        print(f"build_plugin.py: {error}", file=sys.stderr)
        return 1
    print(f"{target} {'built' if done else 'is up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
