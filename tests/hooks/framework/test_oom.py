"""What is taken for an OOM, and what is not; and a failure that was caught holds no tensor: not by the frames of its
traceback, nor by what locals() left with them."""

import json
import sys

import pytest

SCRIPT = """
import weakref

from bsguard_paddle.oom import attempt


class Activation:
    pass


alive = []


def layer(way):
    x = Activation()
    alive.append(weakref.ref(x))
    if way == "locals":
        dict(**locals())
    elif way == "inner":
        deeper = lambda: x
        layer("plain")
    elif way == "generator":
        list(layer("plain") for _ in (x,))
    elif way == "context":
        try:
            raise KeyError("no such key")
        except KeyError:
            raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0")
    elif way == "cause":
        try:
            layer("context")
        except MemoryError as error:
            raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0") from error
    raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0")


result, failure = attempt(lambda: layer({way!r}))
assert result is None and alive
assert not any(reference() for reference in alive), alive
chain = []
try:
    failure.throw()
except MemoryError as error:
    while error is not None:
        chain.append((type(error).__name__, error.__cause__ is not None, error.__traceback__ is not None))
        error = error.__context__
wanted = [("MemoryError", False, True), ("KeyError", False, True)]
expected = {{"context": wanted, "cause": [("MemoryError", True, True), *wanted]}}
assert chain == expected.get({way!r}, wanted[:1]), chain
"""


@pytest.mark.parametrize("way", ["plain", "locals", "inner", "generator", "context", "cause"])
def test_nothing_is_held(run_plain, repo, way):
    job = run_plain(
        [sys.executable, "-c", SCRIPT.format(way=way)], env={"PYTHONPATH": str(repo / "hooks" / "framework")}
    )
    assert job.returncode == 0, job


DEVICE = (
    "Out of memory error on GPU 0. Cannot allocate 3.000000GB memory on GPU 0, available memory is only 1.000000GB."
)
RECOGNISED = [
    ("MemoryError", "ResourceExhaustedError: " + DEVICE),
    ("MemoryError", "Out of memory error on gpu:0. Cannot allocate 3.0MB memory on gpu:0"),
    ("OSError", "(External) CUDA error(2), out of memory. [Hint: 'cudaErrorMemoryAllocation'.]"),
    ("OSError", "(External) CUBLAS error(3). [Hint: Please search for the error code(3) on the website]"),
    ("OSError", "(External) CUDNN error(4), CUDNN_STATUS_ALLOC_FAILED."),
    ("OSError", "(External) CUDNN error(4003), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED."),
    ("OSError", "(External) CUSOLVER error(2), CUSOLVER_STATUS_ALLOC_FAILED."),
    ("SystemError", "(Fatal) Operator conv2d raises an paddle::memory::allocation::BadAlloc exception."),
    ("OSError", "(External) MemoryError: ResourceExhaustedError: " + DEVICE),  # around a PyLayer's backward
    ("RuntimeError", "ResourceExhaustedError: " + DEVICE),
]
NOT = [
    ("MemoryError", ""),
    ("MemoryError", "my pool is full"),
    ("MemoryError", "std::bad_alloc"),
    ("MemoryError", "Unable to allocate 3.00 GiB for an array with shape (805306368,) and data type float32"),
    ("MemoryError", "ResourceExhaustedError: Fail to alloc memory of 3221225472 size, error code is 12."),
    ("SystemError", "ResourceExhaustedError: Fail to alloc memory of 64 size by paddle::memory::allocation::BadAlloc"),
    ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB"),  # another framework's, in the same process
    ("RuntimeError", "BadAlloc in my own allocator"),
    ("OSError", "[Errno 12] Cannot allocate memory"),
    ("OSError", "[Errno 28] No space left on device"),
    ("OSError", "(External) CUDA error(200), device kernel image is invalid."),
    ("OSError", "(External) CUDA error(700), an illegal memory access was encountered."),
    ("OSError", "(External) CUBLAS error(13)."),
    ("OSError", "(External) CUDNN error(8), CUDNN_STATUS_EXECUTION_FAILED."),
    ("ValueError", "ResourceExhaustedError: " + DEVICE),
    ("KeyboardInterrupt", "Out of memory error on GPU 0"),
]
LOOK = """
import builtins, json, sys

from bsguard_paddle.oom import is_oom, request_bytes

print(json.dumps([is_oom(getattr(builtins, kind)(text)) for kind, text in json.loads(sys.argv[1])]))
print(request_bytes("Cannot allocate 3.000000GB memory on GPU 0"))
"""


def test_forms_of_the_exception(run_plain, repo):
    """Every form that Paddle gives it, and none of what only looks like it."""
    given = json.dumps(RECOGNISED + NOT)
    job = run_plain([sys.executable, "-c", LOOK, given], env={"PYTHONPATH": str(repo / "hooks" / "framework")})
    assert job.returncode == 0, job
    answers, size = map(json.loads, job.stdout.splitlines())
    wrong = [case for case, answer in zip(RECOGNISED + NOT, answers) if answer != (case in RECOGNISED)]
    assert wrong == [] and size == 3 << 30
