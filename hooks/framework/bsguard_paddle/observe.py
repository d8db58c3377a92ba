"""BSGUARD=observe: says where the job is, records what happens, and changes nothing.

The same choke points as when guarding, each of which notes the phase and calls Paddle's own.
"""

from . import native, uncaught
from .oom import is_oom
from .runtime import device_of, original_call, runtime, thread


def layer_call(self, *args, **kwargs):
    """Stands in for paddle.nn.Layer.__call__."""
    if thread.inside:
        return runtime.layer_call(self, *args, **kwargs)
    if runtime.paddle.in_dynamic_mode():
        grad = runtime.paddle.base.framework._dygraph_tracer()._has_grad
        before = runtime.library.set_phase(native.FORWARD if grad else native.EVALUATION)
        _note_device(self)
    else:
        grad, before = False, runtime.library.set_phase(native.OTHER)
    after = native.LOSS if grad else before
    try:
        return original_call(self, args, kwargs)
    except Exception as error:
        if is_oom(error):
            uncaught.report(error, "observe mode")
        raise
    finally:
        runtime.library.set_phase(after)


def run_backward(*arguments):
    """Stands in for core.eager.run_backward."""
    if thread.inside:
        return runtime.run_backward(*arguments)
    before = runtime.library.set_phase(native.BACKWARD)
    thread.inside += 1
    try:
        return runtime.run_backward(*arguments)
    except Exception as error:
        if is_oom(error):
            uncaught.report(error, "observe mode")
        raise
    finally:
        thread.inside -= 1
        runtime.library.set_phase(native.OTHER if before == native.LOSS else before)


def _note_device(layer):
    parameter = next(iter(layer.parameters()), None)
    if parameter is not None:
        device = device_of(parameter)
        if device >= 0:
            runtime.device = device
