"""Contexts, modules, streams and events: what they take without being asked, and what ends with them."""

import ctypes

from simgpu_support import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MIB,
    NOT_FOUND,
    OUT_OF_MEMORY,
    SUCCESS,
    Kind,
    fresh,
)
from test_routes import Pools

FILE_NOT_FOUND = 301


def creators(driver):
    """Every way to make a context of one's own, as functions of a pointer to the handle."""
    lib = driver.lib
    return [
        lambda out: lib.cuCtxCreate(out, 0, 0),
        lambda out: lib.cuCtxCreate_v2(out, 0, 0),
        lambda out: lib.cuCtxCreate_v3(out, None, 0, 0, 0),
        lambda out: lib.cuCtxCreate_v4(out, None, 0, 0),
    ]


@fresh(memory="16MiB", context_memory="3MiB")
def test_each_context_takes_memory_and_may_not_get_it(driver):
    made = []
    for create in creators(driver):
        own = ctypes.c_void_p()
        assert create(ctypes.byref(own)) == SUCCESS
        made.append(own)
    assert driver.used() == driver.used_by(Kind.CONTEXT) == 15 * MIB and driver.live_by(Kind.CONTEXT) == 5
    assert driver.lib.simgpu_live(0) == 0
    for create in creators(driver):
        assert create(ctypes.byref(ctypes.c_void_p())) == OUT_OF_MEMORY
    assert driver.lib.simgpu_failures() == 4 and driver.lib.simgpu_calls() == 0
    driver.alloc(MIB)  # in the newest one
    assert driver.lib.cuCtxDestroy_v2(made[-1]) == SUCCESS and driver.used() == 12 * MIB
    assert driver.lib.cuCtxDestroy(made[0]) == driver.lib.cuCtxDetach(made[1]) == SUCCESS
    assert driver.used() == 6 * MIB
    assert driver.lib.cuDevicePrimaryCtxRelease_v2(0) == SUCCESS and driver.used() == 3 * MIB


@fresh
def test_a_context_ends_with_its_last_attachment(driver):
    own, again = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.lib.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == SUCCESS
    assert driver.lib.cuCtxAttach(ctypes.byref(again), 0) == SUCCESS and again.value == own.value
    driver.alloc(MIB)
    assert driver.lib.cuCtxDetach(own) == SUCCESS and driver.used() == MIB
    assert driver.lib.cuCtxDetach(own) == SUCCESS and driver.used() == 0
    assert driver.lib.cuCtxDetach(own) == CONTEXT_IS_DESTROYED


@fresh(queue_memory="1KiB", module_memory="100KiB")
def test_what_a_context_owns_ends_with_it(driver):
    lib, own = driver.lib, ctypes.c_void_p()
    pools = Pools(driver)
    assert lib.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == SUCCESS
    stream, event, module = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == SUCCESS
    assert lib.cuEventCreate(ctypes.byref(event), 0) == lib.cuModuleLoadData(ctypes.byref(module), b"x") == SUCCESS
    assert driver.used_by(Kind.QUEUE) == 2048 and driver.used_by(Kind.MODULE) == 100 * 1024
    pooled = pools.alloc(1000)  # the device's, not the context's
    assert lib.cuCtxDestroy_v2(own) == SUCCESS
    assert driver.used_by(Kind.QUEUE) == driver.used_by(Kind.MODULE) == 0 and driver.requested_by(Kind.POOL) == 1000
    assert lib.cuStreamDestroy_v2(stream) == lib.cuEventDestroy_v2(event) == INVALID_HANDLE
    assert lib.cuModuleUnload(module) == INVALID_HANDLE
    assert pools.free(pooled) == SUCCESS


@fresh(memory="1MiB", module_memory="300KiB")
def test_modules_and_libraries(driver):
    lib, module, library, function = driver.lib, ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    none = [None, None, 0, None, None, 0]
    assert lib.cuModuleLoad(ctypes.byref(module), b"/no/such/file") == FILE_NOT_FOUND
    assert lib.cuModuleLoadData(ctypes.byref(module), None) == INVALID_VALUE
    assert lib.cuModuleLoad(ctypes.byref(module), __file__.encode()) == SUCCESS
    assert lib.cuLibraryLoadData(ctypes.byref(library), b"x", *none) == SUCCESS
    assert lib.cuLibraryLoadFromFile(ctypes.byref(library), __file__.encode(), *none) == SUCCESS
    assert driver.used_by(Kind.MODULE) == 3 * 300 * 1024
    assert lib.cuLibraryLoadData(ctypes.byref(ctypes.c_void_p()), b"x", *none) == OUT_OF_MEMORY
    assert lib.cuModuleLoadFatBinary(ctypes.byref(ctypes.c_void_p()), b"x") == OUT_OF_MEMORY
    assert lib.cuModuleLoadDataEx(ctypes.byref(ctypes.c_void_p()), b"x", 0, None, None) == OUT_OF_MEMORY
    assert lib.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == NOT_FOUND
    assert lib.cuModuleUnload(module) == lib.cuLibraryUnload(library) == SUCCESS
    assert lib.cuModuleUnload(module) == lib.cuLibraryUnload(library) == INVALID_HANDLE
    assert driver.used_by(Kind.MODULE) == 300 * 1024


@fresh(context_memory="1MiB")
def test_green_contexts_hold_the_primary_one(driver):
    lib = driver.lib
    resource, parts = (ctypes.c_ubyte * 144)(), (ctypes.c_ubyte * (144 * 4))()
    description, green, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    groups, stream = ctypes.c_uint(4), ctypes.c_void_p()
    assert lib.cuDeviceGetDevResource(0, resource, 1) == SUCCESS
    split = lib.cuDevSmResourceSplitByCount
    assert split(None, ctypes.byref(groups), resource, None, 0, 8) == SUCCESS and groups.value == 2
    assert split(parts, ctypes.byref(groups), resource, None, 0, 8) == SUCCESS
    assert lib.cuDevResourceGenerateDesc(ctypes.byref(description), parts, 1) == SUCCESS
    assert lib.cuGreenCtxCreate(ctypes.byref(green), description, 0, 0) == INVALID_VALUE
    assert lib.cuGreenCtxCreate(ctypes.byref(green), description, 0, 1) == SUCCESS
    assert lib.cuCtxFromGreenCtx(ctypes.byref(context), green) == SUCCESS
    assert lib.cuCtxSetCurrent(context) == SUCCESS
    assert lib.cuGreenCtxStreamCreate(ctypes.byref(stream), green, 1, 0) == SUCCESS
    address = driver.alloc(1000)
    assert driver.used_by(Kind.CONTEXT) == MIB  # the primary one's, nothing more
    assert lib.cuCtxDestroy_v2(context) == INVALID_CONTEXT
    assert lib.cuGreenCtxDestroy(green) == SUCCESS and lib.cuGreenCtxDestroy(green) == INVALID_VALUE
    assert driver.try_alloc(1)[0] == CONTEXT_IS_DESTROYED
    assert driver.requested_by(Kind.PLAIN) == 1000  # the primary context is held elsewhere
    assert lib.cuGreenCtxCreate(ctypes.byref(green), description, 0, 1) == SUCCESS
    assert lib.cuDevicePrimaryCtxRelease_v2(0) == SUCCESS
    assert driver.requested_by(Kind.PLAIN) == 1000 and driver.used_by(Kind.CONTEXT) == MIB
    assert lib.cuGreenCtxDestroy(green) == SUCCESS  # the last to hold it
    assert driver.used() == 0 and driver.free(address) == INVALID_VALUE


@fresh(fail_calls="all")
def test_whatever_may_run_out_of_memory_can_be_made_to(driver):
    lib, out = driver.lib, ctypes.c_void_p()
    graph = ctypes.c_void_p()
    assert lib.cuGraphCreate(ctypes.byref(graph), 0) == SUCCESS
    before = lib.simgpu_calls()
    lib.simgpu_fail_at(1, 1000)
    none = [None, None, 0, None, None, 0]
    calls = [
        *creators(driver),
        lambda out: lib.cuStreamCreate(out, 0),
        lambda out: lib.cuStreamCreateWithPriority(out, 0, 0),
        lambda out: lib.cuEventCreate(out, 0),
        lambda out: lib.cuModuleLoadData(out, b"x"),
        lambda out: lib.cuLibraryLoadData(out, b"x", *none),
        lambda out: lib.cuGraphInstantiateWithFlags(out, graph, ctypes.c_ulonglong(0)),
        lambda out: lib.cuMemHostAlloc(out, ctypes.c_size_t(64), 0),
        lambda out: lib.cuMemAllocHost_v2(out, ctypes.c_size_t(64)),
    ]
    for call in calls:
        assert call(ctypes.byref(out)) == OUT_OF_MEMORY and out.value is None
    assert lib.cuMemHostRegister_v2(ctypes.create_string_buffer(64), ctypes.c_size_t(64), 0) == OUT_OF_MEMORY
    assert lib.simgpu_calls() - before == lib.simgpu_failures() == len(calls) + 1
    lib.simgpu_fail_at(0, 0)
    assert lib.cuDevicePrimaryCtxRelease_v2(0) == SUCCESS
    lib.simgpu_fail_at(1, 1)
    assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(out), 0) == OUT_OF_MEMORY
    assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(out), 0) == SUCCESS and driver.used() == 0
