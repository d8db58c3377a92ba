"""One fault in each place outside of the layers: places.py PLACE... Prints what came of it as one line of JSON.

The fault is as long as what Paddle takes for final (four refusals), and then gone: what is tried once more goes through.
"""

import ctypes
import gc
import io
import json
import sys

import numpy as np
import paddle

driver = ctypes.CDLL("libcuda.so.1")
driver.simgpu_fail_at.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
TERMINAL = 4
paddle.set_device("gpu")


def fail(position=1):
    """The next allocation but `position` - 1 is refused for good."""
    paddle.device.cuda.empty_cache()
    driver.simgpu_fail_at(position, TERMINAL)


class Numbers(paddle.io.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return np.full([300, 200], index, "float32"), np.int64(index)


class Stream(paddle.io.IterableDataset):
    def __iter__(self):
        yield from (Numbers()[index] for index in range(30))


def loader(*modes):
    """Every sample once and in order, whichever batch the reader dies of; persistent: in the second epoch too."""
    workers, shared, persistent = ("workers" in modes) * 2, "shared" in modes, "persistent" in modes
    data = Stream() if "stream" in modes else Numbers()
    found = []
    for position in (1, 2, 4):
        loads = paddle.io.DataLoader(
            data, batch_size=4, num_workers=workers, use_shared_memory=shared, persistent_workers=persistent
        )
        epochs = []
        for _ in range(2 if persistent else 1):
            fail(position)
            samples = []
            for images, numbers in loads:
                assert "gpu" in str(images.place)
                samples += [int(image.mean()) for image in images.numpy()]
                assert samples[-len(numbers) :] == numbers.numpy().tolist()
            epochs.append(samples)
        found.append(epochs)
    return found


def caught():
    """A loop that catches what could not be helped, and begins a new epoch: its workers collect garbage, and a reader's
    end in one of them would wait for threads that are not there."""
    gc.disable()
    loads = paddle.io.DataLoader(Numbers(), batch_size=4, num_workers=2, worker_init_fn=lambda _: gc.collect())
    batches = iter(loads)
    next(batches)
    paddle.device.cuda.empty_cache()
    driver.simgpu_fail_at(1, 1000)
    died = False
    try:
        for _ in batches:
            pass
    except MemoryError:
        died = True
    driver.simgpu_fail_at(0, 0)
    del batches
    return [died, [number for _, numbers in loads for number in numbers.numpy().tolist()]]


def cycles():
    """A reader in a cycle of references of the user's own: workers that collect garbage do not wait for its threads."""
    gc.disable()
    loads = paddle.io.DataLoader(Numbers(), batch_size=4, num_workers=2, worker_init_fn=lambda _: gc.collect())
    ring = [iter(loads)]
    next(ring[0])
    ring.append(ring)
    del ring
    return [number for _, numbers in loads for number in numbers.numpy().tolist()]


def to_tensor():
    fail()
    return float(paddle.to_tensor(np.full([512, 512], 2.0)).numpy().sum())


def copy():
    host = paddle.to_tensor(np.full([512, 512], 2.0), place=paddle.CPUPlace())
    fail()
    return float(host.cuda().numpy().sum())


def save():
    net = paddle.nn.Linear(300, 300)
    wrote = {"n": 0}
    real = sys.modules["paddle.framework.io"]._build_saved_state_dict

    def build(*arguments):  # a state that has to be brought from the device, where there is no room for it
        wrote["n"] += 1
        if wrote["n"] % 2:
            raise MemoryError("ResourceExhaustedError: Out of memory error on gpu:0. Cannot allocate 1.000000MB memory")
        return real(*arguments)

    sys.modules["paddle.framework.io"]._build_saved_state_dict = build
    file = io.BytesIO()
    file.write(b"head")
    paddle.save(net.state_dict(), file)
    paddle.save(net.state_dict(), "weights.pdparams")
    file.seek(4)
    states = [paddle.load(file), paddle.load("weights.pdparams")]
    same = [bool((state["weight"].numpy() == net.weight.numpy()).all()) for state in states]
    return same + [file.getvalue()[:4].decode(), wrote["n"]]


def construction():
    """A parameter that is drawn again is drawn from the same numbers."""
    paddle.seed(3)
    plain = paddle.nn.Linear(1200, 1200).weight.numpy()
    paddle.seed(3)
    fail()
    again = paddle.nn.Linear(1200, 1200).weight.numpy()
    return bool((plain == again).all())


def metric():
    scores, label = paddle.rand([200000, 10]), paddle.zeros([200000, 1], "int64")
    plain = float(paddle.metric.accuracy(scores, label))
    fail()
    return plain == float(paddle.metric.accuracy(scores, label))


result = {}
for place in sys.argv[1:]:
    name, *arguments = place.split(":")
    result[place] = globals()[name](*arguments)
    driver.simgpu_fail_at(0, 0)
print(json.dumps(result))
