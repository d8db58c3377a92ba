"""Names of the device: "gpu:0" and "cuda", CUDAPlace, Tensor.cuda(), is_compiled_with_cuda() and GPU-only flags."""

import os
import sys

from .caller import asked_by_user

__all__ = ["ordinal", "patch"]

GPU_FLAGS = ("cudnn", "cublas", "cuda", "gpu", "gemm", "nccl")


def patch(paddle):
    core = paddle.base.core
    _patch_strings(paddle, core)
    _patch_places(paddle, core)
    _patch_tensors(paddle, core)
    _patch_flags(paddle)
    _patch_generators(paddle, core)

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
    def place_of(text):
        kind, colon, number = text.lower().partition(":")
        if kind in ("gpu", "cuda") and (number.isdigit() or not colon):
            return core.CustomPlace("gpu", int(number) if colon else _selected())
        return core.CPUPlace() if kind == "gpu_pinned" else None

    def translating(original):
        def convert(place):
            found = place_of(place) if isinstance(place, str) else None
            return original(place) if found is None else found

        return convert

    for original in (paddle.device._convert_to_place, paddle.base.framework._get_paddle_place):
        _replace_everywhere(original, translating(original))


def _replace_everywhere(original, replacement):
    """In the module that defines a function and in those that took it from there."""
    name = original.__name__
    # paddle.device is not a plain module in Paddle 3: its functions' globals are what counts.
    original.__globals__[name] = replacement
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("paddle") and getattr(module, name, None) is original:
            setattr(module, name, replacement)


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
    """What tensor.place says of itself: a GPU to the user's code, a custom device to Paddle's."""
    is_gpu_place, is_custom_place = core.Place.is_gpu_place, core.Place.is_custom_place

    def patched_is_gpu_place(self):
        return is_custom_place(self) if asked_by_user() else is_gpu_place(self)

    core.Place.is_gpu_place = patched_is_gpu_place


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


def _patch_generators(paddle, core):
    """Operators run as CPU kernels and draw from the CPU's generator: its state is the device's."""
    original = core.default_custom_device_generator

    def default_custom_device_generator(place):
        return core.default_cpu_generator() if place.get_device_type() == "gpu" else original(place)

    def get_cuda_rng_state():
        return [core.default_cpu_generator().get_state() for _ in range(core.get_custom_device_count("gpu"))]

    def set_cuda_rng_state(states):
        for state in states:
            core.default_cpu_generator().set_state(state)

    core.default_custom_device_generator = default_custom_device_generator
    paddle.get_cuda_rng_state, paddle.set_cuda_rng_state = get_cuda_rng_state, set_cuda_rng_state
