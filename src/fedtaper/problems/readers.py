"""Processes that read ahead: the next mini-batches while the model trains on this one."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from fedtaper.problems.network import Minibatches
from fedtaper.problems.samples import Samples, converted

AHEAD = 2  # mini-batches on their way per process
_HELD: dict[str, Sequence[Samples]] = {}  # in a reading process: every client's samples


class Readers:
    """A few forked processes, kept from round to round."""

    def __init__(self, samples: Sequence[Samples], count: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.count = count
        self.pool = ProcessPoolExecutor(count, fork, initializer=_begin, initargs=(samples,))

    def read(self, client: int, batches: Minibatches) -> ReadAhead:
        """The batches, each read before it is asked for."""
        return ReadAhead(self, client, batches)

    def ask(self, client: int, batch: Minibatches) -> Future[Any]:
        """Begin to read one batch."""
        return self.pool.submit(_read, client, batch.index, batch.key)


class ReadAhead:
    """One client's mini-batches in one round, read ahead while they are gone through."""

    def __init__(self, readers: Readers, client: int, batches: Minibatches) -> None:
        self.readers, self.client, self.batches = readers, client, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> Minibatches:
        return self.batches[step]

    def __iter__(self) -> Iterator[Minibatches]:
        import torch

        rows = iter(self.batches)
        waiting: deque[tuple[Minibatches, Future[Any]]] = deque()
        for row in rows:
            waiting.append((row, self.readers.ask(self.client, row)))
            if len(waiting) > AHEAD * self.readers.count:
                yield _arrived(*waiting.popleft(), torch)
        while waiting:
            yield _arrived(*waiting.popleft(), torch)


def _arrived(row: Minibatches, future: Future[Any], torch: Any) -> Minibatches:
    found = future.result()
    return replace(row, loaded=_mapped(found, torch))


def _mapped(found: Any, torch: Any) -> Any:
    """NumPy arrays, as they came through the pipe, as tensors again."""
    import numpy as np

    if isinstance(found, np.ndarray):
        return torch.from_numpy(found)
    if isinstance(found, dict):
        return {k: _mapped(v, torch) for k, v in found.items()}
    if isinstance(found, (tuple, list)):
        return type(found)([_mapped(v, torch) for v in found])
    return found


def _begin(samples: Sequence[Samples]) -> None:
    import torch

    torch.set_num_threads(1)
    _HELD["samples"] = samples


def _read(client: int, index: Any, key: int) -> Any:
    return converted(_HELD["samples"][client].take(index, key), _numpy)


def _numpy(tensor: Any) -> Any:
    half = tensor.is_floating_point() and tensor.dtype.itemsize == 2  # NumPy has no bfloat16
    return tensor.float().numpy() if half else tensor.numpy()
