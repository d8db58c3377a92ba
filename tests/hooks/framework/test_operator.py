"""What an operator does from outside: request.json while a job runs, and the report of one that died."""

import json

import pytest

LOOP = """
    import json, os, sys, time
    import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        def forward(self, x):
            return self.body(x)

    paddle.set_device("gpu"); paddle.seed(0)
    net = Net(); optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    random = np.random.RandomState(0)
    orders = json.loads(sys.argv[1])          # step -> text of request.json
    for step in range(1, 7):
        x = paddle.to_tensor(random.rand(32, 64).astype("float32"))
        F.cross_entropy(net(x), paddle.to_tensor(random.randint(0, 10, (32, 1)))).backward()
        if str(step) in orders:               # what `bsguard set` does from another process
            (run,) = os.listdir("bsguard")
            with open("bsguard/%s/request.json" % run, "w") as file:
                file.write(orders[str(step)])
        optimizer.step(); optimizer.clear_grad()
    print(float(net.body[0].weight.abs().sum()))
"""


def order(**fields):
    """The text of a request."""
    return json.dumps({"schema": "bsguard.request/1", **fields})


def test_a_request_is_obeyed_at_the_next_step(run_job):
    plain = run_job(LOOP, "{}", preload=False)
    orders = {"2": order(micro_batch=8), "4": order(micro_batch=32, boundary="Net", device=0)}
    job = run_job(LOOP, json.dumps(orders))
    assert job.returncode == 0, job
    sizes = [event["micro_batch"] for event in job.events_of("step")]
    assert sizes == [32, 32, 8, 8, 32, 32], sizes
    answers = job.events_of("request")
    assert [(event["micro_batch"], event["obeyed"]) for event in answers] == [(8, True), (32, True)]
    assert [event["reason"] for event in job.events_of("decision")] == ["start", "manual", "manual"]
    assert not (job.run / "request.json").exists()
    assert abs(job.result - plain.result) <= 1e-5 * plain.result


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        order(micro_batch=0),
        order(micro_batch="8"),
        order(micro_batch=8, boundary="Nothing"),
        json.dumps({"micro_batch": 8}),
        json.dumps({"schema": "bsguard.request/9", "micro_batch": 8}),
        "x" * 100_000,
    ],
    ids=["torn", "list", "zero", "text", "unknown", "no-schema", "other-schema", "huge"],
)
def test_a_malformed_request_is_refused_in_one_line(run_job, text):
    job = run_job(LOOP, json.dumps({"2": text}))
    assert job.returncode == 0, job
    assert len(job.lines_of_bsguard) == 1 and "request.json" in job.lines_of_bsguard[0], job
    (answer,) = job.events_of("request")
    assert answer["obeyed"] is False and answer["why"]
    assert job.control["sequence"] == 1 and not (job.run / "request.json").exists()
    assert {event["micro_batch"] for event in job.events_of("step")} == {32}


TOO_LARGE = """
    import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F

    class Upsampling(nn.Layer):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(512, 4)
        def forward(self, x):
            return self.head(x.tile([1, 64, 1])).mean(1)

    paddle.set_device("gpu")
    net = Upsampling()
    x = paddle.to_tensor(np.random.rand(2, 64, 512).astype("float32"))
    F.cross_entropy(net(x), paddle.to_tensor([[0], [1]])).backward()
"""


def test_what_cannot_be_saved_leaves_the_exception_and_a_report(run_job):
    """Batch 1 is still too large: the user's exception on the screen, a report beside it, the exit status as without."""
    plain = run_job(TOO_LARGE, memory="8MiB", preload=False)
    job = run_job(TOO_LARGE, memory="8MiB")
    assert plain.returncode == job.returncode == 1

    def of_paddle(text):
        return [
            line for line in text.splitlines() if "ResourceExhaustedError" in line or line.startswith("MemoryError")
        ]

    assert of_paddle(job.stderr) == of_paddle(plain.stderr) and of_paddle(plain.stderr)
    assert "return self.head(x.tile" in job.stderr  # the lines of the model are still in the traceback
    report = json.loads((job.run / "report.json").read_text())
    text = (job.run / "report.txt").read_text()
    oom = job.events_of("oom")[-1]
    assert str(oom["request_bytes"]) in json.dumps(report) and oom["request_bytes"] > 0
    assert "forward" in text
    assert any("report.txt" in line for line in job.lines_of_bsguard)
    assert len(job.lines_of_bsguard) <= 4, job.lines_of_bsguard


OUTSIDE = """
    import paddle
    paddle.set_device("gpu")
    kept = [paddle.ones([256, 1024]) for _ in range(int(64))]
"""


def test_an_oom_outside_of_any_model_is_reported_too(run_job):
    job = run_job(OUTSIDE, memory="8MiB")
    assert job.returncode == 1 and "MemoryError" in job.stderr
    assert len(job.events_of("oom")) == 1 and (job.run / "report.txt").exists(), job


CAUGHT = """
    import paddle
    paddle.set_device("gpu")
    kept, caught = [], 0
    for _ in range(64):
        try:
            kept.append(paddle.ones([256, 1024]))
        except MemoryError:
            caught += 1
            kept.clear()
    print(caught)
"""


def test_a_loop_that_catches_the_error_itself_goes_on(run_job):
    plain = run_job(CAUGHT, memory="8MiB", preload=False)
    job = run_job(CAUGHT, memory="8MiB")
    assert job.returncode == 0 and job.result == plain.result > 0


WORKERS = """
    import numpy as np, os, paddle, subprocess, sys

    class Data(paddle.io.Dataset):
        def __getitem__(self, index):
            return np.full([4], index, "float32")
        def __len__(self):
            return 8

    paddle.set_device("gpu")
    total = sum(float(batch[0].sum()) if isinstance(batch, list) else float(batch.sum())
                for batch in paddle.io.DataLoader(Data(), batch_size=2, num_workers=2))
    child = subprocess.run([sys.executable, "-c", "pass"], capture_output=True, text=True)
    assert child.returncode == 0 and child.stdout == child.stderr == "", child
    print(total)
"""


def test_workers_and_children_leave_nothing_behind(run_job):
    job = run_job(WORKERS)
    assert job.returncode == 0 and job.result == 112.0, job
    assert len(job.runs) == 1 and job.lines_of_bsguard == []
    assert {event["pid"] for event in job.events_of("start")} == {int(job.run.name.rsplit("-", 1)[1])}
