"""Puts bsguard into a Paddle that has just been imported: the list of what is patched, and nothing else.

Guarding patches Layer.__call__, run_backward, run_partial_grad, Optimizer.step, the gradient accessors of parameters,
DataParallel and the collectives, and places outside of the layers (places.py, loader.py; operators while steps are armed:
operations.py);
observing patches the first two and Optimizer.step, with functions that only look. A Paddle that lacks one of them is
left alone, in one line.
"""

import os
import sys

from . import native, observe
from .runtime import runtime


def install(paddle):
    """Never raises: what goes wrong here leaves the job unguarded, and says so in one line."""
    try:
        _install(paddle)
    except Exception as error:
        runtime.guarding = False
        what = (type(error).__name__, error)
        sys.stderr.write("bsguard: this Paddle cannot be guarded (%s: %s); the job runs unguarded\n" % what)


def _install(paddle):
    library, why = native.load()
    if library is None:
        raise RuntimeError(why)
    mode = library.mode()
    if mode == native.MODE_OFF:
        return
    core = paddle.base.core
    runtime.paddle, runtime.library = paddle, library
    runtime.layer_call = paddle.nn.Layer.__call__
    runtime.run_backward = core.eager.run_backward
    runtime.run_partial_grad = core.eager.run_partial_grad
    runtime.arm = library.option("BSGUARD_ARM") or "auto"
    library.attach("paddle " + paddle.__version__, os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else None)

    from . import steps, uncaught

    uncaught.patch()
    steps.patch()
    if mode == native.MODE_OBSERVE:
        paddle.nn.Layer.__call__ = observe.layer_call
        core.eager.run_backward = observe.run_backward
        return

    from . import (
        backward,
        boundary,
        collectives,
        functional,
        gradients,
        inplace,
        loader,
        named,
        partial,
        peaks,
        places,
        ranks,
        resume,
        scaler,
        state,
    )

    gradients.patch()
    peaks.patch()
    state.patch()
    functional.patch()
    loader.patch()
    places.patch()
    ranks.patch()
    collectives.patch()
    resume.patch(steps.optimizers())
    inplace.patch()
    scaler.patch()
    paddle.nn.Layer.__call__ = boundary.layer_call
    core.eager.run_backward = backward.run_backward
    runtime.run_partial_grad = partial.forgetting(runtime.run_partial_grad)
    core.eager.run_partial_grad = partial.run_partial_grad
    named.watch(library.option("BSGUARD_BOUNDARY"))
    runtime.guarding = True
    _fail_fast(paddle)


def _fail_fast(paddle):
    """Paddle waits 10 s between its attempts to allocate; what it waits for is what bsguard does. Unless the user set it."""
    name = "FLAGS_gpu_allocator_retry_time"
    if name in os.environ:
        return
    try:
        paddle.set_flags({name: 1})
    except Exception:
        pass  # a Paddle without CUDA has no such flag
