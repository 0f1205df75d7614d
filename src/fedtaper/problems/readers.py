"""Processes that read ahead: the next mini-batches while the model trains on this one.

Every process that trains has its own readers. A reader is forked, answers in the order in which
it is asked, and ends when the process that asks it has ended, for whatever reason. Large tensors
are handed over in memory that both see, small ones and everything else through a pipe.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from typing import Any, NamedTuple

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.memory import keep_memory
from fedtaper.problems.network import Minibatches
from fedtaper.problems.samples import Samples, converted

AHEAD = 2  # mini-batches on their way per reader
SLOTS = AHEAD + 2  # of a desk: a batch is fetched before its slot's turn comes again
SLOT = 2**26  # bytes of address space for one batch; pages never written to cost nothing
LARGE = 2**14  # bytes from which a tensor goes by the desk
LOOKED_AT = 8  # mini-batches that the training process reads before it starts readers
WORTH = 0.35  # of the time to train on a mini-batch: reading that is quicker is not handed over


@dataclass
class Pace:
    """Whether reading is slow enough for readers: the first mini-batches tell.

    To hand a mini-batch over costs as much as to read an easy one, and where every core trains, a
    reader takes its time from a process that trains: in ``benchmarks/lazy_data.py`` a third of the
    time to train.
    """

    reading: list[float] = field(default_factory=list)  # seconds
    training: list[float] = field(default_factory=list)  # between the end of one and the next
    ended: float | None = None

    @property
    def known(self) -> bool:
        """Whether enough was looked at."""
        return len(self.training) >= LOOKED_AT

    @property
    def slow(self) -> bool:
        """Whether readers are worth their cost."""
        return self.known and _middle(self.reading) >= WORTH * _middle(self.training)

    def timed(self, read: Callable[[], Any]) -> Any:
        """What ``read`` returns, looked at."""
        if self.known:
            return read()
        began = time.perf_counter()
        if self.ended is not None:
            self.training.append(began - self.ended)
        found = read()
        self.ended = time.perf_counter()
        self.reading.append(self.ended - began)
        return found


def _middle(seconds: list[float]) -> float:
    return float(np.median(seconds)) if seconds else 0.0


class Placed(NamedTuple):
    """Where on the desk a tensor lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Desk:
    """Memory that a reader writes batches to and that the process that asks reads them from."""

    room: mmap.mmap | None  # without it, everything goes through the pipe
    free: int = 0
    end: int = 0

    @classmethod
    def laid(cls) -> Desk:
        """A desk for a reader that is about to be forked."""
        try:
            return cls(mmap.mmap(-1, SLOTS * SLOT))
        except (OSError, ValueError):  # no address space is left for it
            return cls(None)

    def clear(self, turn: int) -> None:
        """Begin with the slot of this turn."""
        self.free = turn % SLOTS * SLOT
        self.end = self.free + SLOT

    def put(self, tensor: Any) -> Any:
        """The place of a large tensor on the desk, a small one as an array."""
        array = np.ascontiguousarray(_numpy(tensor))
        if self.room is None or not LARGE <= array.nbytes <= self.end - self.free:
            return array
        place = Placed(self.free, array.shape, array.dtype.str)
        self._view(place)[...] = array
        self.free += -(-array.nbytes // 64) * 64
        return place

    def taken(self, place: Placed) -> Any:
        """A copy of what lies there: its slot is used again."""
        return self._view(place).copy()

    def _view(self, place: Placed) -> Any:
        assert self.room is not None
        count = int(np.prod(place.shape))
        return np.frombuffer(self.room, place.dtype, count, place.offset).reshape(place.shape)


class Readers:
    """A few forked processes, kept from round to round."""

    def __init__(self, samples: Sequence[Samples], count: int) -> None:
        self.owner = os.getpid()
        self.pipes: list[Any] = []
        self.desks: list[Desk] = []
        self.pids: list[int] = []
        self.asked = 0
        for _ in range(count):
            (here, there), desk = Pipe(), Desk.laid()
            pid = os.fork()
            if pid == 0:
                _child(samples, there, desk, [*self.pipes, here])
            there.close()
            self.pipes.append(here)
            self.desks.append(desk)
            self.pids.append(pid)

    def read(self, client: int, batches: Minibatches) -> ReadAhead:
        """The batches, each read before it is asked for."""
        return ReadAhead(self, client, batches)

    def ask(self, client: int, batch: Minibatches) -> int:
        """Start reading one batch; returns the number under which it can be fetched."""
        self.asked += 1
        turn = self.asked // len(self.pipes)
        self._pipe(self.asked).send((self.asked, turn, client, batch.index, batch.key))
        return self.asked

    def fetch(self, number: int) -> Any:
        """The batch of that number; older ones that nobody fetched are dropped."""
        pipe = self._pipe(number)
        while True:
            try:
                found, what = pipe.recv()
            except (EOFError, OSError):
                raise FedtaperError(
                    "a process that reads data died (out of memory?): resume the run, or use "
                    "workers=0"
                ) from None
            if found == number:
                if isinstance(what, BaseException):
                    raise what
                return _mapped(what, self.desks[number % len(self.desks)])

    def _pipe(self, number: int) -> Any:
        return self.pipes[number % len(self.pipes)]

    def close(self) -> None:
        """Let the readers end: they notice that nobody asks any more."""
        if os.getpid() != self.owner:
            return
        for pipe in self.pipes:
            pipe.close()
        for pid in self.pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.pipes, self.desks, self.pids = [], [], []

    def __del__(self, quietly: Any = suppress) -> None:
        with quietly(Exception):  # at the interpreter's end much is gone already
            self.close()


class ReadAhead:
    """One client's mini-batches in one round, read ahead while earlier ones are used."""

    def __init__(self, readers: Readers, client: int, batches: Minibatches) -> None:
        self.readers, self.client, self.batches = readers, client, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> Minibatches:
        return self.batches[step]

    def __iter__(self) -> Iterator[Minibatches]:
        waiting: deque[tuple[Minibatches, int]] = deque()
        most = AHEAD * len(self.readers.pipes)
        for row in self.batches:
            waiting.append((row, self.readers.ask(self.client, row)))
            if len(waiting) > most:
                yield self._arrived(*waiting.popleft())
        while waiting:
            yield self._arrived(*waiting.popleft())

    def _arrived(self, row: Minibatches, number: int) -> Minibatches:
        return replace(row, loaded=self.readers.fetch(number))


def _mapped(found: Any, desk: Desk) -> Any:
    """What a reader sent, with tensors in the place of arrays and of places on its desk."""
    import torch

    if isinstance(found, Placed):
        return torch.from_numpy(desk.taken(found))
    if isinstance(found, np.ndarray):
        return torch.from_numpy(found)
    if isinstance(found, dict):
        return {k: _mapped(v, desk) for k, v in found.items()}
    if isinstance(found, (tuple, list)):
        return type(found)([_mapped(v, desk) for v in found])
    return found


def _child(samples: Sequence[Samples], pipe: Any, desk: Desk, held: list[Any]) -> None:
    """A reading process, from its fork to its end; it never returns."""
    import signal

    import torch

    status = 1
    try:
        for other in held:  # it keeps no end of the asking process's: it sees its death
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever trains
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        keep_memory()
        torch.set_num_threads(1)
        with suppress(EOFError, OSError):
            while True:
                pipe.send(_answer(samples, desk, *pipe.recv()))
        status = 0
    finally:
        os._exit(status)


def _answer(
    samples: Sequence[Samples],
    desk: Desk,
    number: int,
    turn: int,
    client: int,
    index: Any,
    key: int,
) -> tuple[int, Any]:
    desk.clear(turn)
    try:
        return number, converted(samples[client].take(index, key), desk.put)
    except FedtaperError as trouble:
        return number, trouble
    except Exception as trouble:  # the user's own code may raise anything
        text = f"client {client}: its data cannot be read ({type(trouble).__name__}: {trouble})"
        return number, FedtaperError(text)


def _numpy(tensor: Any) -> Any:
    half = tensor.is_floating_point() and tensor.dtype.itemsize == 2  # NumPy has no bfloat16
    return tensor.float().numpy() if half else tensor.numpy()
