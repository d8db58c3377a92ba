"""Names of the device: "gpu:0" and "cuda", CUDAPlace, Tensor.cuda(), is_compiled_with_cuda() and GPU-only flags."""
import os
import sys

from .caller import asked_by_user, module_of_caller

__all__ = ["ordinal", "patch"]

GPU_FLAGS = ("cudnn", "cublas", "cuda", "gpu", "gemm", "nccl")


def patch(paddle):
    core = paddle.base.core
    _patch_strings(paddle, core)
    _patch_places(paddle, core)
    _patch_tensors(paddle, core)
    _patch_flags(paddle)

    def is_compiled_with_cuda():
        return asked_by_user()

    paddle.is_compiled_with_cuda = paddle.device.is_compiled_with_cuda = is_compiled_with_cuda


def ordinal(device):
    """Device number of None (the current one), an int, a place, or a string like "gpu:1"."""
    import paddle

    if device is None:
        device = paddle.framework._current_expected_place()
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        return int(device.split(":")[1]) if ":" in device else _selected()
    if hasattr(device, "custom_device_id"):  # a place that a tensor says it is on
        return device.custom_device_id() if device.is_custom_place() else 0
    return device.get_device_id() if hasattr(device, "get_device_id") else 0


def _selected():
    return int(os.environ.get("FLAGS_selected_gpus", "0").split(",")[0] or 0)


def _patch_strings(paddle, core):
    original = paddle.device._convert_to_place

    def _convert_to_place(device):
        if isinstance(device, str):
            kind, colon, number = device.lower().partition(":")
            if kind in ("gpu", "cuda") and (number.isdigit() or not colon):
                return core.CustomPlace("gpu", int(number) if colon else _selected())
        return original(device)

    # paddle.device is not a plain module in Paddle 3: its functions' globals are what counts.
    original.__globals__["_convert_to_place"] = _convert_to_place
    for name, module in list(sys.modules.items()):
        if name.startswith("paddle") and getattr(module, "_convert_to_place", None) is original:
            module._convert_to_place = _convert_to_place


def _patch_places(paddle, core):
    def make(number=None):
        return core.CustomPlace("gpu", _selected() if number is None else int(number))

    class Cuda(type):
        def __call__(cls, number=None):
            return make(number)

        def __instancecheck__(cls, value):
            # Paddle's own code asks whether it may call CUDA: it may not.
            return isinstance(value, core.CustomPlace) and asked_by_user()

    class Pinned(type):
        def __call__(cls):
            return core.CPUPlace()

        def __instancecheck__(cls, value):
            return False

    paddle.CUDAPlace = Cuda("CUDAPlace", (), {})
    paddle.CUDAPinnedPlace = Pinned("CUDAPinnedPlace", (), {})

    _patch_questions(paddle, core)


def _patch_questions(paddle, core):
    """What tensor.place says of itself: a GPU to the user's code, a custom device to Paddle's.

    Paddle 2 refuses bfloat16 AMP on any custom device: its auto_cast, too, is told that it has a GPU.
    """
    is_gpu_place, is_custom_place = core.Place.is_gpu_place, core.Place.is_custom_place
    deceived = "paddle.amp.auto_cast" if paddle.__version__.startswith("2.") else None

    def patched_is_gpu_place(self):
        if asked_by_user() or module_of_caller() == deceived:
            return is_custom_place(self)
        return is_gpu_place(self)

    def patched_is_custom_place(self):
        return module_of_caller() != deceived and is_custom_place(self)

    core.Place.is_gpu_place = patched_is_gpu_place
    if deceived:
        core.Place.is_custom_place = patched_is_custom_place
        module = sys.modules[deceived]
        module._is_gpu_float16_supported = module._is_gpu_bfloat16_supported = lambda: True


def _patch_tensors(paddle, core):
    def cuda(self, device_id=None, blocking=True):
        place = device_id if isinstance(device_id, core.CustomPlace) else None
        if place is None:
            place = core.CustomPlace("gpu", ordinal(device_id) if device_id is not None else _selected())
        if self.place._equals(place):
            return self
        copy = self._copy_to(place, blocking)
        copy.stop_gradient, copy.persistable = self.stop_gradient, self.persistable
        return copy

    def pin_memory(self, *args, **kwargs):
        return self.cpu()

    paddle.Tensor.cuda, paddle.Tensor.pin_memory = cuda, pin_memory


def _patch_flags(paddle):
    original = paddle.set_flags

    def set_flags(flags):
        """Flags that only a CUDA build has are accepted and forgotten."""
        for name, value in flags.items():
            try:
                original({name: value})
            except ValueError:
                if not any(word in name for word in GPU_FLAGS):
                    raise

    paddle.set_flags = set_flags
