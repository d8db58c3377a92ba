"""What the modules of the adapter share: Paddle, the library, the originals of what is patched, and one state per thread.

Set once by adapter.install(); no module imports paddle by itself, since the adapter is loaded while paddle's own import
is still on the stack.
"""

import threading


class _Thread(threading.local):
    saved_tensors_hooks = None  # the user's context that is entered now
    ours = False  # a hook is registered that is ours
    trial = 0  # > 0 in a forward of the split proof
    recording = None  # a list that outermost layers are noted in, while a named boundary makes itself known
    hooks = 0  # how many gradient hooks the user has registered on tensors so far
    noting = False  # in a loss layer of Paddle's own: what it calls is no loss of the loop's
    loss = 0  # > 0 in a layer of the loss region: its operators are tried again
    deferred = None  # a list: reducers are told of no forward, and those that would be are noted (ranks.py)
    collective = None  # name of the last one that ran below a boundary
    updating = 0  # > 0 in an optimizer's step and where gradients are unscaled
    writes = 0  # operators of updates that write to what they are given, begun so far (inplace.py)
    nested = 0  # backwards inside of a backward so far
    watch = None  # nested.Watch that is entered
    inside = 0  # > 0 below a boundary, in a backward or in a trial: Layer calls are Paddle's own there


class _Runtime:
    paddle = None
    library = None
    arm = "auto"  # BSGUARD_ARM
    keep = "auto"  # BSGUARD_KEEP
    guarding = False  # False in observe mode and after a fault of our own
    layer_call = None  # the originals
    run_backward = None
    run_partial_grad = None
    device = 0  # CUDA ordinal that was trained on last


runtime = _Runtime()
thread = _Thread()


def paddle_of():
    """The paddle module."""
    return runtime.paddle


def is_tensor(value):
    """True for an eager tensor."""
    return isinstance(value, runtime.paddle.base.core.eager.Tensor)


def note_phase(error, phase):
    """Remembers on an exception in which phase it was raised: who sees it at the top comes too late to ask."""
    if isinstance(error, Exception) and not hasattr(error, "_bsguard_phase"):
        try:
            error._bsguard_phase = phase
        except AttributeError:
            pass


class inside:
    """While entered, Layer calls of this thread are Paddle's own."""

    def __enter__(self):
        thread.inside += 1

    def __exit__(self, *_):
        thread.inside -= 1


def original_call(layer, args, kwargs):
    """Paddle's own Layer.__call__, nested boundaries switched off."""
    thread.inside += 1
    try:
        return runtime.layer_call(layer, *args, **kwargs)
    finally:
        thread.inside -= 1


def device_of(tensor):
    """CUDA ordinal of the device that holds a tensor; -1 if it is not on one."""
    place = tensor.place
    if place.is_gpu_place():
        return place.gpu_device_id()
    if place.is_custom_place() and place.custom_device_type() == "gpu":
        return place.custom_device_id()
    return -1


def reclaim():
    """Gives the framework's cached memory back to the device."""
    paddle = runtime.paddle
    try:
        paddle.device.cuda.synchronize()
        paddle.device.cuda.empty_cache()
    except Exception:  # nothing cached, or no such device: the retry will show
        pass


def allocated(device):
    """(allocated now, its peak so far) in bytes by the framework's own count; (0, 0) where it keeps none."""
    core = runtime.paddle.base.core
    try:
        now = core.device_memory_stat_current_value("Allocated", device)
        return int(now), int(core.device_memory_stat_peak_value("Allocated", device))
    except Exception:
        return 0, 0
