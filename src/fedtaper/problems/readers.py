"""Processes that read ahead: the next mini-batches while the model trains on this one.

Every process that trains has readers of its own. A reader is forked, answers in the order in
which it is asked, and ends when whoever asks it is gone, however that ended.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.problems.network import Minibatches
from fedtaper.problems.samples import Samples, converted

AHEAD = 2  # mini-batches on their way per reader


class Readers:
    """A few forked processes, kept from round to round."""

    def __init__(self, samples: Sequence[Samples], count: int) -> None:
        self.owner = os.getpid()
        self.pipes: list[Any] = []
        self.pids: list[int] = []
        self.asked = 0
        for _ in range(count):
            here, there = Pipe()
            pid = os.fork()
            if pid == 0:
                _child(samples, there, [*self.pipes, here])
            there.close()
            self.pipes.append(here)
            self.pids.append(pid)

    def read(self, client: int, batches: Minibatches) -> ReadAhead:
        """The batches, each read before it is asked for."""
        return ReadAhead(self, client, batches)

    def ask(self, client: int, batch: Minibatches) -> int:
        """Begin to read one batch; the number under which it can be fetched."""
        self.asked += 1
        self._pipe(self.asked).send((self.asked, client, batch.index, batch.key))
        return self.asked

    def fetch(self, number: int) -> Any:
        """The batch of that number; older ones that nobody fetched are dropped."""
        pipe = self._pipe(number)
        while True:
            try:
                found, what = pipe.recv()
            except (EOFError, OSError):
                raise FedtaperError(
                    "a process that reads data died (out of memory?): resume, or use workers=0"
                ) from None
            if found == number:
                if isinstance(what, BaseException):
                    raise what
                return what

    def _pipe(self, number: int) -> Any:
        return self.pipes[number % len(self.pipes)]

    def close(self) -> None:
        """Let the readers end: they see that nobody asks any more."""
        if os.getpid() != self.owner:
            return
        for pipe in self.pipes:
            pipe.close()
        for pid in self.pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.pipes, self.pids = [], []

    def __del__(self) -> None:
        with suppress(Exception):  # at the interpreter's end much is gone already
            self.close()


class ReadAhead:
    """One client's mini-batches in one round, read ahead while they are gone through."""

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
        return replace(row, loaded=_mapped(self.readers.fetch(number)))


def _mapped(found: Any) -> Any:
    """NumPy arrays, as they came through the pipe, as tensors again."""
    import torch

    if isinstance(found, np.ndarray):
        return torch.from_numpy(found)
    if isinstance(found, dict):
        return {k: _mapped(v) for k, v in found.items()}
    if isinstance(found, (tuple, list)):
        return type(found)([_mapped(v) for v in found])
    return found


def _child(samples: Sequence[Samples], pipe: Any, held: list[Any]) -> None:
    """A reading process, from its fork to its end; it never returns."""
    import signal

    import torch

    status = 1
    try:
        for other in held:  # it keeps no end of the asking process's: it sees its death
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever trains
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        with suppress(EOFError, OSError):
            while True:
                pipe.send(_answer(samples, *pipe.recv()))
        status = 0
    finally:
        os._exit(status)


def _answer(
    samples: Sequence[Samples], number: int, client: int, index: Any, key: int
) -> tuple[int, Any]:
    try:
        return number, converted(samples[client].take(index, key), _numpy)
    except FedtaperError as trouble:
        return number, trouble
    except Exception as trouble:  # the user's own code may raise anything
        text = f"client {client}: its data cannot be read ({type(trouble).__name__}: {trouble})"
        return number, FedtaperError(text)


def _numpy(tensor: Any) -> Any:
    half = tensor.is_floating_point() and tensor.dtype.itemsize == 2  # NumPy has no bfloat16
    return tensor.float().numpy() if half else tensor.numpy()
