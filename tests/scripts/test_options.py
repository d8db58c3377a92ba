"""What people get who mistype: status 2, one line that names the option and the value, and nothing set up or run."""

import pytest

WRONG = [
    ("demo", ["--memory-fraction", "1.5"], "'1.5' is no fraction"),
    ("demo", ["--memory-fraction", "nan"], "'nan' is no fraction"),
    ("demo", ["--memory", "0"], "'0' is no size"),
    ("demo", ["--memory", "12parsecs"], "'12parsecs' is no size"),
    ("demo", ["--memory", "12MiB", "--memory-fraction", "0.5"], "not allowed with"),
    ("demo", ["--epochs", "0"], "'0' is no integer from 1"),
    ("demo", ["--mem", "12MiB"], "--mem"),
    ("bench", [], "job|alloc"),
    ("bench", ["job", "vgg"], "'vgg' is no model; there are mlp, cnn, transformer"),
    ("bench", ["job", "--rounds", "-1"], "--rounds"),
    ("setup", ["--everything"], "--everything"),
    ("test", ["--stage", "none"], "'none'"),
]


@pytest.mark.parametrize(
    "script, arguments, said", WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_wrong_option(run_plain, repo, script, arguments, said):
    job = run_plain([repo / "scripts" / script, *arguments], timeout=20)
    assert job.returncode == 2, str(job)
    last = job.stderr.strip().splitlines()[-1]
    assert last.startswith(f"scripts/{script}: error:") or last.startswith(f"scripts/{script} job: error:"), str(job)
    assert said in last, str(job)
    assert job.stdout == ""


@pytest.mark.parametrize("script", ["demo", "bench", "setup", "test"])
def test_help_says_what_it_does(run_plain, repo, script):
    job = run_plain([repo / "scripts" / script, "--help"], timeout=20)
    assert job.returncode == 0, str(job)
    assert f"scripts/{script}" in job.stdout and len(job.stdout.splitlines()) > 6


def test_sizes():
    from demonstration.options import size

    assert size("4096") == 4096
    assert size("24MiB") == 24 * 2**20
    assert size("24 mb") == 24 * 10**6
    assert size("1GB") == 10**9
