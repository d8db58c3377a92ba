"""Routes to device memory beyond cuMemAlloc, and to memory that only looks like it, each against the driver's sums."""

import ctypes
import mmap
import os
import random
import socket
import subprocess
import sys

from simgpu_support import (
    ALREADY_REGISTERED,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    KIB,
    MIB,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    SUCCESS,
    Kind,
    fresh,
)

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8
DEVICE, HOST_NUMA = 1, 3
UNLIMITED = 2**64 - 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("alloc_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


# ---- memory pools ----
class Pools:
    """The stream-ordered calls of a driver."""

    def __init__(self, driver):
        self.lib = driver.lib

    def default(self, device=0):
        pool = ctypes.c_void_p()
        assert self.lib.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device) == SUCCESS
        return pool

    def create(self, device=0, most=0):
        pool, props = ctypes.c_void_p(), PoolProps(alloc_type=1, location=Location(DEVICE, device), max_size=most)
        assert self.lib.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props)) == SUCCESS
        return pool

    def try_alloc(self, size, pool=None):
        address = ctypes.c_uint64()
        if pool is None:
            return self.lib.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), None), address.value
        call = self.lib.cuMemAllocFromPoolAsync_ptsz
        return call(ctypes.byref(address), ctypes.c_size_t(size), pool, None), address.value

    def alloc(self, size, pool=None):
        result, address = self.try_alloc(size, pool)
        assert result == SUCCESS, f"{size} bytes gave {result}"
        return address

    def free(self, address):
        return self.lib.cuMemFreeAsync(ctypes.c_uint64(address), None)

    def get(self, pool, attribute):
        value = ctypes.c_uint64()
        assert self.lib.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(value)) == SUCCESS
        return value.value

    def set(self, pool, attribute, value):
        return self.lib.cuMemPoolSetAttribute(pool, attribute, ctypes.byref(ctypes.c_uint64(value)))

    def trim(self, pool, keep):
        return self.lib.cuMemPoolTrimTo(pool, ctypes.c_size_t(keep))


@fresh(memory="64MiB")
def test_a_pool_keeps_what_is_freed_until_a_synchronisation(driver):
    pools = Pools(driver)
    pool = pools.default()
    first, second = pools.alloc(1000), pools.alloc(3 * MIB)
    assert driver.used() == driver.used_by(Kind.POOL) == driver.lib.simgpu_reserved(0) == 4 * MIB
    assert driver.requested_by(Kind.POOL) == 3 * MIB + 1000 and driver.live_by(Kind.POOL) == 2
    assert pools.get(pool, RESERVED) == 4 * MIB and pools.get(pool, USED) == 3 * MIB + 1024
    assert driver.write(second, b"x" * MIB) == SUCCESS and driver.read(second, 3) == b"xxx"
    assert pools.free(second) == SUCCESS and pools.free(first) == SUCCESS
    assert driver.used() == 4 * MIB and driver.requested_by(Kind.POOL) == 0  # it is the pool's
    third = pools.alloc(4 * MIB)  # served from the reserve
    assert driver.used() == 4 * MIB
    assert pools.free(third) == SUCCESS and pools.free(third) == INVALID_VALUE
    assert driver.lib.cuStreamSynchronize(None) == SUCCESS
    assert driver.used() == 0
    assert pools.get(pool, RESERVED_HIGH) == pools.get(pool, USED_HIGH) == 4 * MIB
    assert pools.set(pool, USED_HIGH, 0) == SUCCESS and pools.get(pool, USED_HIGH) == 0
    assert pools.set(pool, USED_HIGH, 7) == pools.set(pool, RESERVED, 0) == pools.set(pool, 99, 0) == INVALID_VALUE


@fresh(memory="64MiB")
def test_the_release_threshold_and_trimming(driver):
    pools = Pools(driver)
    pool = pools.default()
    assert pools.set(pool, THRESHOLD, 6 * MIB) == SUCCESS and pools.get(pool, THRESHOLD) == 6 * MIB
    for address in [pools.alloc(5 * MIB) for _ in range(4)]:
        assert pools.free(address) == SUCCESS
    assert driver.used() == 20 * MIB
    assert driver.lib.cuCtxSynchronize() == SUCCESS
    assert driver.used() == 6 * MIB  # held onto
    assert pools.set(pool, THRESHOLD, UNLIMITED) == SUCCESS
    held = pools.alloc(9 * MIB)
    assert driver.lib.cuCtxSynchronize() == SUCCESS and driver.used() == 10 * MIB
    assert pools.free(held) == SUCCESS
    assert pools.trim(pool, 3 * MIB) == SUCCESS and driver.used() == 4 * MIB  # whole chunks
    assert pools.trim(pool, 50 * MIB) == SUCCESS and driver.used() == 4 * MIB
    held = pools.alloc(1)
    assert pools.trim(pool, 0) == SUCCESS and driver.used() == 2 * MIB
    assert pools.free(held) == SUCCESS and pools.trim(pool, 0) == SUCCESS and driver.used() == 0


@fresh(memory="64MiB", devices=2)
def test_pools_of_ones_own(driver):
    pools, current = Pools(driver), ctypes.c_void_p()
    mine, other = pools.create(), pools.create(device=1)
    address = pools.alloc(MIB, mine)
    there = pools.alloc(MIB, other)  # on device 1, whatever is current
    assert (driver.used(0), driver.used(1)) == (2 * MIB, 2 * MIB)
    assert driver.lib.cuDeviceSetMemPool(0, other) == INVALID_VALUE
    assert driver.lib.cuDeviceSetMemPool(0, mine) == SUCCESS
    assert driver.lib.cuDeviceGetMemPool(ctypes.byref(current), 0) == SUCCESS and current.value == mine.value
    second = pools.alloc(MIB)  # from the current pool, which has room
    owner = ctypes.c_void_p()
    attribute = driver.lib.cuPointerGetAttribute
    assert attribute(ctypes.byref(owner), 17, ctypes.c_uint64(second)) == SUCCESS and owner.value == mine.value
    assert driver.used(0) == 2 * MIB
    assert driver.lib.cuMemPoolDestroy(mine) == SUCCESS  # its memory stays until it is freed
    assert driver.lib.cuMemPoolDestroy(mine) == INVALID_VALUE and pools.try_alloc(1, mine)[0] == INVALID_VALUE
    assert driver.lib.cuDeviceGetMemPool(ctypes.byref(current), 0) == SUCCESS
    assert current.value == pools.default().value
    assert driver.used(0) == 2 * MIB
    assert pools.free(address) == SUCCESS and driver.used(0) == 2 * MIB
    assert driver.free(second) == SUCCESS and driver.used(0) == 0  # cuMemFree serves as well
    assert driver.lib.cuMemPoolDestroy(other) == SUCCESS and driver.used(1) == 2 * MIB
    assert pools.free(there) == SUCCESS and driver.used(1) == 0
    assert driver.lib.cuMemPoolDestroy(pools.default()) == INVALID_VALUE
    small = pools.create(most=2 * MIB)
    assert pools.try_alloc(2 * MIB + 1, small)[0] == OUT_OF_MEMORY and pools.try_alloc(2 * MIB, small)[0] == SUCCESS
    assert pools.try_alloc(1, small)[0] == OUT_OF_MEMORY


@fresh(memory="16MiB")
def test_pools_share_the_device_with_everybody(driver):
    pools = Pools(driver)
    plain = driver.alloc(10 * MIB)
    assert pools.try_alloc(7 * MIB)[0] == OUT_OF_MEMORY
    address = pools.alloc(6 * MIB)
    assert driver.info() == (0, 16 * MIB) and driver.try_alloc(512)[0] == OUT_OF_MEMORY
    assert pools.free(address) == SUCCESS
    assert driver.try_alloc(512)[0] == OUT_OF_MEMORY  # reserved still
    assert driver.lib.cuMemFreeAsync(ctypes.c_uint64(plain), None) == SUCCESS  # of plain memory: freed at once
    assert driver.used() == 6 * MIB
    assert pools.try_alloc(UNLIMITED)[0] == OUT_OF_MEMORY and pools.try_alloc(0)[0] == INVALID_VALUE
    assert driver.lib.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1), ctypes.c_void_p(0x77)) == (
        INVALID_HANDLE
    )
    assert driver.lib.simgpu_failures() == 4


@fresh(memory="64MiB")
def test_the_end_of_the_primary_context_is_the_end_of_its_pools(driver):
    pools = Pools(driver)
    mine = pools.create()
    for _ in range(3):
        pools.alloc(MIB), pools.alloc(5 * MIB, mine)
    assert driver.lib.cuMemPoolDestroy(mine) == SUCCESS
    plain = driver.alloc(1000)
    assert driver.lib.cuDevicePrimaryCtxReset_v2(0) == SUCCESS
    assert driver.used() == 0 and driver.lib.simgpu_live(0) == 0 and driver.requested_by(Kind.POOL) == 0
    assert driver.free(plain) == INVALID_VALUE
    assert pools.free(pools.alloc(MIB)) == SUCCESS  # the default pool goes on


# ---- virtual memory ----
class Virtual:
    """cuMemCreate and what belongs to it."""

    def __init__(self, driver):
        self.lib = driver.lib

    def try_create(self, size, device=0, shareable=True, kind=DEVICE):
        handle, prop = ctypes.c_uint64(), Properties(type=1, handle_types=shareable, location=Location(kind, device))
        flags = ctypes.c_ulonglong(0)
        result = self.lib.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), flags)
        return result, handle.value

    def create(self, size, **options):
        result, handle = self.try_create(size, **options)
        assert result == SUCCESS
        return handle

    def release(self, handle):
        return self.lib.cuMemRelease(ctypes.c_uint64(handle))

    def reserve(self, size):
        address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
        assert self.lib.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(size), none, none, none) == SUCCESS
        return address.value

    def unreserve(self, address, size):
        return self.lib.cuMemAddressFree(ctypes.c_uint64(address), ctypes.c_size_t(size))

    def map(self, address, size, handle):
        none = ctypes.c_uint64(0)
        return self.lib.cuMemMap(ctypes.c_uint64(address), ctypes.c_size_t(size), none, ctypes.c_uint64(handle), none)

    def unmap(self, address, size):
        return self.lib.cuMemUnmap(ctypes.c_uint64(address), ctypes.c_size_t(size))

    def access(self, address, size, flags=3):
        desc = Access(Location(DEVICE, 0), flags)
        one = ctypes.c_size_t(1)
        return self.lib.cuMemSetAccess(ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.byref(desc), one)

    def retain(self, address):
        handle = ctypes.c_uint64()
        assert self.lib.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == SUCCESS
        return handle.value

    def share(self, handle):
        fd = ctypes.c_int(-1)
        call = self.lib.cuMemExportToShareableHandle
        assert call(ctypes.byref(fd), ctypes.c_uint64(handle), 1, ctypes.c_ulonglong(0)) == SUCCESS
        return fd.value

    def adopt(self, fd):
        handle = ctypes.c_uint64()
        call = self.lib.cuMemImportFromShareableHandle
        return call(ctypes.byref(handle), ctypes.c_void_p(fd), 1), handle.value


@fresh(memory="16MiB")
def test_physical_memory_lives_as_long_as_handles_and_mappings(driver):
    virtual = Virtual(driver)
    handle, address = virtual.create(4 * MIB), virtual.reserve(8 * MIB)
    assert driver.used() == driver.used_by(Kind.VMM) == driver.requested_by(Kind.VMM) == 4 * MIB
    assert virtual.map(address + 2 * MIB, 4 * MIB, handle) == SUCCESS
    assert virtual.release(handle) == SUCCESS and virtual.release(handle) == INVALID_VALUE
    assert driver.used() == 4 * MIB  # the mapping holds it
    again = virtual.retain(address + 3 * MIB)
    assert again == handle
    assert virtual.unmap(address + 2 * MIB, 4 * MIB) == SUCCESS
    assert driver.used() == 4 * MIB  # the handle holds it
    assert virtual.map(address, 4 * MIB, again) == virtual.map(address + 4 * MIB, 4 * MIB, again) == SUCCESS
    assert driver.used() == 4 * MIB  # twice mapped, once there
    assert virtual.release(again) == SUCCESS
    assert virtual.unmap(address, 4 * MIB) == SUCCESS and driver.used() == 4 * MIB
    assert virtual.unreserve(address, 8 * MIB) == INVALID_VALUE  # still mapped
    assert virtual.unmap(address + 4 * MIB, 4 * MIB) == SUCCESS
    assert driver.used() == 0 and driver.lib.simgpu_live(0) == 0
    assert virtual.unreserve(address, 4 * MIB) == INVALID_VALUE
    assert virtual.unreserve(address, 8 * MIB) == SUCCESS
    assert virtual.unreserve(address, 8 * MIB) == INVALID_VALUE


def mapped_memory(driver):
    virtual = Virtual(driver)
    address = virtual.reserve(6 * MIB)
    handles = [virtual.create(2 * MIB) for _ in range(2)]
    assert virtual.map(address, 2 * MIB, handles[0]) == virtual.map(address + 2 * MIB, 2 * MIB, handles[1]) == SUCCESS
    assert driver.write(address, b"x") == INVALID_VALUE  # no access yet
    assert virtual.access(address, 6 * MIB) == INVALID_VALUE  # not all of it is mapped
    assert virtual.access(address, 4 * MIB) == SUCCESS
    across = address + 2 * MIB - 3
    assert driver.write(across, b"abcdef") == SUCCESS and driver.read(across, 6) == b"abcdef"
    assert driver.write(address + 4 * MIB - 1, b"xy") == INVALID_VALUE
    base, size, device = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int(-1)
    inside = ctypes.c_uint64(across + 3)
    assert driver.lib.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), inside) == SUCCESS
    assert (base.value, size.value) == (address + 2 * MIB, 2 * MIB)
    assert driver.lib.cuPointerGetAttribute(ctypes.byref(device), 9, inside) == SUCCESS and device.value == 0
    assert driver.free(address) == INVALID_VALUE  # not cuMemFree's
    # The same memory elsewhere has the same bytes.
    twin = virtual.reserve(2 * MIB)
    assert virtual.map(twin, 2 * MIB, handles[1]) == virtual.access(twin, 2 * MIB) == SUCCESS
    assert driver.read(twin, 3) == b"def"
    assert virtual.access(twin, 2 * MIB, flags=0) == SUCCESS and driver.read(twin, 3) is None
    assert virtual.unmap(address, 4 * MIB) == SUCCESS  # both mappings at once
    assert driver.read(address, 1) is None


@fresh(memory="16MiB")
def test_mapped_memory_is_memory(driver):
    mapped_memory(driver)


@fresh(memory="16MiB", protect=1)
def test_mapped_memory_is_memory_under_protection(driver):
    mapped_memory(driver)


@fresh(memory="8MiB", devices=2)
def test_what_virtual_memory_refuses(driver):
    virtual = Virtual(driver)
    assert virtual.try_create(MIB)[0] == virtual.try_create(0)[0] == INVALID_VALUE
    assert virtual.try_create(10 * MIB)[0] == OUT_OF_MEMORY
    handle = virtual.create(8 * MIB, device=1, shareable=False)
    assert (driver.used(0), driver.used(1)) == (0, 8 * MIB)
    assert virtual.try_create(2 * MIB, device=1)[0] == OUT_OF_MEMORY
    host = virtual.create(64 * MIB, kind=HOST_NUMA)  # host memory: nothing of a device
    assert driver.used(0) == 0 and driver.used_by(Kind.PINNED) == 0 and driver.requested_by(Kind.PINNED) == 64 * MIB
    assert virtual.release(host) == SUCCESS and driver.requested_by(Kind.PINNED) == 0
    address = virtual.reserve(4 * MIB)
    assert virtual.map(address, 8 * MIB, handle) == virtual.map(address + MIB, 2 * MIB, handle) == INVALID_VALUE
    assert virtual.map(address, 2 * MIB, 12345) == virtual.unmap(address, 2 * MIB) == INVALID_VALUE
    assert virtual.map(address, 4 * MIB, handle) == SUCCESS
    assert virtual.map(address + 2 * MIB, 2 * MIB, handle) == INVALID_VALUE  # taken
    assert virtual.unmap(address, 2 * MIB) == INVALID_VALUE  # half a mapping
    fd, none = ctypes.c_int(), ctypes.c_ulonglong(0)
    call = driver.lib.cuMemExportToShareableHandle
    assert call(ctypes.byref(fd), ctypes.c_uint64(handle), 1, none) == INVALID_VALUE  # not made to be shared
    with open(__file__) as other:
        assert virtual.adopt(other.fileno())[0] == INVALID_VALUE
    size = ctypes.c_size_t()
    prop = Properties(type=1, location=Location(DEVICE, 0))
    assert driver.lib.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(prop), 0) == SUCCESS
    assert size.value == 2 * MIB


@fresh(memory="8MiB")
def test_shared_within_a_process_it_is_the_same_memory(driver):
    virtual = Virtual(driver)
    handle = virtual.create(2 * MIB)
    fd = virtual.share(handle)
    result, again = virtual.adopt(fd)
    os.close(fd)
    assert (result, again) == (SUCCESS, handle) and driver.used() == 2 * MIB and driver.lib.simgpu_live(0) == 1
    assert virtual.release(handle) == SUCCESS and driver.used() == 2 * MIB
    prop = Properties()
    call = driver.lib.cuMemGetAllocationPropertiesFromHandle
    assert call(ctypes.byref(prop), ctypes.c_uint64(handle)) == SUCCESS and prop.location.type == DEVICE
    assert virtual.release(handle) == SUCCESS and driver.used() == 0


@fresh(memory="8MiB")
def test_shared_with_another_process_it_is_mapped_not_owned(driver):
    virtual = Virtual(driver)
    if len(sys.argv) > 3:  # the other process
        with socket.socket(fileno=int(sys.argv[3])) as there:
            fd = socket.recv_fds(there, 1, 1)[1][0]
        result, handle = virtual.adopt(fd)
        address = virtual.reserve(2 * MIB)
        assert result == virtual.map(address, 2 * MIB, handle) == virtual.access(address, 2 * MIB) == SUCCESS
        assert driver.used() == 0 and driver.requested_by(Kind.MAPPED) == 2 * MIB
        assert driver.read(address, 5) == b"hello" and driver.write(address, b"world") == SUCCESS
        assert virtual.unmap(address, 2 * MIB) == virtual.release(handle) == SUCCESS
        assert driver.requested_by(Kind.MAPPED) == 0
        return
    handle, address = virtual.create(2 * MIB), virtual.reserve(2 * MIB)
    assert virtual.map(address, 2 * MIB, handle) == virtual.access(address, 2 * MIB) == SUCCESS
    driver.write(address, b"hello")
    here, there = socket.socketpair()
    os.set_inheritable(there.fileno(), True)
    other = subprocess.Popen([sys.executable, *sys.argv, str(there.fileno())], pass_fds=[there.fileno()])
    socket.send_fds(here, [b"x"], [virtual.share(handle)])
    assert other.wait(60) == 0
    assert driver.read(address, 5) == b"world" and driver.used() == 2 * MIB


# ---- arrays ----
class Descriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    ]


class Descriptor3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


class OldDescriptor3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR of CUDA 2; its first two, format and channels are the one of two dimensions."""

    _fields_ = [
        ("width", ctypes.c_uint),
        ("height", ctypes.c_uint),
        ("depth", ctypes.c_uint),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


UINT8, HALF, FLOAT, BC1 = 1, 0x10, 0x20, 0x91
LAYERED, SPARSE = 1, 0x40


def make_array(driver, description, call="cuArray3DCreate_v2"):
    """(result, handle)."""
    array = ctypes.c_void_p()
    return getattr(driver.lib, call)(ctypes.byref(array), ctypes.byref(description)), array


@fresh(memory="64MiB", granularity="64KiB")
def test_arrays_are_charged_by_their_elements(driver):
    for size, description in (
        (1000 * 7 * 4, Descriptor3D(1000, 7, 0, FLOAT, 1)),
        (1000 * 8, Descriptor3D(1000, 0, 0, HALF, 4)),
        (64 * 64 * 10 * 2, Descriptor3D(64, 64, 10, UINT8, 2)),
        (64 * 64 * 10 * 2, Descriptor3D(64, 64, 10, UINT8, 2, LAYERED)),
        (25 * 25 * 8, Descriptor3D(100, 100, 0, BC1, 4)),
        (0, Descriptor3D(4096, 4096, 0, FLOAT, 1, SPARSE)),
    ):
        result, array = make_array(driver, description)
        assert result == SUCCESS and driver.requested_by(Kind.ARRAY) == size
        assert driver.used() == driver.used_by(Kind.ARRAY) == -(-size // (64 * KIB)) * 64 * KIB
        answer = Descriptor3D()
        assert driver.lib.cuArray3DGetDescriptor_v2(ctypes.byref(answer), array) == SUCCESS
        assert bytes(answer) == bytes(description)
        assert driver.lib.cuArrayDestroy(array) == SUCCESS and driver.lib.cuArrayDestroy(array) == INVALID_HANDLE
    assert driver.used() == 0
    result, array = make_array(driver, Descriptor(16, 16, FLOAT, 1), "cuArrayCreate_v2")
    answer = Descriptor()
    assert driver.lib.cuArrayGetDescriptor_v2(ctypes.byref(answer), array) == SUCCESS and answer.height == 16
    assert driver.requested_by(Kind.ARRAY) == 1024
    assert make_array(driver, OldDescriptor3D(16, 16, 2, FLOAT, 1), "cuArray3DCreate")[0] == SUCCESS
    assert driver.requested_by(Kind.ARRAY) == 3072 and driver.live_by(Kind.ARRAY) == 2


@fresh(memory="1MiB")
def test_what_arrays_refuse(driver):
    assert make_array(driver, Descriptor3D(0, 1, 1, FLOAT, 1))[0] == INVALID_VALUE
    assert make_array(driver, Descriptor3D(1, 1, 1, FLOAT, 3))[0] == INVALID_VALUE
    assert make_array(driver, Descriptor3D(1, 1, 1, 0x77, 1))[0] == INVALID_VALUE
    assert make_array(driver, Descriptor3D(2**40, 2**40, 1, FLOAT, 1))[0] == INVALID_VALUE
    assert driver.lib.simgpu_calls() == 0
    assert make_array(driver, Descriptor3D(1024, 257, 0, FLOAT, 1))[0] == OUT_OF_MEMORY
    assert make_array(driver, Descriptor3D(1024, 256, 0, FLOAT, 1))[0] == SUCCESS
    assert driver.try_alloc(1)[0] == OUT_OF_MEMORY and driver.lib.simgpu_failures() == 2


@fresh(memory="1MiB")
def test_mipmapped_arrays(driver):
    mipmap, level = ctypes.c_void_p(), ctypes.c_void_p()
    description, answer = Descriptor3D(64, 16, 0, FLOAT, 1), Descriptor3D()
    assert driver.lib.cuMipmappedArrayCreate(ctypes.byref(mipmap), ctypes.byref(description), 7) == SUCCESS
    assert driver.requested_by(Kind.ARRAY) == 4 * sum((64 >> i) * max(16 >> i, 1) for i in range(7))
    assert driver.lib.cuMipmappedArrayGetLevel(ctypes.byref(level), mipmap, 7) == INVALID_VALUE
    assert driver.lib.cuMipmappedArrayGetLevel(ctypes.byref(level), mipmap, 2) == SUCCESS
    assert driver.lib.cuArray3DGetDescriptor_v2(ctypes.byref(answer), level) == SUCCESS
    assert (answer.width, answer.height) == (16, 4)
    assert driver.lib.cuArrayDestroy(level) == INVALID_HANDLE  # the mipmapped array's
    assert driver.lib.cuMipmappedArrayDestroy(mipmap) == SUCCESS and driver.used() == 0
    assert driver.lib.cuMipmappedArrayDestroy(mipmap) == INVALID_HANDLE
    assert driver.lib.cuArray3DGetDescriptor_v2(ctypes.byref(answer), level) == INVALID_HANDLE


@fresh(memory="1MiB")
def test_arrays_end_with_their_context(driver):
    own, mipmap = ctypes.c_void_p(), ctypes.c_void_p()
    kept = make_array(driver, Descriptor3D(64, 16, 0, FLOAT, 1))[1]
    assert driver.lib.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == SUCCESS
    description = Descriptor3D(64, 16, 0, FLOAT, 1)
    assert driver.lib.cuMipmappedArrayCreate(ctypes.byref(mipmap), ctypes.byref(description), 2) == SUCCESS
    lost = make_array(driver, description)[1]
    assert driver.lib.cuCtxDestroy_v2(own) == SUCCESS
    assert driver.requested_by(Kind.ARRAY) == 4096 and driver.lib.cuArrayDestroy(lost) == INVALID_HANDLE
    assert driver.lib.cuArrayDestroy(kept) == SUCCESS


# ---- memory of somebody else ----
class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def open_ipc(driver, handle):
    address = ctypes.c_uint64()
    return driver.lib.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1), address.value


def close_ipc(driver, address):
    return driver.lib.cuIpcCloseMemHandle(ctypes.c_uint64(address))


@fresh(memory="1MiB")
def test_memory_of_another_process_is_mapped_not_owned(driver):
    handle, other = IpcHandle(), IpcHandle()
    assert driver.lib.simgpu_ipc_handle(0, ctypes.c_uint64(5 * MIB), ctypes.byref(handle)) == 0
    assert driver.lib.simgpu_ipc_handle(0, ctypes.c_uint64(1000), ctypes.byref(other)) == 0
    assert driver.lib.simgpu_ipc_handle(1, ctypes.c_uint64(1000), ctypes.byref(other)) == -1
    (first, address), (again, same), (second, small) = (open_ipc(driver, h) for h in (handle, handle, other))
    assert first == again == second == SUCCESS and address == same != small
    assert driver.used() == 0 and driver.requested_by(Kind.MAPPED) == 5 * MIB + 1000
    assert driver.live_by(Kind.MAPPED) == 2 and driver.lib.simgpu_live(0) == driver.lib.simgpu_calls() == 0
    assert driver.write(address + 5 * MIB - 3, b"abc") == SUCCESS
    assert driver.free(address) == INVALID_VALUE
    assert close_ipc(driver, address) == SUCCESS and driver.read(address, 1) is not None  # opened twice
    assert close_ipc(driver, address) == SUCCESS and close_ipc(driver, address) == INVALID_VALUE
    assert driver.read(address, 1) is None and driver.requested_by(Kind.MAPPED) == 1000
    assert driver.lib.cuDevicePrimaryCtxReset_v2(0) == SUCCESS and driver.requested_by(Kind.MAPPED) == 0


@fresh(memory="8MiB")
def test_ipc_between_two_processes(driver):
    if len(sys.argv) > 3:  # the other process
        handle = IpcHandle.from_buffer_copy(bytes.fromhex(sys.argv[3]))
        assert open_ipc(driver, handle)[0] == SUCCESS and driver.requested_by(Kind.MAPPED) == 3000
        return
    handle, address = IpcHandle(), driver.alloc(3000)
    assert driver.lib.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address)) == SUCCESS
    assert open_ipc(driver, handle)[0] == INVALID_CONTEXT  # one's own
    assert open_ipc(driver, IpcHandle())[0] == INVALID_VALUE
    pooled = ctypes.c_uint64(Pools(driver).alloc(1000))
    assert driver.lib.cuIpcGetMemHandle(ctypes.byref(handle), pooled) == INVALID_VALUE
    subprocess.run([sys.executable, *sys.argv, bytes(handle).hex()], check=True, timeout=60)


class ExternalHandle(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC with a file descriptor."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle", ctypes.c_void_p * 2),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    ]


class ExternalBuffer(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_ulonglong),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    ]


class ExternalMipmap(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_ulonglong),
        ("description", Descriptor3D),
        ("levels", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    ]


@fresh(memory="1MiB")
def test_external_memory_is_mapped_not_owned(driver):
    lib, memory, address, mipmap = driver.lib, ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    fd = os.memfd_create("another-interface")
    layout = ExternalHandle(type=1, size=4 * MIB)
    ctypes.c_int.from_buffer(layout, 8).value = fd  # the union lies at 8, for the pointers in it
    assert lib.cuImportExternalMemory(ctypes.byref(memory), ctypes.byref(layout)) == SUCCESS
    assert driver.requested_by(Kind.MAPPED) == 4 * MIB and driver.used() == 0
    buffer = ExternalBuffer(offset=MIB, size=3 * MIB)
    assert lib.cuExternalMemoryGetMappedBuffer(ctypes.byref(address), memory, ctypes.byref(buffer)) == SUCCESS
    assert driver.requested_by(Kind.MAPPED) == 4 * MIB and driver.used() == 0  # part of what was imported
    assert driver.write(address.value + 3 * MIB - 1, b"x") == SUCCESS
    buffer.offset += 1
    assert lib.cuExternalMemoryGetMappedBuffer(ctypes.byref(address), memory, ctypes.byref(buffer)) == INVALID_VALUE
    images = ExternalMipmap(description=Descriptor3D(64, 64, 0, FLOAT, 1), levels=3)
    call = lib.cuExternalMemoryGetMappedMipmappedArray
    assert call(ctypes.byref(mipmap), memory, ctypes.byref(images)) == SUCCESS
    assert driver.used() == driver.requested_by(Kind.ARRAY) == 0
    assert lib.cuMipmappedArrayDestroy(mipmap) == SUCCESS
    assert driver.free(address.value) == SUCCESS and driver.free(address.value) == INVALID_VALUE
    assert lib.cuDestroyExternalMemory(memory) == SUCCESS and lib.cuDestroyExternalMemory(memory) == INVALID_HANDLE
    assert driver.requested_by(Kind.MAPPED) == 0 and driver.lib.simgpu_calls() == 0
    assert not os.path.exists(f"/proc/self/fd/{fd}")  # the driver's since the import


# ---- host-pinned memory ----
@fresh(memory="1MiB")
def test_pinned_memory_is_counted_apart(driver):
    lib, pointer, other = driver.lib, ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(5 * MIB), 4) == SUCCESS
    assert lib.cuMemAllocHost_v2(ctypes.byref(other), ctypes.c_size_t(100)) == SUCCESS
    assert driver.used() == driver.used_by(Kind.PINNED) == 0 and driver.lib.simgpu_live(0) == 0
    assert driver.requested_by(Kind.PINNED) == 5 * MIB + 100 and driver.live_by(Kind.PINNED) == 2
    flags = ctypes.c_uint()
    assert lib.cuMemHostGetFlags(ctypes.byref(flags), pointer) == SUCCESS and flags.value == 4
    address = ctypes.c_uint64()
    assert lib.cuMemHostGetDevicePointer_v2(ctypes.byref(address), ctypes.c_void_p(pointer.value + 8), 0) == SUCCESS
    assert address.value == pointer.value + 8
    assert lib.cuMemHostUnregister(pointer) == NOT_REGISTERED
    assert lib.cuMemFreeHost(pointer) == lib.cuMemFreeHost(other) == SUCCESS
    assert driver.requested_by(Kind.PINNED) == 0


@fresh(memory="1MiB")
def test_registered_memory_is_the_programs_own(driver):
    lib = driver.lib
    memory = mmap.mmap(-1, 64 * KIB)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    base = ctypes.c_void_p(start)
    assert lib.cuMemHostRegister_v2(base, ctypes.c_size_t(64 * KIB), 0) == SUCCESS
    assert driver.requested_by(Kind.PINNED) == 64 * KIB
    middle = ctypes.c_void_p(start + 4096)
    assert lib.cuMemHostRegister(middle, ctypes.c_size_t(4096), 0) == ALREADY_REGISTERED
    assert lib.cuMemFreeHost(base) == INVALID_VALUE and lib.cuMemHostUnregister(middle) == NOT_REGISTERED
    assert lib.cuMemHostUnregister(base) == SUCCESS and lib.cuMemHostUnregister(base) == NOT_REGISTERED
    assert driver.requested_by(Kind.PINNED) == 0


@fresh
def test_pinned_memory_ends_with_its_context(driver):
    lib, own, pointer = driver.lib, ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == SUCCESS
    assert lib.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(100), 0) == SUCCESS
    assert lib.cuCtxDestroy_v2(own) == SUCCESS
    assert driver.requested_by(Kind.PINNED) == 0 and lib.cuMemFreeHost(pointer) == INVALID_VALUE


# ---- all of them ----
@fresh(fail_at="1:100", fail_calls="memory")
def test_each_route_counts_as_an_allocation_call(driver):
    pools, virtual, pointer = Pools(driver), Virtual(driver), ctypes.c_void_p()
    own = pools.create()
    assert pools.try_alloc(1)[0] == pools.try_alloc(1, own)[0] == virtual.try_create(2 * MIB)[0] == OUT_OF_MEMORY
    assert driver.lib.simgpu_calls() == driver.lib.simgpu_failures() == 3 and driver.used() == 0
    assert driver.lib.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(64), 0) == SUCCESS
    driver.lib.simgpu_fail_calls(1)
    assert driver.lib.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(64), 0) == OUT_OF_MEMORY
    assert driver.lib.cuMemHostRegister_v2(pointer, ctypes.c_size_t(64), 0) == ALREADY_REGISTERED
    assert driver.lib.simgpu_calls() == 4


@fresh(memory="1GiB", granularity="64KiB")
def test_the_kinds_add_up(driver):
    pools, virtual, rng = Pools(driver), Virtual(driver), random.Random(3)
    live = []
    for _ in range(2000):
        if live and rng.random() < 0.45:
            free, what = live.pop(rng.randrange(len(live)))
            assert free(what) == SUCCESS
        route = rng.randrange(3)
        if route == 0:
            live.append((driver.free, driver.alloc(rng.randrange(1, MIB))))
        elif route == 1:
            live.append((pools.free, pools.alloc(rng.randrange(1, MIB))))
        else:
            live.append((virtual.release, virtual.create(2 * MIB)))
            if driver.used() > 512 * MIB:
                driver.lib.cuCtxSynchronize()
        while driver.used() > 900 * MIB:
            free, what = live.pop(0)
            assert free(what) == SUCCESS
            driver.lib.cuCtxSynchronize()
        assert sum(driver.used_by(kind) for kind in Kind) == driver.used() == driver.info()[1] - driver.info()[0]
        assert driver.lib.simgpu_live(0) == len(live)
    for free, what in live:
        assert free(what) == SUCCESS
    assert driver.lib.cuCtxSynchronize() == SUCCESS
    assert driver.used() == 0 and sum(driver.requested_by(kind) for kind in Kind) == 0
