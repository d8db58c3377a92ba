"""paddle.device.cuda.*: memory statistics, caches, properties, streams.

Paddle 3 keeps allocator statistics of a custom device; Paddle 2 does not, there the driver's figures stand for both what is
allocated and what is reserved. All sizes in bytes.
"""

import types

from . import driver
from .places import ordinal

__all__ = ["patch"]

NAME, CAPABILITY, MULTIPROCESSORS = "Simulated GPU", (8, 0), 16


def patch(paddle):
    core, cuda = paddle.base.core, paddle.device.cuda
    names = _statistics(core, has_statistics=not paddle.__version__.startswith("2."))
    names.update(_device_facts(core))
    names.update(_streams(paddle))

    def empty_cache():
        core.device_empty_cache()

    if hasattr(core, "device_empty_cache"):
        names["empty_cache"] = empty_cache
    for module in {id(m): m for m in (cuda, getattr(paddle, "cuda", cuda))}.values():
        for name, function in names.items():
            if name in cuda.__dict__ or name in module.__dict__:
                setattr(module, name, function)


def _statistics(core, has_statistics):
    def current(kind):
        def value(device=None):
            number = ordinal(device)
            return core.device_memory_stat_current_value(kind, number) if has_statistics else driver.used(number)

        return value

    def peak(kind):
        def value(device=None):
            number = ordinal(device)
            return core.device_memory_stat_peak_value(kind, number) if has_statistics else driver.peak(number)

        return value

    def reset(kind):
        def value(device=None):
            number = ordinal(device)
            if has_statistics:
                core.device_memory_stat_reset_peak_value(kind, number)
            else:
                driver.peak(number, reset=True)

        return value

    return {
        "memory_allocated": current("Allocated"),
        "memory_reserved": current("Reserved"),
        "max_memory_allocated": peak("Allocated"),
        "max_memory_reserved": peak("Reserved"),
        "reset_max_memory_allocated": reset("Allocated"),
        "reset_max_memory_reserved": reset("Reserved"),
    }


def _device_facts(core):
    def device_count():
        return core.get_custom_device_count("gpu")

    def get_device_properties(device=None):
        return types.SimpleNamespace(
            name=NAME,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=driver.total(ordinal(device)),
            multi_processor_count=MULTIPROCESSORS,
        )

    def get_device_name(device=None):
        return NAME

    def get_device_capability(device=None):
        return CAPABILITY

    def mem_get_info(device=None):
        return driver.free_and_total(ordinal(device))

    return {
        "device_count": device_count,
        "get_device_properties": get_device_properties,
        "get_device_name": get_device_name,
        "get_device_capability": get_device_capability,
        "mem_get_info": mem_get_info,
    }


def _streams(paddle):
    core = paddle.base.core

    def synchronize(device=None):
        core._synchronize_custom_device("gpu", ordinal(device))

    def current_stream(device=None):
        return paddle.device.current_stream(f"gpu:{ordinal(device)}")

    return {
        "synchronize": synchronize,
        "current_stream": current_stream,
        "stream_guard": paddle.device.stream_guard,
        "Stream": paddle.device.Stream,
        "Event": paddle.device.Event,
    }
