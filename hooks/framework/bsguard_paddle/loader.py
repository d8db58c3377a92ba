"""paddle.io.DataLoader, where the batch that it copies to the device ahead of time does not fit.

Paddle's reader runs in C++, fetches a few batches ahead, and is dead after the first that did not fit. What has been read
and not delivered is therefore kept here, on the host, in order; after an OOM the caches are given back, a new reader is
made and given what was kept, so that no sample is lost, read twice or out of turn. Workers, samplers and the thread that
feeds the reader notice nothing. A reader that copies nothing ahead (use_buffer_reader=False), or to several devices, is
Paddle's own.
"""

import collections
import ctypes
import os
import threading
import weakref

from . import again, native
from .oom import Failure, is_oom
from .runtime import runtime

_BUFFERED = 6  # position of use_buffer_reader among the arguments of create_py_reader
_PLACES = 5

_readers = weakref.WeakSet()  # those that Paddle's iterators hold


def patch():
    """Stands between the loader's iterators and the queue and reader that they make."""
    core = runtime.paddle.base.core
    for name in ("init_dense_tensor_blocking_queue", "init_lod_tensor_blocking_queue"):
        original = getattr(core, name, None)
        if original is not None:
            setattr(core, name, _making_queues(original))
    core.create_py_reader = _making_readers(core.create_py_reader)
    os.register_at_fork(after_in_child=_outlive)


def _outlive():
    """In a worker no reader may end: it would wait for its threads, which stayed in the parent, for ever. Whatever cycle
    of references a reader was left in, a collection of garbage in a worker finds one more that it cannot see."""
    for reader in list(_readers):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(reader))


def _making_queues(original):
    def init_queue(variable, capacity, *args):
        return _Queue(lambda more=0, own=variable: original(own, capacity + more, *args))

    return init_queue


def _making_readers(original):
    def create_py_reader(queue, *args):
        if not isinstance(queue, _Queue):
            return original(queue, *args)
        rest = (queue,) + args
        if runtime.guarding and len(rest) > _BUFFERED and rest[_BUFFERED] and len(rest[_PLACES]) == 1:
            return _Reader(queue, lambda: original(queue.real, *args))
        return original(queue.real, *args)

    return create_py_reader


class _Queue:
    """A blocking queue of Paddle's that can be replaced, with what it and its reader hold.

    Everything that is not here is the real queue's.
    """

    def __init__(self, make):
        self._make = make
        self.real = make()
        self._lock = threading.Lock()
        self._ended = None  # what ended it: "close" or "kill"
        self.undelivered = None  # arrays, oldest first; None: nobody reads them ahead

    def push(self, array):
        """Waits for room; False where the queue was closed meanwhile."""
        with self._lock:
            real = self.real
            if self.undelivered is not None:
                self.undelivered.append(array)
        # Closed while it waited, to be replaced: the new one was given this array with the others.
        return real.push(array) or (real is not self.real and self._ended is None)

    def close(self):
        """No more will come."""
        self._end("close")

    def kill(self):
        """As close(), and who reads from it gets an error."""
        self._end("kill")

    def _end(self, how):
        with self._lock:
            self._ended = how
            getattr(self.real, how)()

    def replace(self):
        """A new real queue in place of the old, and into it what was not delivered. Who waits to push goes on."""
        with self._lock:
            old = self.real
            self.real = self._make(len(self.undelivered), runtime.paddle.base.core.Variable())
            for array in self.undelivered:
                self.real.push(array)
            if self._ended is not None:
                getattr(self.real, self._ended)()
            old.close()

    def __getattr__(self, name):
        return getattr(self.real, name)


class _Reader:
    """A reader of Paddle's that copies ahead, made anew where it died of an OOM."""

    def __init__(self, queue, make):
        queue.undelivered = collections.deque()
        self._queue = queue
        self._make = make
        self._real = make()
        _readers.add(self)

    def read_next_list(self):
        """The next batch of each place."""
        return self._read("read_next_list")

    def read_next(self):
        """The next batch, by name."""
        return self._read("read_next")

    def shutdown(self):
        """Stops reading."""
        if self._real is not None:
            self._real.shutdown()

    def _read(self, name):
        try:
            found = self._attempt(name)
        except Exception as error:
            if not is_oom(error):
                raise
            failure, found = Failure(error), None
        if found is None:
            found = again.again(failure, lambda: self._attempt(name), "the next batch of the DataLoader", native.DATA)
        if self._queue.undelivered:
            self._queue.undelivered.popleft()
        return found

    def _attempt(self, name):
        """Whoever catches the OOM and goes on gets the same batch again."""
        if self._real is None:
            self._real = self._make()
        try:
            return getattr(self._real, name)()
        except Exception as error:
            if is_oom(error):
                self._drop()
            raise

    def _drop(self):
        # The queue first: it ends with its reader, and who waits to push would take that for the end of the data.
        self._queue.replace()
        # It ends here, with what it still holds on the device, once the copies that it had begun are done. Never shut it
        # down before: it would forget them, and not wait for what writes to its streams and buffers.
        self._real = None

    def __getattr__(self, name):
        return getattr(self._real, name)
