"""Forked processes that share out the clients of a round."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Memory
from fedtaper.engines.network_client import Client
from fedtaper.experiment import Experiment


def cores() -> int:
    """How many processes a run may use: all cores, unless runs share them."""
    return int(os.environ.get("FEDTAPER_WORKERS", "0")) or os.cpu_count() or 1


def can_fork() -> bool:
    """Whether this machine can fork."""
    return "fork" in multiprocessing.get_all_start_methods()


class Workers:
    """Forked processes that take the next client off a shared list until none is left."""

    def __init__(self, experiment: Experiment, count: int, slots: int, kept: Memory) -> None:
        fork = multiprocessing.get_context("fork")
        self.kept = kept
        travels = experiment.server.travels
        self.sent = torch.zeros(travels, experiment.problem.dim).share_memory_()
        self.anchor = torch.zeros(experiment.problem.dim).share_memory_()
        self.models = torch.zeros(slots, experiment.problem.dim).share_memory_()
        self.values = torch.zeros(slots, 3, dtype=torch.float64).share_memory_()
        self.next = fork.Value("l", 0)
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for _ in range(count):
            here, there = fork.Pipe()
            held = [*self.pipes, here]  # a child keeps no end of the parent's: it sees its death
            process = fork.Process(target=self._serve, args=(experiment, there, held), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def _serve(self, experiment: Experiment, pipe: Any, held: list[Any]) -> None:
        for other in held:
            other.close()
        torch.set_num_threads(1)
        own = Client(experiment)
        with suppress(EOFError, KeyboardInterrupt, OSError):
            while (job := pipe.recv()) is not None:
                try:
                    self._work(own, *job)
                    pipe.send(None)
                except Exception as trouble:
                    known = isinstance(trouble, FedtaperError)
                    pipe.send(trouble if known else f"{type(trouble).__name__}: {trouble}")

    def _work(self, own: Client, members: Any, place_: tuple[int, int, int], a: Any) -> None:
        s, seed, round_ = place_
        while True:
            with self.next.get_lock():
                place = self.next.value
                self.next.value += 1
            if place >= len(members):
                return
            i = int(members[place])
            kept = tuple(room[s, i] for room in self.kept)
            values = own.train(i, seed, round_, self.anchor, a[:, i], kept, tuple(self.sent))
            self.models[place] = own.w
            self.values[place] = torch.tensor(values, dtype=torch.float64)

    def train(
        self, own: Client, members: Any, place_: tuple[int, int, int], anchor: Any, a: Any,
        sent: Memory,
    ) -> Iterator[tuple[int, tuple[float, ...], Any]]:  # fmt: skip
        """Each member's values and model, in the order of the members."""
        self.anchor.copy_(anchor)
        for room, vector in zip(self.sent, sent, strict=True):
            room.copy_(vector)
        self.next.value = 0
        for pipe in self.pipes:
            pipe.send((members, place_, a))
        self._work(own, members, place_, a)
        for pipe in self.pipes:
            try:
                trouble = pipe.recv()
            except EOFError:
                raise FedtaperError(
                    "a worker process died (out of memory?): resume, or use workers=1"
                ) from None
            if isinstance(trouble, FedtaperError):
                raise trouble
            if trouble is not None:
                raise FedtaperError(f"a worker failed: {trouble}")
        for place, i in enumerate(members.tolist()):
            yield i, tuple(self.values[place].tolist()), self.models[place]

    def close(self) -> None:
        """Send the processes home."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
