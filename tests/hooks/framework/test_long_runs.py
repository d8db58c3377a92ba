"""What many steps add up to: nothing on the device, nothing in the process, whatever the loop keeps of its losses."""

import pathlib

import pytest

JOB = pathlib.Path(__file__).parent / "jobs" / "long_run.py"

OUTPUT = 8 * 8 * 32 * 32 * 4  # bytes of the network's output: what a graph that stays alive would hold at least once


@pytest.mark.parametrize(
    ("arm", "memory"),
    [("auto", "64MiB"), ("always", "64MiB"), ("auto", "3200000")],
    ids=["disarmed", "armed", "split"],
)
def test_a_step_leaves_nothing_behind(run_job, arm, memory):
    job = run_job(JOB, env={"BSGUARD_ARM": arm}, memory=memory)
    assert job.returncode == 0, job
    device, resident = job.result
    assert device <= 0, job
    # The nodes of one graph are more than this; what little Paddle's own caches of the host still grow is less.
    assert resident < 36 << 10, job
    assert bool(job.events_of("applied")) == (memory == "3200000"), job


@pytest.mark.parametrize("memory", ["64MiB", "4200000"], ids=["ample", "short"])
def test_losses_that_the_loop_keeps(run_job, memory):
    """After its backward a loss that is kept costs what it costs in plain Paddle: no memory of the device."""
    job = run_job(JOB, "--keep", memory=memory)
    assert job.returncode == 0, job
    assert job.result[0] < OUTPUT / 16, job


def test_a_loss_that_is_kept_cannot_be_run_through_twice(run_job):
    """Nothing is left of the cut by then but a mark; Paddle's own error comes all the same."""
    job = run_job(
        """
        import paddle
        paddle.set_device("gpu")
        net = paddle.nn.Linear(4, 4)
        kept = []
        for _ in range(3):
            loss = net(paddle.ones([2, 4])).square().mean()
            loss.backward()
            kept.append(loss)
        before = net.weight.grad.numpy().copy()
        for loss in kept:
            try:
                loss.backward()
            except Exception as error:
                print("refused", "twice" in str(error), bool((net.weight.grad.numpy() == before).all()))
        """,
        env={"BSGUARD_ARM": "always"},
    )
    assert job.returncode == 0, job
    assert job.stdout.split() == ["refused", "True", "True"] * 3, job


def test_a_layer_whose_first_parameter_is_on_the_host(run_job):
    """It is split all the same: another of its parameters says where it runs."""
    job = run_job(
        """
        import paddle
        import paddle.nn as nn

        class Net(nn.Layer):
            def __init__(self):
                super().__init__()
                paddle.set_device("cpu")
                self.table = self.create_parameter([4])
                paddle.set_device("gpu")
                self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

            def forward(self, x):
                return self.body(x)

        net = Net()
        assert net.parameters()[0].place.is_cpu_place()
        optimizer = paddle.optimizer.SGD(0.1, parameters=net.body.parameters())
        for step in range(2):
            loss = net(paddle.ones([512, 64])).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        """,
        memory="2MiB",
    )
    assert job.returncode == 0, job
    assert job.events_of("applied"), job


def test_two_trainings_in_two_threads(run_job):
    """Each comes to the weights that it has alone, with one device too small for both."""
    script = """
        import sys
        import threading
        import numpy as np
        import paddle
        import paddle.nn as nn
        import paddle.nn.functional as F
        paddle.set_device("gpu")
        paddle.set_default_dtype("float64")
        paddle.seed(7)

        def make():
            layers = [nn.Conv2D(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2D(8, 8, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 256, 10))

        def train(net, seed):
            random = np.random.RandomState(seed)
            optimizer = paddle.optimizer.Momentum(0.01, parameters=net.parameters())
            for _ in range(6):
                images = paddle.to_tensor(random.rand(64, 1, 16, 16))
                F.cross_entropy(net(images), paddle.to_tensor(random.randint(0, 10, (64, 1)))).backward()
                optimizer.step()
                optimizer.clear_grad()

        nets = [make(), make()]
        threads = [threading.Thread(target=train, args=each) for each in zip(nets, (1, 2))]
        for thread in threads:
            thread.start()
            if sys.argv[1] == "apart":
                thread.join()
        for thread in threads:
            thread.join()
        print([["%.9f" % float(p.abs().sum()) for p in net.parameters()] for net in nets])
        """
    alone = run_job(script, "apart", preload=False)
    both = run_job(script, "together", memory="6MiB")
    assert alone.returncode == 0 and both.returncode == 0, both
    assert both.events_of("applied"), both
    assert both.stdout == alone.stdout, both
