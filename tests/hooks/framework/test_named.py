"""BSGUARD_BOUNDARY: a network written as a function."""

JOB = """
    import json, sys
    import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F

    paddle.set_device("gpu"); paddle.seed(0); paddle.set_default_dtype("float64")
    layers = [nn.Linear(64, 256)] + [nn.Linear(256, 256) for _ in range(6)] + [nn.Linear(256, 10)]
    scale = paddle.create_parameter([256], "float64", default_initializer=nn.initializer.Constant(1.0))

    def network(x):
        for layer in layers[:-1]:
            x = F.gelu(layer(x))
        return layers[-1](x * scale)

    parameters = [p for layer in layers for p in layer.parameters()] + [scale]
    optimizer = paddle.optimizer.SGD(0.1, parameters=parameters)
    random = np.random.RandomState(0)
    sums = []
    for step in range(5):
        size = 64 if step < 2 else 1024          # what does not fit comes once the function is known
        x, y = paddle.to_tensor(random.randn(size, 64)), paddle.to_tensor(random.randint(0, 10, (size,)))
        F.cross_entropy(network(x), y).backward()
        sums.append([float(p.grad.abs().sum()) for p in parameters])
        optimizer.step(); optimizer.clear_grad()
    print(json.dumps(sums))
"""


def largest_difference(a, b):
    """Of two nested lists of numbers, relative to the largest."""
    pairs = [(x, y) for row, other in zip(a, b) for x, y in zip(row, other)]
    return max(abs(x - y) for x, y in pairs) / max(abs(x) for x, _ in pairs)


def test_a_function_is_split_where_it_is_named(run_job):
    plain = run_job(JOB, memory="256MiB", preload=False)
    job = run_job(JOB, memory="24MiB", env={"BSGUARD_BOUNDARY": "job:network"})
    assert job.returncode == 0, job
    assert {event["boundary"] for event in job.events_of("oom")} == {"network"}
    assert job.events_of("step")[-1]["accumulation_steps"] >= 2
    assert largest_difference(plain.result, job.result) <= 1e-10


def test_without_a_name_it_is_left_alone_in_one_line(run_job):
    job = run_job(JOB, memory="24MiB")
    assert job.returncode == 1 and "MemoryError" in job.stderr
    assert any("no place to split" in line for line in job.lines_of_bsguard), job


def test_many_layers_of_their_own(run_job):
    """More than a few boundaries a step: told once for all of them, and every gradient is Paddle's to the last bit."""
    many = JOB.replace("range(6)", "range(16)")
    plain = run_job(many, memory="256MiB", preload=False)
    job = run_job(many, memory="256MiB", env={"BSGUARD_ARM": "always"})
    assert job.returncode == 0 and job.result == plain.result, job
    for_good = [event for event in job.events_of("disarmed") if event["for_good"]]
    assert len(for_good) == len(job.lines_of_bsguard) == 1, job
    assert "BSGUARD_BOUNDARY" in job.lines_of_bsguard[0], "the way out is named"


def test_a_few_networks_in_a_step_are_no_function(run_job):
    """Six, as in a GAN with its helpers, stay guarded; the limit counts what one step calls, not what the job has."""
    few = JOB.replace("range(6)", "range(4)")
    job = run_job(few, memory="256MiB", env={"BSGUARD_ARM": "always"})
    assert job.returncode == 0 and job.lines_of_bsguard == [], job


def test_a_value_that_names_no_function(run_job):
    plain = run_job(JOB, memory="256MiB", preload=False)
    job = run_job(JOB, memory="256MiB", env={"BSGUARD_BOUNDARY": "network", "BSGUARD_ARM": "never"})
    assert job.returncode == 0 and job.result == plain.result
    assert len([line for line in job.lines_of_bsguard if "MODULE:FUNCTION, such as" in line]) == 1, job


def test_a_function_that_is_not_there_is_said_once(run_job):
    plain = run_job(JOB, memory="256MiB", preload=False)
    job = run_job(JOB, memory="256MiB", env={"BSGUARD_BOUNDARY": "job:nothing"})
    assert job.returncode == 0 and job.result == plain.result
    assert len([line for line in job.lines_of_bsguard if "job:nothing" in line]) == 1, job
