"""scripts/setup: nothing to do is quick, whatever the user's environment says, and a set-up cut short is made good.

The virtual environments made here have empty requirements, so that nothing is fetched.
"""

import fcntl
import sys
import threading

import pytest

from support import building, packages, venvs
from support.clean import tool_environment
from support.environ import job_environment
from support.steps import Failed, Steps


def fastest(run, times=3):
    """The fastest of a few runs: other tests may be running beside this one."""
    jobs = []
    for _ in range(times):
        jobs.append(run())
        assert jobs[-1].returncode == 0, str(jobs[-1])
        if jobs[-1].seconds < 2:
            break
    return min(jobs, key=lambda job: job.seconds)


def test_nothing_to_do_is_quick_and_quiet(run_plain, repo):
    run_plain([repo / "scripts" / "setup"], timeout=250)
    job = fastest(lambda: run_plain([repo / "scripts" / "setup", "--quiet"]))
    assert job.seconds < 2, str(job)
    assert job.stdout == "" and job.stderr == "", str(job)


def test_environment_of_the_user_changes_nothing(run_plain, repo, tmp_path, library):
    """An active virtual environment, a PYTHONPATH that breaks every Python, pip settings, and our own preload."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "fcntl.py").write_text("raise RuntimeError('the wrong fcntl')\n")
    (trap / "hashlib.py").write_text("raise RuntimeError('the wrong hashlib')\n")
    job = run_plain(
        [repo / "scripts" / "setup", "--quiet"],
        env={
            "PYTHONPATH": str(trap),
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "PIP_TARGET": str(tmp_path / "pip"),
            "PIP_REQUIRE_VIRTUALENV": "1",
            "LD_PRELOAD": str(library),
            "MAKEFLAGS": "-n",
        },
    )
    assert job.returncode == 0, str(job)
    assert job.stderr == "", str(job)
    assert not (tmp_path / "bsguard").exists()


def test_two_at_once_wait_for_each_other(run_plain, repo):
    with open(repo / "build" / ".setup.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(2.5, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        job = run_plain([repo / "scripts" / "setup", "--quiet"])
    assert job.returncode == 0, str(job)
    assert job.seconds > 2.4
    assert "another one is running" in job.stderr


def test_environments_are_cleaned():
    dirty = {"PATH": "/bin", "HOME": "/h", "LD_PRELOAD": "x", "PYTHONPATH": "x", "PIP_USER": "1", "PIP_INDEX_URL": "u"}
    assert tool_environment(dirty) == {"PATH": "/bin", "HOME": "/h", "PIP_INDEX_URL": "u"}
    assert job_environment({**dirty, "BSGUARD_DIR": "x", "FLAGS_x": "1", "SIMGPU_MEMORY": "1"}) == {
        "PATH": "/bin",
        "HOME": "/h",
        "PIP_INDEX_URL": "u",
    }


@pytest.fixture
def steps(tmp_path):
    return Steps(tmp_path / "log")


@pytest.fixture
def environment(tmp_path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# nothing\n")
    return venvs.Environment(tmp_path / "venv", requirements, (3, 8), (3, 99), "nothing")


def test_an_environment_is_made_completed_and_made_anew(steps, environment):
    assert not venvs.is_ready(environment)
    assert venvs.ensure(steps, environment)
    assert venvs.is_ready(environment)
    python = environment.folder / "bin" / "python"
    mark = environment.folder / "mark"
    mark.write_text("")

    (environment.folder / ".bsguard-stamp").unlink()  # interrupted in the middle of pip
    assert not venvs.is_ready(environment)
    assert venvs.ensure(steps, environment) and venvs.is_ready(environment)
    assert mark.exists(), "a folder that works is completed, not made anew"

    environment.requirements.write_text("# something else\n")
    assert not venvs.is_ready(environment)
    assert venvs.ensure(steps, environment) and venvs.is_ready(environment)
    assert mark.exists()

    python.unlink()  # the Python that made it was removed
    assert not venvs.is_ready(environment)
    assert venvs.ensure(steps, environment) and venvs.is_ready(environment)
    assert not mark.exists(), "a folder whose Python does not work is made anew"


def test_an_environment_cut_short_before_pip_is_made_anew(steps, environment):
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "bin" / "python").symlink_to(sys.executable)  # works, and has no pip of its own
    (environment.folder / "pyvenv.cfg").write_text("")
    assert venvs.ensure(steps, environment)
    assert venvs.is_ready(environment)


def test_a_python_that_does_not_fit_is_not_taken(steps, environment):
    none = environment._replace(oldest=(3, 98))
    assert venvs.find_python(none) is None
    assert not venvs.ensure(steps, none)
    assert not none.folder.exists()


def test_a_failed_step_shows_the_tail_and_the_way_out(steps, environment):
    environment.requirements.write_text("/nowhere/package-1.0-py3-none-any.whl\n")
    with pytest.raises(Failed) as failure:
        venvs.ensure(steps, environment)
    text = str(failure.value)
    assert "package-1.0-py3-none-any.whl" in text
    assert "setup.log" in text and "goes on where it stopped" in text
    assert not venvs.is_ready(environment)


def test_a_program_that_is_not_there(steps):
    with pytest.raises(Failed, match="this failed with exit status 127: no-such-program"):
        steps.run(["no-such-program"])
    assert steps.run(["false"], check=False) == 1


def test_without_root_it_says_what_to_install(steps, monkeypatch):
    monkeypatch.setattr(packages, "missing_packages", lambda: ["gcc", "uthash-dev"])
    monkeypatch.setattr(packages, "_root_command", lambda: None)
    with pytest.raises(Failed) as failure:
        packages.ensure_packages(steps)
    assert str(failure.value).splitlines() == [
        "please install these Debian packages (or what your system calls them): gcc uthash-dev",
        "  e.g. sudo apt-get install gcc uthash-dev",
    ]


def test_nothing_is_installed_where_nothing_is_missing(steps, monkeypatch):
    monkeypatch.setattr(packages, "missing_packages", lambda: [])
    monkeypatch.setattr(packages, "_root_command", lambda: pytest.fail("asked for root"))
    packages.ensure_packages(steps)


def test_the_first_build_after_a_change_is_not_skipped(tmp_path):
    file = tmp_path / "a.c"
    file.write_text("int a;\n")
    before = building.fingerprint([file])
    assert building.fingerprint([file]) == before
    file.write_text("int b;\n")
    assert building.fingerprint([file]) != before
    assert building.fingerprint([file, tmp_path / "gone.c"]) == building.fingerprint([file])
    assert building.fingerprint([file], "cmake") != building.fingerprint([file])


def test_every_source_is_watched(repo):
    files = set(building.source_files())
    assert {
        repo / "CMakeLists.txt",
        repo / "shim" / "bsguard.h",
        repo / "tests" / "simgpu" / "build_plugin.py",
    } <= files
    assert not any("__pycache__" in path.parts for path in files)
