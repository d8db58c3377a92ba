"""Runs the cases of a script in several ways in one process: ways.py SCRIPT OUT.pickle [--ways plain,armed,...] [CASE...]

SCRIPT has CASES (names) and run(case) -> dict, and knows nothing of bsguard. Ways: plain (nothing asked of bsguard; for
runs without the preload), armed (at one chunk), disarmed; a number: every boundary runs in so many chunks, since the
policy was told of terminal OOMs (or, where it is no power of two, as if an operator had asked for it); forward and
backward: every boundary runs out of memory once, at the very end of its forward or of its backward, when everything that
a failed attempt can change has been changed; memory: the device has as much as lies between what the case holds at its
end and its peak, drawn by the case's name. The last needs SCRIPT to call each of its AT_THE_END before it lets go of
its networks.

OUT gets {case: {way: {"result": ..., "said": [...], "peak": bytes, "outputs": bytes, "copies": bytes,
"ooms": N, "foreseen": steps, "ahead": chunks in them}}}; said: the events of
that way that name a class or a refusal, as (type, class or "", why). peak: the driver's, above what was used before.
outputs: of all boundaries at once, at their highest, as the device rounds them. copies: likewise, of gradients to which a
backward is about to add. ooms: how often memory ran out for good.
"""

import ctypes
import gc
import glob
import importlib.util
import json
import pickle
import random
import sys

import paddle


class Told:
    """Stands in front of the policy: as if every boundary had run out of memory before."""

    def __init__(self, runtime, native):
        self.pieces = 1
        self._library, self._native = runtime.library, native
        self._ask = runtime.library.boundary
        self._known = set()
        runtime.library.boundary = self._boundary

    def _boundary(self, device, name, signature, batch, phase):
        decision = self._ask(device, name, signature, batch, phase)
        key = (name, signature, phase)
        if self.pieces > 1 and key not in self._known:
            self._known.add(key)
            text = name.decode(), signature.decode()
            exact = self._native.EXACT
            while decision.chunks < min(self.pieces, batch) and not self.pieces & (self.pieces - 1):
                before = decision.chunks
                self._library.terminal(device, *text, batch, phase, exact, None, 1 << 20, "told by the test")
                decision = self._ask(device, name, signature, batch, phase)
                if decision.chunks == before:
                    break
        if self.pieces & (self.pieces - 1):
            decision.micro_batch = max(1, -(-batch // max(self.pieces, decision.chunks)))
            decision.accumulation_steps = decision.chunks = -(-batch // decision.micro_batch)
        return decision


class Failing:
    """Stands in front of Paddle: lets it do the work of a boundary, and then says that it ran out of memory."""

    def __init__(self, runtime, thread, call):
        self.where = None
        self._failed = set()
        self._depth = 0
        self._call, self._thread = call, thread
        self._layer_call, self._run_backward = runtime.layer_call, runtime.run_backward
        runtime.layer_call, runtime.run_backward = self._forward, self._backward

    def start(self, where):
        """where: forward, backward or None, from now on."""
        self.where = where
        self._failed.clear()

    def _forward(self, layer, *args, **kwargs):
        self._depth += 1
        try:
            result = self._layer_call(layer, *args, **kwargs)
        finally:
            self._depth -= 1
        outermost = self._depth == 0 and not self._thread.trial
        records = paddle.is_grad_enabled() and any(not p.stop_gradient for p in layer.parameters())
        if self.where == "forward" and outermost and records:
            self._fail(layer)
        return result

    def _backward(self, tensors, grads, retain, *rest):
        self._run_backward(tensors, grads, retain, *rest)
        for one in self._call.pending() if self.where == "backward" else ():
            if any(tensor is root for tensor in one.inner or () for root in tensors):
                self._fail(one.layer)

    def _fail(self, layer):
        if id(layer) not in self._failed:
            self._failed.add(id(layer))
            raise MemoryError("ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.0MB memory")


class Keeping:
    """Decides how many graphs of chunks are kept, where memory would."""

    def __init__(self, runtime, keep, speculate):
        self._runtime, self._most = runtime, 0
        self._merged, self._chunks = 0, 0
        merge = speculate.Private.merge

        def counting(private, rest):
            self._merged += 1
            self._chunks += private.chunks
            merge(private, rest)

        speculate.Private.merge = counting
        graphs = keep.graphs
        keep.graphs = lambda call: min(self._most, graphs(call))
        fits_too = keep.graph_fits_too
        keep.graph_fits_too = lambda call, more: self._most > 0 and fits_too(call, more)

    def start(self, way):
        """Memory decides in the way that is named after it, and elsewhere the way."""
        self._runtime.keep = "auto" if way == "memory" else "always"
        self._most = 1 << 20 if way == "memory" else {"2": 1, "3": 1, "4": 4}.get(way, 0)

    def merged(self):
        """In how many steps since the last call the loss was foreseen, and of how many chunks in them together."""
        found, self._merged, self._chunks = (self._merged, self._chunks), 0, 0
        return found


class Device:
    """The simulated device's memory, in bytes."""

    _UNIT = 512  # what it rounds to

    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")
        for name in ("simgpu_used", "simgpu_peak"):
            getattr(self._driver, name).restype = ctypes.c_uint64
        self._driver.simgpu_set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
        self._before = self.outputs = self.copies = self.kept = 0

    def begin(self):
        """A run begins: what is used from here on is its own."""
        # Paddle keeps the graph of a paddle.grad that raised until the next one.
        one = paddle.ones([1])
        one.stop_gradient = False
        paddle.grad(one * 2, one)
        del one
        self._driver.simgpu_peak(0, 1)
        self._before = self._used()
        self.outputs = self.copies = self.kept = 0

    def peak(self):
        """The most that this run has used at once."""
        return self._driver.simgpu_peak(0, 0) - self._before

    def note_end(self):
        """The run is at its end and has let go of nothing yet: what it holds is its fixed part."""
        self.kept = self._used() - self._before

    def limit(self, more):
        """Nothing but `more` than what is used now; None: no limit any more."""
        self._driver.simgpu_set_capacity(0, (1 << 30) if more is None else self._used() + more)

    def _bytes(self, tensors):
        return sum(-(-one.size * one.element_size() // self._UNIT) * self._UNIT for one in tensors)

    def watch(self, call, gradients):
        """Notes what the outputs of boundaries take while their graphs are alive, and copies of gradients."""
        hand_out, save = call.Call.hand_out, gradients.Saved.__init__

        def noting(self_, *arguments):
            result = hand_out(self_, *arguments)
            leaves = [leaf for one in call.pending() for leaf in one.leaves if leaf is not None]
            self.outputs = max(self.outputs, self._bytes(leaves))
            return result

        def saving(self_, parameters):
            save(self_, parameters)
            copies = [saved for _, saved in self_._entries if not isinstance(saved, str)]
            self.copies = max(self.copies, self._bytes(copies))

        call.Call.hand_out, gradients.Saved.__init__ = noting, saving

    def _used(self):
        return self._driver.simgpu_used(0)


class Events:
    """What bsguard writes to events.jsonl, from one look to the next."""

    def __init__(self):
        self._read = 0
        self.ooms = 0  # at the last look

    def new(self):
        """The events since the last look that say how exact a run is, or that it is refused."""
        found, self.ooms = [], 0
        for path in glob.glob("bsguard/*/events.jsonl"):
            with open(path) as file:
                file.seek(self._read)
                text = file.read()
                self._read = file.tell()
            for event in map(json.loads, text.splitlines()):
                self.ooms += event["type"] == "oom"
                if event["type"] == "applied" and event["exactness"] != "exact":
                    found.append(("applied", event["exactness"], event["because"]))
                elif event["type"] == "refused" or (event["type"] == "disarmed" and event["for_good"]):
                    found.append((event["type"], "", event["why"]))
        return found


def load(path):
    """The script as a module, without running its main part."""
    spec = importlib.util.spec_from_file_location("cases", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module  # what is defined there can be pickled
    spec.loader.exec_module(module)
    return module


def main(script, out, *rest):
    ways = ["plain"]
    if rest[:1] == ("--ways",):
        ways, rest = rest[1].split(","), rest[2:]
    cases = load(script)
    told = failing = events = None
    device = Device()
    if ways != ["plain"]:
        from bsguard_paddle import boundary, call, gradients, keep, native, speculate
        from bsguard_paddle.runtime import runtime, thread

        told, failing, events = Told(runtime, native), Failing(runtime, thread, call), Events()
        device.watch(call, gradients)
        keeping = Keeping(runtime, keep, speculate)
    if hasattr(cases, "AT_THE_END"):
        cases.AT_THE_END.append(device.note_end)

    def run(case, way, room=None):
        if told is not None:
            runtime.arm = {"disarmed": "never", "memory": "auto"}.get(way, "always")
            told.pieces = int(way) if way.isdigit() else 1
            keeping.start(way)
            failing.start(way if way in ("forward", "backward") else None)
            boundary.step_ended()  # as many networks as in one step are no single network
        device.begin()
        device.limit(room)  # behind what begin() itself allocates
        result = cases.run(case)
        device.limit(None)
        found = {"result": result, "peak": device.peak(), "outputs": device.outputs, "ooms": 0}
        found["copies"] = device.copies
        result = None
        gc.collect()
        found["said"] = events.new() if events is not None else []
        found["foreseen"], found["ahead"] = keeping.merged() if told is not None else (0, 0)
        found["ooms"] = events.ooms if events is not None else 0
        return found

    gc.freeze()  # what Paddle made at its start is not looked at again in each collection
    results = {}
    for case in rest or cases.CASES:
        for way in ways:
            room = None
            if way == "memory":
                peak, fixed = run(case, "disarmed")["peak"], device.kept
                room = fixed + int(random.Random(case).random() * max(0, peak - fixed))
            results.setdefault(case, {})[way] = run(case, way, room)
    with open(out, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
