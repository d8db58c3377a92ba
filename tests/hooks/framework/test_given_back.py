"""What cannot be saved is given back as it came: the same exception and exit status as without the preload; and a loop that
handles MemoryError itself works as it was written, nothing of the failed step left in memory."""

import pytest

FLOOR = """
    import paddle
    paddle.set_device("gpu")
    net = paddle.nn.Linear(64, 1 << 18, bias_attr=False) if %(weights)d else paddle.nn.Linear(64, 16)
    x = paddle.ones([1, 64]) if %(weights)d else paddle.ones([1, 1 << 17, 64])
    net(x).mean().backward()
    """

SKIPS = """
    import gc, json, weakref
    import paddle
    paddle.set_device("gpu")
    paddle.seed(1)
    net = paddle.nn.Sequential(paddle.nn.Linear(64, 256), paddle.nn.Tanh(), paddle.nn.Linear(256, 1))
    step = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    gc.disable()
    class Marked(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.net = net
        def forward(self, x):
            return self.net(x)
    model = Marked()
    done, skipped, kept = 0, 0, []
    for rows in (64, 1 << 15, 64, 1 << 15, 64):
        x = paddle.ones([1, rows, 64])
        try:
            loss = model(x).mean()
            loss.backward()
            step.step()
            done += 1
        except MemoryError:
            skipped += 1
            kept.append(weakref.ref(x))
        step.clear_grad()
        x = loss = None
    print(json.dumps([done, skipped, [each() is None for each in kept]]))
    """


@pytest.mark.parametrize("weights", [0, 1])
def test_floor(run_job, weights):
    """A batch of one sample, or the weights alone, that do not fit."""
    plain = run_job(FLOOR % {"weights": weights}, memory="40MiB", preload=False)
    job = run_job(FLOOR % {"weights": weights}, memory="40MiB")
    assert plain.returncode == job.returncode == 1, (plain, job)
    last = [each.stderr.split("MemoryError")[-1].split("\nbsguard")[0] for each in (plain, job)]
    assert "Out of memory error on gpu:0. Cannot allocate" in last[0], plain
    wanted = [text.split("Cannot allocate")[1].split(" memory on")[0] for text in last]
    assert wanted[0] == wanted[1], (plain, job)
    assert "report.txt" in job.stderr, job


def test_a_loop_that_skips_a_batch(run_job):
    plain = run_job(SKIPS, memory="24MiB", preload=False)
    job = run_job(SKIPS, memory="24MiB")
    assert plain.returncode == job.returncode == 0, (plain, job)
    assert plain.result == job.result == [3, 2, [True, True]], (plain, job)
