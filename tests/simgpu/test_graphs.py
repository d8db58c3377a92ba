"""Memory nodes of graphs, launches and stream capture: memory is taken at launch, and given back by a trim."""

import ctypes
import threading

from simgpu_support import INVALID_HANDLE, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Kind, fresh
from test_routes import DEVICE, Location, PoolProps, Pools

CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, WRONG_THREAD, ILLEGAL_STATE = 900, 901, 908, 401
AUTO_FREE = 1
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
USED, USED_HIGH, RESERVED, RESERVED_HIGH = 0, 1, 2, 3
EMPTY_NODE, ALLOC_NODE, FREE_NODE = 5, 10, 11


class AllocParams(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = [
        ("pool", PoolProps),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("address", ctypes.c_uint64),
    ]


class NodeParams(ctypes.Structure):
    """CUgraphNodeParams: a union of 232 bytes behind the type."""

    _fields_ = [("type", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("body", ctypes.c_ubyte * 232)]
    _fields_ += [("reserved2", ctypes.c_longlong)]


class Graphs:
    """The calls on graphs of a driver."""

    def __init__(self, driver):
        self.lib = driver.lib

    def create(self):
        graph = ctypes.c_void_p()
        assert self.lib.cuGraphCreate(ctypes.byref(graph), 0) == SUCCESS
        return graph

    def add_alloc(self, graph, size, device=0):
        node = ctypes.c_void_p()
        params = AllocParams(PoolProps(alloc_type=1, location=Location(DEVICE, device)), size=size)
        none = ctypes.c_size_t(0)
        call = self.lib.cuGraphAddMemAllocNode
        assert call(ctypes.byref(node), graph, None, none, ctypes.byref(params)) == SUCCESS
        return params.address

    def add_free(self, graph, address):
        node, none = ctypes.c_void_p(), ctypes.c_size_t(0)
        call = self.lib.cuGraphAddMemFreeNode
        return call(ctypes.byref(node), graph, None, none, ctypes.c_uint64(address))

    def try_instantiate(self, graph, flags=0):
        executable = ctypes.c_void_p()
        result = self.lib.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(flags))
        return result, executable

    def instantiate(self, graph, flags=0):
        result, executable = self.try_instantiate(graph, flags)
        assert result == SUCCESS
        return executable

    def launch(self, executable, stream=None):
        return self.lib.cuGraphLaunch(executable, stream)

    def get(self, attribute, device=0):
        value = ctypes.c_uint64()
        assert self.lib.cuDeviceGetGraphMemAttribute(device, attribute, ctypes.byref(value)) == SUCCESS
        return value.value


@fresh(memory="16MiB")
def test_memory_is_taken_at_launch_and_kept_until_a_trim(driver):
    graphs = Graphs(driver)
    graph = graphs.create()
    address = graphs.add_alloc(graph, 3 * MIB)
    assert graphs.add_free(graph, address) == SUCCESS
    executable = graphs.instantiate(graph)
    assert driver.used() == 0 and driver.read(address, 1) is None  # an address without memory
    assert driver.free(address) == INVALID_VALUE
    assert graphs.launch(executable) == SUCCESS
    assert driver.used() == driver.used_by(Kind.GRAPH) == 4 * MIB and driver.requested_by(Kind.GRAPH) == 0
    assert (graphs.get(USED), graphs.get(USED_HIGH)) == (0, 3 * MIB)
    assert (graphs.get(RESERVED), graphs.get(RESERVED_HIGH)) == (4 * MIB, 4 * MIB)
    assert graphs.launch(executable) == SUCCESS and driver.used() == 4 * MIB  # out of the reserve
    assert driver.lib.cuGraphExecDestroy(executable) == driver.lib.cuGraphDestroy(graph) == SUCCESS
    assert driver.lib.cuCtxSynchronize() == SUCCESS and driver.used() == 4 * MIB
    assert driver.lib.cuDeviceGraphMemTrim(0) == SUCCESS and driver.used() == 0
    zero = ctypes.c_uint64(0)
    assert driver.lib.cuDeviceSetGraphMemAttribute(0, USED_HIGH, ctypes.byref(zero)) == SUCCESS
    assert graphs.get(USED_HIGH) == 0 and graphs.get(RESERVED_HIGH) == 4 * MIB


@fresh(memory="16MiB")
def test_what_a_launch_leaves_allocated_outlives_the_graph(driver):
    graphs = Graphs(driver)
    graph = graphs.create()
    address = graphs.add_alloc(graph, 3 * MIB)
    executable = graphs.instantiate(graph)
    assert graphs.launch(executable) == SUCCESS
    assert driver.requested_by(Kind.GRAPH) == 3 * MIB and driver.live_by(Kind.GRAPH) == 1
    assert driver.write(address, b"abc") == SUCCESS and driver.read(address, 3) == b"abc"
    assert graphs.launch(executable) == INVALID_VALUE  # still allocated
    assert driver.lib.cuGraphDestroy(graph) == driver.lib.cuGraphExecDestroy(executable) == SUCCESS
    assert driver.read(address, 3) == b"abc"
    assert driver.lib.cuDeviceGraphMemTrim(0) == SUCCESS and driver.used() == 4 * MIB  # in use
    assert driver.lib.cuMemFreeAsync(ctypes.c_uint64(address), None) == SUCCESS
    assert driver.read(address, 1) is None and driver.free(address) == INVALID_VALUE
    assert driver.requested_by(Kind.GRAPH) == 0 and driver.used() == 4 * MIB
    assert driver.lib.cuDeviceGraphMemTrim(0) == SUCCESS and driver.used() == 0


@fresh(memory="16MiB")
def test_automatic_frees_and_frees_by_another_graph(driver):
    graphs = Graphs(driver)
    graph, other = graphs.create(), graphs.create()
    address = graphs.add_alloc(graph, 3 * MIB)
    assert graphs.add_free(other, address) == SUCCESS and graphs.add_free(other, 0x1234) == INVALID_VALUE
    executable, freeing = graphs.instantiate(graph, AUTO_FREE), graphs.instantiate(other)
    assert graphs.try_instantiate(graph)[0] == INVALID_VALUE  # one executable at most where memory is allocated
    assert graphs.launch(freeing) == INVALID_VALUE  # not allocated yet
    for _ in range(3):
        assert graphs.launch(executable) == SUCCESS and driver.requested_by(Kind.GRAPH) == 3 * MIB
    assert driver.used() == 4 * MIB
    assert graphs.launch(freeing) == SUCCESS and driver.requested_by(Kind.GRAPH) == 0
    assert graphs.launch(freeing) == INVALID_VALUE
    assert driver.lib.cuGraphExecDestroy(executable) == SUCCESS
    assert graphs.try_instantiate(graph)[0] == SUCCESS


@fresh(memory="8MiB", devices=2)
def test_a_launch_that_does_not_fit_takes_nothing(driver):
    graphs = Graphs(driver)
    graph = graphs.create()
    first = graphs.add_alloc(graph, 3 * MIB)
    graphs.add_free(graph, first)
    graphs.add_alloc(graph, 6 * MIB)
    graphs.add_alloc(graph, 1 * MIB, device=1)
    executable = graphs.instantiate(graph)
    assert graphs.launch(executable) == SUCCESS  # never more than 6 MiB at one time
    assert (driver.used(0), driver.used(1)) == (6 * MIB, 2 * MIB)
    assert driver.lib.simgpu_calls() == 1
    assert driver.lib.cuDevicePrimaryCtxReset_v2(0) == SUCCESS and driver.used(0) == 0
    plain = driver.alloc(4 * MIB)
    second = graphs.create()
    graphs.add_alloc(second, 3 * MIB), graphs.add_alloc(second, 3 * MIB)
    failing = graphs.instantiate(second)
    assert graphs.launch(failing) == driver.lib.cuGraphUpload(failing, None) == OUT_OF_MEMORY
    assert driver.used() == 4 * MIB and driver.requested_by(Kind.GRAPH) == 0 and driver.lib.simgpu_failures() == 2
    driver.free(plain)
    assert driver.lib.cuGraphUpload(failing, None) == SUCCESS
    assert driver.used() == 6 * MIB and driver.requested_by(Kind.GRAPH) == 0  # taken, not handed out
    driver.lib.simgpu_fail_at(1, 1)
    assert graphs.launch(failing) == OUT_OF_MEMORY and graphs.launch(failing) == SUCCESS


@fresh
def test_every_way_to_build_and_instantiate(driver):
    graphs, lib = Graphs(driver), driver.lib
    graph, node, count = graphs.create(), ctypes.c_void_p(), ctypes.c_size_t(0)
    params = NodeParams(type=ALLOC_NODE)
    inner = AllocParams.from_buffer(params, NodeParams.body.offset)
    inner.pool, inner.size = PoolProps(alloc_type=1, location=Location(DEVICE, 0)), 1000
    assert lib.cuGraphAddNode(ctypes.byref(node), graph, None, count, ctypes.byref(params)) == SUCCESS
    address = inner.address
    freeing = NodeParams(type=FREE_NODE)
    ctypes.c_uint64.from_buffer(freeing, NodeParams.body.offset).value = address
    assert lib.cuGraphAddNode_v2(ctypes.byref(node), graph, None, None, count, ctypes.byref(freeing)) == SUCCESS
    assert lib.cuGraphAddEmptyNode(ctypes.byref(node), graph, None, count) == SUCCESS
    nodes, kinds = (ctypes.c_void_p * 5)(), []
    count.value = 5
    assert lib.cuGraphGetNodes(graph, nodes, ctypes.byref(count)) == SUCCESS and count.value == 3
    for each in nodes[:3]:
        kind = ctypes.c_int()
        assert lib.cuGraphNodeGetType(ctypes.c_void_p(each), ctypes.byref(kind)) == SUCCESS
        kinds.append(kind.value)
    assert kinds == [ALLOC_NODE, FREE_NODE, EMPTY_NODE]
    answer, freed = AllocParams(), ctypes.c_uint64()
    assert lib.cuGraphMemAllocNodeGetParams(ctypes.c_void_p(nodes[0]), ctypes.byref(answer)) == SUCCESS
    assert (answer.size, answer.address) == (1000, address)
    assert lib.cuGraphMemFreeNodeGetParams(ctypes.c_void_p(nodes[1]), ctypes.byref(freed)) == SUCCESS
    assert freed.value == address
    assert lib.cuGraphMemFreeNodeGetParams(ctypes.c_void_p(nodes[0]), ctypes.byref(freed)) == INVALID_VALUE
    executable = ctypes.c_void_p()
    with_params = (ctypes.c_uint64 * 4)(2)  # flags: upload
    for instantiate in (
        lambda: lib.cuGraphInstantiate(ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0)),
        lambda: lib.cuGraphInstantiate_v2(ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0)),
        lambda: lib.cuGraphInstantiateWithParams(ctypes.byref(executable), graph, with_params),
        lambda: lib.cuGraphInstantiateWithParams_ptsz(ctypes.byref(executable), graph, with_params),
    ):
        assert instantiate() == SUCCESS and lib.cuGraphLaunch_ptsz(executable, None) == SUCCESS
        assert lib.cuGraphExecDestroy(executable) == SUCCESS and lib.cuGraphExecDestroy(executable) == INVALID_VALUE
    assert driver.lib.simgpu_calls() == 6  # four launches, two uploads
    assert lib.cuGraphDestroy(graph) == SUCCESS and lib.cuGraphDestroy(graph) == INVALID_VALUE


# ---- stream capture ----
class Captures:
    def __init__(self, driver):
        self.lib, self.driver = driver.lib, driver

    def stream(self):
        stream = ctypes.c_void_p()
        assert self.lib.cuStreamCreate(ctypes.byref(stream), 1) == SUCCESS
        return stream

    def begin(self, stream, mode=GLOBAL):
        assert self.lib.cuStreamBeginCapture_v2(stream, mode) == SUCCESS

    def end(self, stream):
        graph = ctypes.c_void_p()
        return self.lib.cuStreamEndCapture(stream, ctypes.byref(graph)), graph

    def status(self, stream):
        status = ctypes.c_int(7)
        assert self.lib.cuStreamIsCapturing(stream, ctypes.byref(status)) == SUCCESS
        return status.value

    def alloc(self, size, stream):
        address = ctypes.c_uint64()
        return self.lib.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), stream), address.value

    def free(self, address, stream):
        return self.lib.cuMemFreeAsync(ctypes.c_uint64(address), stream)


@fresh(memory="16MiB")
def test_what_is_captured_takes_memory_at_launch(driver):
    captures, graphs, pools = Captures(driver), Graphs(driver), Pools(driver)
    stream, outside = captures.stream(), pools.alloc(1000)
    captures.begin(stream)
    assert captures.status(stream) == ACTIVE
    result, address = captures.alloc(3 * MIB, stream)
    result2, kept = captures.alloc(MIB, stream)
    assert result == result2 == SUCCESS and driver.requested_by(Kind.POOL) == 1000
    assert captures.free(address, stream) == SUCCESS
    assert captures.free(outside, stream) == INVALID_VALUE  # not the graph's
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    nodes, count = ctypes.c_void_p(), ctypes.c_size_t()
    call = driver.lib.cuStreamGetCaptureInfo_v2
    outputs = [ctypes.byref(x) for x in (status, number, graph, nodes, count)]
    assert call(stream, *outputs) == SUCCESS and status.value == ACTIVE and number.value > 0 and count.value == 1
    assert driver.used() == 2 * MIB and driver.lib.simgpu_calls() == 1  # the pool's
    result, captured = captures.end(stream)
    assert result == SUCCESS and captured.value == graph.value and captures.status(stream) == NONE
    executable = graphs.instantiate(captured)
    assert driver.used_by(Kind.GRAPH) == 0
    assert graphs.launch(executable, stream) == SUCCESS
    assert driver.used_by(Kind.GRAPH) == 4 * MIB and driver.requested_by(Kind.GRAPH) == MIB
    assert captures.free(kept, stream) == SUCCESS  # an ordinary free again
    assert driver.requested_by(Kind.GRAPH) == 0 and pools.free(outside) == SUCCESS


@fresh
def test_a_stream_joins_by_an_event(driver):
    captures, lib = Captures(driver), driver.lib
    stream, other, event = captures.stream(), captures.stream(), ctypes.c_void_p()
    assert lib.cuEventCreate(ctypes.byref(event), 2) == SUCCESS
    captures.begin(stream)
    assert lib.cuEventRecord(event, stream) == lib.cuStreamWaitEvent(other, event, 0) == SUCCESS
    assert captures.status(other) == ACTIVE
    assert captures.alloc(1000, other)[0] == SUCCESS and driver.used() == 0
    assert captures.end(other)[0] != SUCCESS  # not where it began
    result, graph = captures.end(stream)
    assert result == SUCCESS and captures.status(other) == NONE
    count = ctypes.c_size_t()
    assert lib.cuGraphGetNodes(graph, None, ctypes.byref(count)) == SUCCESS and count.value == 1


@fresh
def test_a_capture_forbids_plain_allocations(driver):
    captures, lib = Captures(driver), driver.lib
    stream = captures.stream()
    for mode, allowed in ((GLOBAL, False), (THREAD_LOCAL, False), (RELAXED, True)):
        captures.begin(stream, mode)
        assert driver.try_alloc(1000)[0] == (SUCCESS if allowed else CAPTURE_UNSUPPORTED)
        assert captures.status(stream) == (ACTIVE if allowed else INVALIDATED)
        if not allowed:
            assert captures.alloc(1000, stream)[0] == CAPTURE_INVALIDATED
        assert captures.end(stream)[0] == (SUCCESS if allowed else CAPTURE_INVALIDATED)
    mode = ctypes.c_int(RELAXED)
    captures.begin(stream)
    assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == SUCCESS and mode.value == GLOBAL
    assert driver.try_alloc(1000)[0] == SUCCESS and captures.end(stream)[0] == SUCCESS
    assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == SUCCESS and mode.value == RELAXED
    captures.begin(stream, THREAD_LOCAL)
    results = []

    def elsewhere():
        driver.use(0)
        results.append(driver.try_alloc(1000)[0])  # another thread's is no concern of this capture
        results.append(captures.end(stream)[0])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert results == [SUCCESS, WRONG_THREAD] and captures.status(stream) == ACTIVE
    assert lib.cuStreamSynchronize(stream) == CAPTURE_UNSUPPORTED
    assert lib.cuStreamDestroy_v2(stream) == SUCCESS  # and the capture with it
    assert driver.try_alloc(1000)[0] == SUCCESS
    assert lib.cuStreamBeginCapture_v2(None, GLOBAL) == CAPTURE_UNSUPPORTED
    assert lib.cuStreamBeginCapture_v2(stream, GLOBAL) == INVALID_HANDLE


@fresh
def test_capture_into_a_graph_of_ones_own(driver):
    captures, graphs = Captures(driver), Graphs(driver)
    stream, graph, none = captures.stream(), graphs.create(), ctypes.c_size_t(0)
    graphs.add_alloc(graph, 100)
    assert captures.end(stream)[0] == ILLEGAL_STATE
    assert driver.lib.cuStreamBeginCaptureToGraph(stream, graph, None, None, none, RELAXED) == SUCCESS
    assert driver.lib.cuStreamBeginCapture(stream) == ILLEGAL_STATE
    address = captures.alloc(100, stream)[1]
    result, same = captures.end(stream)
    assert result == SUCCESS and same.value == graph.value
    assert graphs.launch(graphs.instantiate(graph)) == SUCCESS and driver.requested_by(Kind.GRAPH) == 200
    assert driver.free(address) == SUCCESS and driver.requested_by(Kind.GRAPH) == 100
