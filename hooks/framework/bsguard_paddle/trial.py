"""A trial: a forward of a few samples that nobody sees. It prints nothing, runs no backward of its own, and where it is asked
for draws no random numbers; what it changes is for who runs it to put back.
"""

import contextlib
import sys

from . import ranks, tree
from .noise import Noise
from .oom import Failure, is_oom
from .runtime import is_tensor, original_call, runtime, thread
from .state import batch_norm_kinds

NO_MEMORY = "a trial with two samples did not fit the memory"


def run(layer, args, kwargs, mode, grad):
    """One forward of a trial: what it prints is not shown, and a backward inside it is an error."""
    thread.trial += 1
    try:
        with _Quiet(), ranks.deferring():
            return mode.run(lambda: original_call(layer, args, kwargs), grad=grad)
    finally:
        thread.trial -= 1


class _Quiet:
    """Swallows what this thread prints while entered; the job's other threads are heard."""

    def __enter__(self):
        self._shown = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (_Unheard(stream) for stream in self._shown)

    def __exit__(self, *_):
        for name, stream in zip(("stdout", "stderr"), self._shown):
            if isinstance(getattr(sys, name), _Unheard):
                setattr(sys, name, stream)


class _Unheard:
    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        return len(text) if thread.trial else self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def failed(error):
    """What stands against a cut whose trial raised this, in words."""
    if is_oom(error):
        Failure(error)  # lets go of what the traceback holds
        return NO_MEMORY
    return "the trial failed (%s: %s)" % (type(error).__name__, (str(error).strip().splitlines() or [""])[-1][:120])


class Written:
    """Notices that a forward wrote to its arguments: to a tensor in place, or to a container."""

    def __init__(self, arguments):
        self._leaves = tree.leaves(arguments)
        self._shape = tree.shape_of(arguments)
        self._versions = [leaf.inplace_version for leaf in self._leaves if is_tensor(leaf)]

    def changed(self, arguments):
        """True if `arguments`, the same objects, are not what they were."""
        now = tree.leaves(arguments)
        return (
            tree.shape_of(arguments) != self._shape
            or any(a is not b for a, b in zip(now, self._leaves))
            or [leaf.inplace_version for leaf in self._leaves if is_tensor(leaf)] != self._versions
        )


@contextlib.contextmanager
def without_randomness(layer):
    """Dropout off, BatchNorm on its running statistics and noise the same for all, for the time of a trial: Noise."""
    paddle = runtime.paddle
    base = batch_norm_kinds()
    layers = layer.sublayers(include_self=True)
    changed = [sub for sub in layers if sub.training and (isinstance(sub, base) or "Drop" in type(sub).__name__)]
    # Out of training these have no backward.
    recurrent = [(sub, sub.dropout) for sub in layers if isinstance(sub, paddle.nn.layer.rnn.RNNBase) and sub.dropout]
    modules = (paddle.nn.functional, paddle.nn.functional.common)
    names = ("dropout", "dropout2d", "dropout3d", "alpha_dropout")
    kept = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    for sub in changed:
        sub.training = False
    for sub, _ in recurrent:
        sub.dropout = 0.0
    try:
        for module, name, function in kept:
            setattr(module, name, _passing(function))
        with Noise() as noise:
            yield noise
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
        for sub in changed:
            sub.training = True
        for sub, rate in recurrent:
            sub.dropout = rate


def _passing(function):
    def pass_through(x, *args, **kwargs):
        # Another thread of the job may call it meanwhile, in earnest.
        return x if thread.trial else function(x, *args, **kwargs)

    return pass_through
