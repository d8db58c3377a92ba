"""The trial before a split: what it covers, what it must not take for an answer, and what it need not ask."""

import json

import pytest

from benchmarks import exactness

COMMON = """
    import ctypes, json, sys
    import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F

    paddle.set_device("gpu"); paddle.seed(0); paddle.set_default_dtype("float64")
    driver = ctypes.CDLL("libcuda.so.1")
    driver.simgpu_fail_at.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    TERMINAL = 4  # as many refusals as Paddle takes for final
"""

RECURRENT = (
    COMMON
    + """
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16), nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    net = Net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    random = np.random.RandomState(0)
    x = paddle.to_tensor(random.randn(16, 5, 8))

    def train(position=0):
        if position:
            driver.simgpu_fail_at(position, TERMINAL)
        loss = (net(x) ** 2).mean()
        driver.simgpu_fail_at(0, 0)
        loss.backward(); optimizer.step(); optimizer.clear_grad()
        return float(loss)

    def evaluate(position=0):
        net.eval()
        if position:
            driver.simgpu_fail_at(position, TERMINAL)
        with paddle.no_grad():
            out = net(x).numpy()
        driver.simgpu_fail_at(0, 0)
        net.train()
        return float(np.abs(out).sum())

    faults = [int(word) for word in sys.argv[1:]] or [0]
    print(json.dumps([[evaluate(fault), train(fault)] for fault in [0] + faults + [0]]))
"""
)


def test_what_a_recurrent_layer_keeps_is_no_state_of_the_model(run_job):
    """Paddle's own workspace comes in training and goes in evaluation, and there is no gradient out of training."""
    faults = [str(position) for position in (1, 3, 5)]
    plain = run_job(RECURRENT, *["0"] * len(faults), memory="64MiB", preload=False, env=exactness.UNCACHED)
    assert plain.returncode == 0, plain
    job = run_job(RECURRENT, *faults, memory="64MiB", env={"BSGUARD_ARM": "always", **exactness.UNCACHED})
    assert job.returncode == 0, job
    assert not job.events_of("refused"), job
    assert {event["phase"] for event in job.events_of("oom")} >= {"evaluation", "forward"}, job
    for mine, theirs in zip(job.result, plain.result):
        assert mine == pytest.approx(theirs, rel=1e-10), job


TRIALS = (
    COMMON
    + """
    from bsguard_paddle import proof
    from bsguard_paddle.inputs import Inputs
    from bsguard_paddle.site import site_of
    from bsguard_paddle.state import Mode

    class Squeezed(nn.Layer):  # one sample alone has no batch axis
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            return self.inner(x).squeeze()

    class OfTheWhole(paddle.autograd.PyLayer):  # its gradient depends on all samples, its value on none but its own
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return gradient / (gradient.abs().sum() + 1.0)

    class Mixing(Squeezed):
        def forward(self, x):
            return OfTheWhole.apply(self.inner(x))

    x = Inputs((paddle.rand([64, 8]),), {})
    run, found = proof._run, {}

    def count(*arguments):
        count.runs += 1
        return run(*arguments)

    def no_memory(*arguments):
        raise MemoryError("ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.0MB memory")

    proof._run, count.runs = count, 0
    linear = nn.Linear(8, 4)
    plain = site_of(linear)
    first = plain.proof(x, Mode(), 32)
    found["linear"] = [first.why, first.smallest]
    before = count.runs
    proof._run = no_memory  # as it may be by the time that single samples are wanted
    found["asked again"] = [plain.proof(x, Mode(), 1) is first, count.runs - before]

    squeezed = Squeezed()
    found["no memory"] = site_of(squeezed).proof(x, Mode(), 32).why
    proof._run = count
    second = site_of(squeezed).proof(x, Mode(), 32)
    found["squeezed"] = [second.why, second.smallest]
    proof._run = no_memory
    found["squeezed, no memory for single ones"] = site_of(squeezed).proof(x, Mode(), 1).why
    proof._run = count
    found["squeezed after it"] = site_of(squeezed).proof(x, Mode(), 32) is second

    mixing = Mixing()
    with paddle.no_grad():
        found["without gradients"] = site_of(mixing).proof(x, Mode(), 32).why
    found["with gradients"] = site_of(mixing).proof(x, Mode(), 32).why
    print(json.dumps(found))
"""
)


def test_what_a_trial_covers(run_job):
    job = run_job(TRIALS, memory="64MiB")
    assert job.returncode == 0, job
    found = job.result
    assert found["linear"] == [None, 1]
    assert found["asked again"] == [True, 0], "single samples are proven with the rest, while there is memory"
    assert "did not fit" in found["no memory"]
    assert found["squeezed"] == [None, 2], "what says nothing for want of memory is asked again"
    assert "did not fit" in found["squeezed, no memory for single ones"] and found["squeezed after it"]
    assert found["without gradients"] is None, "nobody asks for gradients"
    assert "do not add up" in found["with gradients"], "no answer for a call without gradients serves one with"


COPIES = (
    COMMON
    + """
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    random = np.random.RandomState(0)
    refusals = int(sys.argv[1])
    if refusals:
        from bsguard_paddle import call

        hand_out = call.Call.hand_out

        def failing(self, *arguments):  # from the step's own copies of the outputs on
            if failing.refusals:
                driver.simgpu_fail_at(1, failing.refusals)
                failing.refusals, failing.met = 0, failing.met + 1
            return hand_out(self, *arguments)

        call.Call.hand_out, failing.refusals, failing.met = failing, 0, 0
    losses = []
    for step in range(4):
        x = paddle.to_tensor(random.randn(16, 8))
        if step == 2 and refusals:  # in the forward itself: from here on in chunks
            driver.simgpu_fail_at(1, TERMINAL)
        if step in (1, 3) and refusals:
            failing.refusals = refusals
        y = net(x)
        if refusals:
            driver.simgpu_fail_at(0, 0)
        loss = (y ** 2).mean()
        loss.backward(); optimizer.step(); optimizer.clear_grad()
        losses.append(float(loss))
    assert not refusals or failing.met == 2
    print(json.dumps(losses))
"""
)


@pytest.mark.parametrize("refusals", [1, 4, 8])
def test_no_room_for_the_copies_of_the_outputs(run_job, refusals):
    """Absorbed by Paddle, met once, met in the second try too: the step is as it was, and the next one is guarded."""
    plain = run_job(COPIES, "0", memory="64MiB", preload=False, env=exactness.UNCACHED)
    assert plain.returncode == 0, plain
    job = run_job(COPIES, str(refusals), memory="64MiB", env={"BSGUARD_ARM": "always", **exactness.UNCACHED})
    assert job.returncode == 0, job
    assert job.result == pytest.approx(plain.result, rel=1e-10), job
    assert not [event for event in job.events_of("disarmed") if event["for_good"]], job
    assert not job.events_of("refused") and "internal error" not in job.stderr, job
    decided = [event for event in job.events_of("oom") if event["boundary"]]
    assert [event["phase"] for event in decided] == ["forward"], json.dumps(decided)


NO_ROOM = """
    import paddle, paddle.nn as nn
    paddle.set_device("gpu")
    net = nn.Sequential(nn.Conv2D(1, 512, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512 * 16, 28))
    net(paddle.randn([8, 1, 4, 4])).sum().backward()
"""


def test_what_was_refused_to_the_trial_is_not_taken_for_what_was_refused_to_the_job(run_job):
    job = run_job(NO_ROOM, memory="1MiB", env={"BSGUARD_WAIT": "0"})
    assert "MemoryError" in job.stderr, job
    assert any("a trial with two samples did not fit" in line for line in job.lines_of_bsguard), job
    (event,) = job.events_of("oom")
    assert event["request_bytes"] == 8 * 512 * 16 * 4 and event["api"] == "cuMemAlloc_v2", event


UNFORESEEN = (
    COMMON
    + """
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):  # more samples than a trial has
            return self.linear(x) * (1.0 + np.random.rand() if x.shape[0] > 5 else 1.0)

    net = Net()
    x = paddle.to_tensor(np.random.RandomState(0).randn(16, 6))

    def gradient(*chunks):
        for low, high in chunks:
            (net(x[low:high]) ** 3).sum().backward()
        found = net.linear.weight.grad.numpy().copy()
        net.linear.weight.clear_grad()
        return found

    np.random.seed(7)
    driver.simgpu_fail_at(1, TERMINAL)
    rescued = gradient((0, 16))
    driver.simgpu_fail_at(0, 0)
    np.random.seed(7)
    by_hand = gradient((0, 8), (8, 16))
    print(json.dumps(float(abs(rescued - by_hand).max() / abs(by_hand).max())))
"""
)


def test_what_a_forward_draws_from_numpy_and_no_trial_has_shown_is_drawn_once_more(run_job):
    env = {"BSGUARD_ARM": "always", "BSGUARD_KEEP": "never", "BSGUARD_WAIT": "0", "BSGUARD_STORE": "0"}
    job = run_job(UNFORESEEN, env={**env, "FLAGS_free_idle_chunk": "1"})
    assert job.returncode == 0, job
    assert any("16 as 2 x 8" in line for line in job.lines_of_bsguard), job
    assert json.loads(job.stdout.splitlines()[-1]) < 1e-12, job
