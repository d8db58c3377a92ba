"""cuGetProcAddress: which function a name, a version and flags lead to; and what the library exports."""

import ctypes
import os
import subprocess
import sys

import pytest
from simgpu_support import DRIVER, INVALID_VALUE, NOT_FOUND, SUCCESS, Driver

LEGACY, PER_THREAD = 1, 2
FOUND, NO_SUCH_NAME, TOO_OLD = 0, 1, 2


def look_up(name, version, flags=0):
    """(result, address, status) of cuGetProcAddress_v2."""
    lib, address, status = Driver(ready=False).lib, ctypes.c_void_p(7), ctypes.c_int(7)
    result = lib.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    return result, address.value, status.value


def exported(name):
    return ctypes.cast(getattr(Driver(ready=False).lib, name), ctypes.c_void_p).value


@pytest.mark.parametrize(
    ("name", "version", "flags", "function"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3019, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 12000, PER_THREAD, "cuMemAlloc_v2"),
        ("cuMemFree", 3010, 0, "cuMemFree"),
        ("cuMemFree", 3020, LEGACY, "cuMemFree_v2"),
        ("cuMemGetInfo", 12000, 0, "cuMemGetInfo_v2"),
        ("cuMemAllocManaged", 6000, 0, "cuMemAllocManaged"),
        ("cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease"),
        ("cuDevicePrimaryCtxRelease", 11000, 0, "cuDevicePrimaryCtxRelease_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuMemcpyHtoD", 6050, PER_THREAD, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 7000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 7000, LEGACY, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoDAsync", 12000, PER_THREAD, "cuMemcpyHtoDAsync_v2_ptsz"),
        ("cuMemcpyDtoDAsync", 3000, 0, "cuMemcpyDtoDAsync"),
        ("cuMemsetD8Async", 12000, PER_THREAD, "cuMemsetD8Async_ptsz"),
        ("cuEventRecord", 12000, PER_THREAD, "cuEventRecord_ptsz"),
        ("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 11020, PER_THREAD, "cuMemAllocAsync_ptsz"),
        ("cuMemAllocFromPoolAsync", 12000, PER_THREAD, "cuMemAllocFromPoolAsync_ptsz"),
        ("cuMemFreeAsync", 12000, LEGACY, "cuMemFreeAsync"),
        ("cuMemHostRegister", 6000, 0, "cuMemHostRegister"),
        ("cuMemHostRegister", 6050, 0, "cuMemHostRegister_v2"),
        ("cuArrayCreate", 3010, 0, "cuArrayCreate"),
        ("cuArray3DCreate", 12000, 0, "cuArray3DCreate_v2"),
        ("cuIpcOpenMemHandle", 10000, 0, "cuIpcOpenMemHandle"),
        ("cuIpcOpenMemHandle", 11000, 0, "cuIpcOpenMemHandle_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuStreamBeginCapture", 10000, PER_THREAD, "cuStreamBeginCapture_ptsz"),
        ("cuStreamBeginCapture", 10010, PER_THREAD, "cuStreamBeginCapture_v2_ptsz"),
        ("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"),
        ("cuStreamGetCaptureInfo", 12030, PER_THREAD, "cuStreamGetCaptureInfo_v3_ptsz"),
        ("cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"),
        ("cuGraphInstantiateWithFlags", 11040, 0, "cuGraphInstantiateWithFlags"),
        ("cuGraphAddNode", 12020, 0, "cuGraphAddNode"),
        ("cuGraphAddNode", 12030, 0, "cuGraphAddNode_v2"),
        ("cuGraphLaunch", 12000, PER_THREAD, "cuGraphLaunch_ptsz"),
    ],
)
def test_the_right_form_is_found(name, version, flags, function):
    assert look_up(name, version, flags) == (SUCCESS, exported(function), FOUND)


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("", 0, NO_SUCH_NAME),  # what libcudart asks first
        ("cuNoSuchThing", 12000, NO_SUCH_NAME),
        ("cuMemAlloc_v2", 12000, NO_SUCH_NAME),  # names are bare
        ("cuMemAllocManaged", 5050, TOO_OLD),
        ("cuMemAlloc", 0, TOO_OLD),
        ("cuMemAllocAsync", 11010, TOO_OLD),
        ("cuMemGetMemPool", 13000, NO_SUCH_NAME),  # newer than this driver
    ],
)
def test_what_is_not_found_has_a_reason(name, version, status):
    assert look_up(name, version) == (SUCCESS, None, status)


def test_without_a_status_the_result_says_it():
    lib, address = Driver(ready=False).lib, ctypes.c_void_p(7)
    flags = ctypes.c_uint64(0)
    assert lib.cuGetProcAddress_v2(b"cuNo", ctypes.byref(address), 12000, flags, None) == NOT_FOUND
    assert lib.cuGetProcAddress(b"cuNo", ctypes.byref(address), 11030, flags) == NOT_FOUND
    assert address.value is None
    assert lib.cuGetProcAddress(b"cuMemAlloc", ctypes.byref(address), 11030, flags) == SUCCESS
    assert address.value == exported("cuMemAlloc_v2")


def test_wrong_arguments():
    lib, address = Driver(ready=False).lib, ctypes.c_void_p()
    for flags in (LEGACY | PER_THREAD, 4):
        assert look_up("cuMemAlloc", 12000, flags)[0] == INVALID_VALUE
    assert lib.cuGetProcAddress(None, ctypes.byref(address), 12000, ctypes.c_uint64(0)) == INVALID_VALUE
    assert lib.cuGetProcAddress(b"cuMemAlloc", None, 12000, ctypes.c_uint64(0)) == INVALID_VALUE


def test_no_private_tables():
    lib, table = Driver(ready=False).lib, ctypes.c_void_p(7)
    assert lib.cuGetExportTable(ctypes.byref(table), b"\0" * 16) == NOT_FOUND
    assert table.value is None


def test_only_the_interface_is_exported():
    listing = subprocess.run(["nm", "-D", "--defined-only", str(DRIVER)], check=True, stdout=subprocess.PIPE)
    names = [line.split()[-1] for line in listing.stdout.decode().splitlines()]
    assert len(names) > 100 and all(name.startswith(("cu", "simgpu_")) for name in names)
    assert not any("@" in name for name in names)  # no symbol versions, like NVIDIA's


VERSIONS = [("lib-11.8", 11080), ("lib-12.4", 12040), ("lib", 12090), ("lib-13.0", 13000)]
# What came when: function, bare name, the version that brought it.
NEWER = [
    ("cuMemAllocAsync_ptsz", "cuMemAllocAsync", 11020),
    ("cuGetProcAddress_v2", "cuGetProcAddress", 12000),
    ("cuLibraryLoadData", "cuLibraryLoadData", 12000),
    ("cuGreenCtxCreate", "cuGreenCtxCreate", 12040),
    ("cuCtxCreate_v4", "cuCtxCreate", 12050),
    ("cuMemGetDefaultMemPool", "cuMemGetDefaultMemPool", 13000),
]


@pytest.mark.parametrize(("folder", "version"), VERSIONS)
def test_a_driver_of_a_version_has_what_that_version_has(folder, version):
    program = """if True:
        import ctypes, sys
        lib, answer = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
        lib.cuDriverGetVersion(ctypes.byref(answer))
        found = [answer.value]
        for name in sys.argv[2:]:
            pointer = ctypes.c_void_p()
            lib.cuGetProcAddress(name.encode(), ctypes.byref(pointer), 13000, ctypes.c_uint64(0))
            found.append(pointer.value)
        print(found)
    """
    path = DRIVER.parents[1] / folder / "libcuda.so.1"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMGPU_")}
    command = [sys.executable, "-c", program, str(path), *(name for _, name, _ in NEWER)]
    said, *found = eval(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    lib = subprocess.run(["nm", "-D", "--defined-only", str(path)], check=True, stdout=subprocess.PIPE).stdout.decode()
    exports = {line.split()[-1] for line in lib.splitlines()}
    assert said == version
    assert all(export.startswith(("cu", "simgpu_")) for export in exports)
    for (function, name, since), pointer in zip(NEWER, found):
        is_there = since <= version
        if folder != "lib":  # that one exports everything
            assert (function in exports) == is_there, function
        if name not in ("cuCtxCreate", "cuGetProcAddress"):  # these have older forms
            assert (pointer is not None) == is_there, function


def test_errors_have_names():
    lib, text = Driver(ready=False).lib, ctypes.c_char_p()
    assert lib.cuGetErrorName(2, ctypes.byref(text)) == SUCCESS and text.value == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert lib.cuGetErrorString(2, ctypes.byref(text)) == SUCCESS and text.value == b"out of memory"
    assert lib.cuGetErrorName(123456, ctypes.byref(text)) == INVALID_VALUE and text.value is None
