"""Puts bsguard into a Paddle that has just been imported: the list of what is patched, and nothing else.

Guarding patches Layer.__call__, run_backward, run_partial_grad, Optimizer.step, the gradient accessors of parameters,
DataParallel and the collectives, and places outside of the layers (places.py, loader.py; operators while steps are armed:
operations.py);
observing patches the first two and Optimizer.step, with functions that only look. A Paddle that lacks one of them is
left alone, in one line.
"""

import os
import sys
import threading
import types

from . import native, observe
from .runtime import runtime


def install(paddle):
    """Never raises: what goes wrong here leaves the job unguarded, Paddle as it was, and says so in one line."""
    before = []
    try:
        _install(paddle, before)
    except Exception as error:
        runtime.guarding = False
        _put_back(before)
        what = (type(error).__name__, error)
        sys.stderr.write("bsguard: this Paddle cannot be guarded (%s: %s); the job runs unguarded\n" % what)


def _owners(paddle):
    """Every module and class in which something may be replaced. A Paddle that lacks one of them cannot be guarded."""
    core = paddle.base.core
    yield from (sys, threading, paddle, core, core.eager, paddle._C_ops, paddle._legacy_C_ops)
    yield from (paddle.tensor, paddle.tensor.creation, paddle.framework, paddle.framework.io, paddle.metric)
    yield from (paddle.nn.functional, paddle.nn.Layer, paddle.nn.initializer.Initializer, paddle.metric.Accuracy)
    yield from (core.eager.Tensor, paddle.base.framework.EagerParamBase, paddle.DataParallel)
    yield paddle.amp.grad_scaler.AmpScaler
    iterators = getattr(getattr(paddle.io, "dataloader", None), "dataloader_iter", None)
    for owner, name in (
        (core, "ProcessGroup"),
        (paddle.autograd, "saved_tensors_hooks"),
        (iterators, "_DataLoaderIterSingleProcess"),
        (iterators, "_DataLoaderIterMultiProcess"),
    ):
        if hasattr(owner, name):
            yield getattr(owner, name)


def _put_back(before):
    """Gives each of `before` [(module or class, what was in it)] what it had, and takes away what is ours."""
    for owner, held in before:
        for name, value in list(vars(owner).items()):
            if held.get(name, before) is value or not _is_ours(value):
                continue
            try:
                if name in held:
                    setattr(owner, name, held[name])
                else:
                    delattr(owner, name)
            except Exception:
                pass  # it is called, and does nothing: runtime.guarding is false


def _is_ours(value):
    value = value.fget if isinstance(value, property) else value
    mine = os.path.dirname(_is_ours.__code__.co_filename)
    return isinstance(value, types.FunctionType) and os.path.dirname(value.__code__.co_filename) == mine


def _install(paddle, before):
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
    runtime.keep = library.option("BSGUARD_KEEP") or "auto"

    from . import steps, uncaught

    before.extend((owner, dict(vars(owner))) for owner in [*_owners(paddle), *steps.optimizers()])
    uncaught.patch()
    steps.patch()
    if mode == native.MODE_OBSERVE:
        paddle.nn.Layer.__call__ = observe.layer_call
        core.eager.run_backward = observe.run_backward
        _attach(paddle)
        return

    from . import (
        backward,
        boundary,
        collectives,
        foresee,
        functional,
        gradients,
        hooks,
        inplace,
        loader,
        named,
        operations,
        partial,
        peaks,
        places,
        ranks,
        resume,
        scaler,
        state,
    )

    gradients.patch()
    hooks.patch()
    peaks.patch()
    state.patch()
    functional.patch()
    foresee.patch()
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
    if runtime.arm == "always":
        operations.watch()  # else from the first armed step on; what a script makes before it can be made twice as well
    _attach(paddle)
    _fail_fast(paddle)


def _attach(paddle):
    """Last: until then what an OOM is is inferred from the driver's calls."""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else None
    runtime.library.attach("paddle " + paddle.__version__, script)


def _fail_fast(paddle):
    """Paddle waits 10 s between its attempts to allocate; what it waits for is what bsguard does. Unless the user set it."""
    name = "FLAGS_gpu_allocator_retry_time"
    if name in os.environ:
        return
    try:
        paddle.set_flags({name: 1})
    except Exception:
        pass  # a Paddle without CUDA has no such flag
