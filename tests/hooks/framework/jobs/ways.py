"""Runs the cases of a script in several ways in one process: ways.py SCRIPT OUT.pickle [--ways plain,armed,...] [CASE...]

SCRIPT has CASES (names) and run(case) -> dict, and knows nothing of bsguard. Ways: plain (nothing asked of bsguard; for
runs without the preload), armed (at one chunk), disarmed; a number: the policy is told of terminal OOMs until every
boundary runs in so many chunks; forward and backward: every boundary runs out of memory once, at the very end of its
forward or of its backward, when everything that a failed attempt can change has been changed. OUT gets
{case: {way: {"result": ..., "said": [...]}}}; said: the events of that way that name a class or a refusal, as
(type, class or "", why).
"""

import gc
import glob
import importlib.util
import json
import pickle
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
            while decision.chunks < min(self.pieces, batch):
                before = decision.chunks
                self._library.terminal(device, *text, batch, phase, exact, None, 1 << 20, "told by the test")
                decision = self._ask(device, name, signature, batch, phase)
                if decision.chunks == before:
                    break
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


class Events:
    """What bsguard writes to events.jsonl, from one look to the next."""

    def __init__(self):
        self._read = 0

    def new(self):
        """The events since the last look that say how exact a run is, or that it is refused."""
        found = []
        for path in glob.glob("bsguard/*/events.jsonl"):
            with open(path) as file:
                file.seek(self._read)
                text = file.read()
                self._read = file.tell()
            for event in map(json.loads, text.splitlines()):
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
    if ways != ["plain"]:
        from bsguard_paddle import boundary, call, native
        from bsguard_paddle.runtime import runtime, thread

        told, failing, events = Told(runtime, native), Failing(runtime, thread, call), Events()
    gc.freeze()  # what Paddle made at its start is not looked at again in each collection
    results = {}
    for case in rest or cases.CASES:
        for way in ways:
            if told is not None:
                runtime.arm = "never" if way == "disarmed" else "always"
                told.pieces = int(way) if way.isdigit() else 1
                failing.start(way if way in ("forward", "backward") else None)
                boundary.step_ended()  # as many networks as in one step are no single network
            result = cases.run(case)
            gc.collect()
            said = events.new() if events is not None else []
            results.setdefault(case, {})[way] = {"result": result, "said": said}
    with open(out, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
