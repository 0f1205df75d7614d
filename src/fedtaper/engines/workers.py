"""Forked processes that share the clients of a round."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from fedtaper.core.errors import FedtaperError
from fedtaper.core.memory import keep_memory
from fedtaper.core.protocols import Memory
from fedtaper.engines.network_client import Lane, Trainer
from fedtaper.experiment import Experiment

PATIENCE = 30.0  # seconds for a forked process to make one backward pass


def cores() -> int:
    """How many processes a run may use: all cores, unless several runs share them."""
    return int(os.environ.get("FEDTAPER_WORKERS", "0")) or os.cpu_count() or 1


def can_fork() -> bool:
    """Whether a forked process can train: not after this one has used a GPU.

    Where there is a GPU, PyTorch cannot even compute gradients on the CPU in a process that is
    forked after a first backward pass. Only trying tells.
    """
    if "fork" not in multiprocessing.get_all_start_methods() or torch.cuda.is_initialized():
        return False
    tried = multiprocessing.get_context("fork").Process(target=_tried, daemon=True)
    tried.start()
    tried.join(PATIENCE)
    if tried.exitcode is None:
        tried.kill()
    return tried.exitcode == 0


def _tried() -> None:
    """Make a backward pass and end: 0 if that is possible."""
    code = 1
    with suppress(BaseException):
        _backward()
        code = 0
    os._exit(code)


def _backward() -> None:
    torch.ones(1, requires_grad=True).sum().backward()


class Workers:
    """Forked processes that take the next lanes off a shared list until none is left."""

    def __init__(
        self, experiment: Experiment, trainer: Trainer, count: int, slots: int, seeds: int,
        kept: Memory,
    ) -> None:  # fmt: skip
        fork = multiprocessing.get_context("fork")
        self.kept = kept
        travels, dim = experiment.server.travels, experiment.problem.dim
        self.sent = torch.zeros(seeds, travels, dim).share_memory_()
        self.anchors = torch.zeros(seeds, dim).share_memory_()
        self.models = torch.zeros(slots, dim).share_memory_()
        self.values = torch.zeros(slots, 3, dtype=torch.float64).share_memory_()
        self.next = fork.Value("l", 0)
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for _ in range(count):
            here, there = fork.Pipe()
            held = [*self.pipes, here]  # a child keeps no end of the parent's: it sees its death
            process = fork.Process(target=self._serve, args=(trainer, there, held), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def _serve(self, trainer: Trainer, pipe: Any, held: list[Any]) -> None:
        for other in held:
            other.close()
        keep_memory()
        torch.set_num_threads(1)
        with suppress(EOFError, KeyboardInterrupt, OSError):
            while (job := pipe.recv()) is not None:
                try:
                    self._work(trainer, *job)
                    pipe.send(None)
                except Exception as trouble:
                    known = isinstance(trouble, FedtaperError)
                    pipe.send(trouble if known else f"{type(trouble).__name__}: {trouble}")

    def _work(self, trainer: Trainer, lanes: Sequence[Lane], a: Any) -> None:
        while True:
            with self.next.get_lock():
                low = self.next.value
                self.next.value += trainer.width
            part = lanes[low : low + trainer.width]
            if not part:
                return
            values, models = trainer.train(part, self.anchors, a, self.kept, self.sent)
            for place, found, model in zip(range(low, len(lanes)), values, models, strict=False):
                self.models[place] = model
                self.values[place] = torch.as_tensor(found, dtype=torch.float64)

    def train(
        self, trainer: Trainer, lanes: Sequence[Lane], anchors: Any, a: Any, sent: Any
    ) -> Iterator[tuple[Lane, tuple[float, ...], Any]]:
        """Each lane's values and model, in the order of the lanes."""
        for row in {lane.row for lane in lanes}:
            self.anchors[row] = anchors[row]
            for room, vector in zip(self.sent[row], sent[row], strict=True):
                room.copy_(vector)
        self.next.value = 0
        for pipe in self.pipes:
            pipe.send((lanes, a))
        self._work(trainer, lanes, a)
        for pipe in self.pipes:
            try:
                trouble = pipe.recv()
            except EOFError:
                raise FedtaperError(
                    "a worker process died (out of memory?): resume the run, or use workers=1"
                ) from None
            if isinstance(trouble, FedtaperError):
                raise trouble
            if trouble is not None:
                raise FedtaperError(f"a worker failed: {trouble}")
        for place, lane in enumerate(lanes):
            yield lane, tuple(self.values[place].tolist()), self.models[place]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
