"""scripts/simgpu: the command runs with a simulated GPU and its end is the launcher's; wrong options are said clearly."""

import json
import os
import re
import signal
import sys

import pytest
from simgpu_support import BUILD, REPO

LAUNCHER = REPO / "scripts" / "simgpu"
HERE = {"SIMGPU_BUILD": str(BUILD / "simgpu")}
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture
def simgpu(run_plain):
    def run(*arguments, **options):
        return run_plain([LAUNCHER, *arguments], env={**HERE, **options})

    return run


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_exit_status_is_the_commands(simgpu, status):
    assert simgpu("--memory", "16MiB", "--", "sh", "-c", f"exit {status}").returncode == status


def test_a_signal_ends_the_launcher_as_it_ended_the_command(simgpu):
    assert simgpu("--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_the_process_becomes_the_command(simgpu):
    assert simgpu("--", "sh", "-c", "echo $PPID").stdout.strip() == str(os.getpid())


def test_output_and_input_pass_through(simgpu):
    job = simgpu("--", "sh", "-c", "echo out; echo err >&2")
    assert (job.stdout, job.stderr) == ("out\n", "err\n")


def test_options_after_the_dashes_are_the_commands(simgpu):
    job = simgpu(
        "--memory", "16MiB", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--memory", "--", "-x"
    )
    assert job.stdout == "['--memory', '--', '-x']\n"


def show(simgpu, options, **environment):
    """The job, and the environment that its command found."""
    job = simgpu(*options.split(), "--", sys.executable, "-S", "-c", SHOW, **environment)
    return job, json.loads(job.stdout)


def test_what_the_command_finds_in_its_environment(simgpu):
    options = "--memory 16MiB --devices 2 --granularity 2MiB --fail-at 3:2,9 --fail-every 7 --fail-size 1GiB"
    options += " --retry-ms 100 --bind dlsym --protect --poison --stats --log x --refusals y"
    options += " --shared table --pool-chunk 32MiB --context-memory 300MiB --module-memory 64KiB --queue-memory 0"
    options += " --driver-version 12.9 --fail-calls all"
    job, seen = show(simgpu, options, PYTHONPATH="/mine", LD_LIBRARY_PATH="/lib")
    known = set(re.findall(r"SIMGPU_[A-Z_]+(?=  )", (REPO / "tests/simgpu/driver/simgpu.h").read_text()))
    found = {name: value for name, value in seen.items() if name.startswith("SIMGPU_")}
    assert len(known) > 15 and known <= set(found)  # each variable of the driver has its option
    assert found == {
        "SIMGPU_BUILD": HERE["SIMGPU_BUILD"],
        "SIMGPU_PLUGINS": HERE["SIMGPU_BUILD"],
        "SIMGPU_MEMORY": str(16 << 20),
        "SIMGPU_DEVICES": "2",
        "SIMGPU_GRANULARITY": str(2 << 20),
        "SIMGPU_FAIL_AT": "3:2,9",
        "SIMGPU_FAIL_EVERY": "7",
        "SIMGPU_FAIL_SIZE": str(1 << 30),
        "SIMGPU_RETRY_MS": "100",
        "SIMGPU_BIND": "dlsym",
        "SIMGPU_PROTECT": "1",
        "SIMGPU_POISON": "1",
        "SIMGPU_STATS": "1",
        "SIMGPU_LOG": str(job.folder / "x"),
        "SIMGPU_REFUSALS": str(job.folder / "y"),
        "SIMGPU_SHARED": str(job.folder / "table"),
        "SIMGPU_POOL_CHUNK": str(32 << 20),
        "SIMGPU_CONTEXT_MEMORY": str(300 << 20),
        "SIMGPU_MODULE_MEMORY": str(64 << 10),
        "SIMGPU_QUEUE_MEMORY": "0",
        "SIMGPU_DRIVER_VERSION": "12090",
        "SIMGPU_FAIL_CALLS": "all",
    }
    assert seen["PYTHONPATH"] == f"{REPO}/tests/simgpu/alias:/mine"
    assert seen["LD_LIBRARY_PATH"] == f"{BUILD}/simgpu/lib:/lib"


def test_the_users_preload_and_settings_stay(simgpu):
    job = simgpu("--", sys.executable, "-S", "-c", SHOW, LD_PRELOAD="", SIMGPU_MEMORY="5MiB", OTHER="x")
    seen = json.loads(job.stdout)
    assert seen["LD_PRELOAD"] == "" and seen["SIMGPU_MEMORY"] == "5MiB" and seen["OTHER"] == "x"


def test_the_command_finds_the_driver(simgpu):
    code = "import ctypes; n = ctypes.c_int(); c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0)\n"
    code += "c.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"
    assert simgpu("--devices", "3", "--", sys.executable, "-c", code).stdout == "3\n"


@pytest.mark.parametrize(
    ("version", "number", "folders"),
    [
        ("11.8", 11080, ["lib-11.8", "lib"]),
        ("12.4", 12040, ["lib-12.4", "lib"]),
        ("12.9", 12090, ["lib"]),
        ("13.0", 13000, ["lib-13.0", "lib"]),
    ],
)
def test_the_driver_is_of_the_version_asked_for(simgpu, version, number, folders):
    _, seen = show(simgpu, f"--driver-version {version}", LD_LIBRARY_PATH="/lib", SIMGPU_DRIVER_VERSION="11040")
    assert seen["LD_LIBRARY_PATH"].split(":") == [f"{BUILD}/simgpu/{folder}" for folder in folders] + ["/lib"]
    code = "import ctypes; n = ctypes.c_int(); c = ctypes.CDLL('libcuda.so.1'); c.cuDriverGetVersion(ctypes.byref(n))\n"
    code += "print(n.value, hasattr(c, 'cuGreenCtxCreate'))"  # came with 12.4
    job = simgpu("--driver-version", version, "--", sys.executable, "-c", code)
    assert job.stdout == f"{number} {number >= 12040}\n"


def test_two_commands_share_the_memory(simgpu, tmp_path):
    inner = (
        "import ctypes; c = ctypes.CDLL('libcuda.so.1'); x = ctypes.c_void_p(); a = ctypes.c_uint64(); c.cuInit(0)\n"
    )
    inner += "c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0); c.cuCtxSetCurrent(x)\n"
    inner += "print(c.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(10 << 20)), flush=True)\n"
    outer = inner + "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    options = ["--memory", "16MiB", "--shared", tmp_path / "table", "--", sys.executable, "-c", outer, inner]
    assert simgpu(*options).stdout == "0\n2\n"
    assert simgpu(*options[:2], *options[4:]).stdout == "0\n0\n"


def test_the_help_names_every_route_to_memory(simgpu):
    text = simgpu("--help").stdout
    header = (REPO / "tests/simgpu/driver/simgpu.h").read_text()
    routes = re.search(r'"Allocation call".*?any version', header, re.DOTALL).group()
    calls = set(re.findall(r"cu[A-Z]\w+", routes))
    assert len(calls) >= 8 and calls <= set(re.findall(r"cu[A-Z]\w+", text))


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--memory", "lots", "an integer with an optional"),
        ("--memory", "0", "1 or more"),
        ("--memory", "1.5GiB", "an integer with an optional"),
        ("--granularity", "3000", "a power of two from 512 to 1GiB"),
        ("--pool-chunk", "3MiB", "a power of two from 512 to 1GiB"),
        ("--context-memory", "-1", "an integer with an optional"),
        ("--queue-memory", "9999999999GiB", "fit in 63 bits"),
        ("--driver-version", "12", "MAJOR.MINOR"),
        ("--driver-version", "12040", "MAJOR.MINOR"),
        ("--driver-version", "1.9", "from 2.0"),
        ("--fail-calls", "some", "memory"),
        ("--shared", "/no/such/table", "there is no folder /no/such"),
        ("--shared", "/", "is not a file"),
        ("--devices", "17", "from 0 to 16"),
        ("--devices", "-1", "from 0 to 16"),
        ("--fail-at", "0", "N:COUNT"),
        ("--fail-at", "3:0", "N:COUNT"),
        ("--fail-every", "0", "from 1"),
        ("--fail-size", "x", "an integer with an optional"),
        ("--retry-ms", "x", "from 0"),
        ("--bind", "magic", "getproc"),
    ],
)
def test_a_wrong_value_names_option_value_and_what_is_allowed(simgpu, option, value, allowed):
    job = simgpu(f"{option}={value}", "--", "true")
    last = job.stderr.splitlines()[-1]
    assert job.returncode == 2 and option in last and value in last and allowed in job.stderr, job.stderr


@pytest.mark.parametrize("arguments", [[], ["--memory", "16MiB"], ["--memory", "16MiB", "--"], ["python", "train.py"]])
def test_without_a_command_the_way_is_shown(simgpu, arguments):
    job = simgpu(*arguments)
    assert job.returncode == 2 and "scripts/simgpu --memory 16MiB -- python train.py" in job.stderr


def test_a_command_that_is_not_there(simgpu):
    job = simgpu("--", "no-such-command")
    assert job.returncode == 127 and job.stderr == "simgpu: no-such-command: command not found\n"
    job = simgpu("--", "/")
    assert job.returncode == 126 and job.stderr.startswith("simgpu: /: ") and job.stderr.count("\n") == 1


def test_a_missing_build_says_what_to_do(simgpu, tmp_path):
    job = simgpu("--", "true", SIMGPU_BUILD=str(tmp_path))
    assert job.returncode == 126 and "run scripts/setup" in job.stderr and job.stderr.count("\n") == 1
