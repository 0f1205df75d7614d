"""One client's training on a network: what the CPU engine and the sites of Flower share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fedtaper.core.errors import own_code
from fedtaper.core.protocols import Memory, as_network
from fedtaper.core.rules import Memoryless, restarted
from fedtaper.experiment import Experiment
from fedtaper.problems.network import bind, buffers_kept
from fedtaper.problems.randomness import seed_step
from fedtaper.problems.samples import converted


class Client:
    """One network on one thread: trains any client's model from the shared one."""

    def __init__(self, experiment: Experiment, device: str = "cpu") -> None:
        self.e, self.device = experiment, device
        self.problem = as_network(experiment.problem)
        self.module = self.problem.module().to(device)
        self.w = torch.zeros(experiment.problem.dim, device=device)
        self.gradient = torch.zeros_like(self.w)
        bind(self.module, self.w, self.gradient)
        self.tried = False  # whether an update has shown that the model keeps its buffers

    def train(
        self, client: int, seed: int, round_: int, anchor: Any, a: Any,
        kept: Memory = (), sent: Memory = (),
    ) -> tuple[float, ...]:  # fmt: skip
        """Local updates from ``anchor``; the model is left in ``self.w``.

        ``kept`` is the client's memory of earlier rounds, which is changed in place; ``sent``
        is what came with the model.
        """
        with own_code("loss", self.e.name(client), round_ + 1):
            return self._trained(client, seed, round_, anchor, a, kept, sent)

    def _trained(
        self, client: int, seed: int, round_: int, anchor: Any, a: Any, kept: Memory, sent: Memory
    ) -> tuple[float, ...]:
        problem, local = self.problem, self.e.local
        self.w.copy_(anchor)
        losses, right = [], []
        memory = restarted(local, anchor, kept, sent)
        for step, batch in zip(a, problem.batches(self.e, seed, client, round_), strict=False):
            taken = self._taken(client, batch)
            seed_step(batch)
            if self.device != "cpu":  # dropout draws on the device
                torch.cuda.manual_seed(batch.key)
            with nullcontext() if self.tried else buffers_kept(self.module):
                loss, share = problem.batch_loss(self.module, *taken)
            self.tried = True
            self.gradient.zero_()
            loss.backward()
            with torch.no_grad():
                memory = self._moved(anchor, float(step), memory)
            losses.append(loss.detach())
            right.append(share)
        for room, value in zip(kept, local.finish(self.w, anchor, float(a.sum()), memory)):  # noqa: B905 (no room where nothing is kept)
            room.copy_(value)
        mean = float(torch.stack(losses).mean())
        share = math.nan if right[0] is None else float(torch.stack(right).mean())
        return mean, share, float((self.w - anchor).norm())

    def _moved(self, anchor: Any, a: float, memory: Memory) -> Memory:
        """One local update of ``self.w``, in place."""
        local = self.e.local
        if isinstance(local, Memoryless):
            self.w.sub_(local.direction(self.gradient, self.w, anchor), alpha=a)
            return memory
        new, memory = local.step(self.w, self.gradient, anchor, a, memory)
        self.w.copy_(new)
        return memory

    def _taken(self, client: int, batch: Any) -> Any:
        taken = self.problem.take(client, batch)
        return taken if self.device == "cpu" else converted(taken, lambda t: t.to(self.device))


@dataclass(frozen=True)
class Lane:
    """One client's round in the run of one seed; ``row`` is that seed's place in the State."""

    row: int
    seed: int
    client: int
    round: int


class Trainer(Protocol):
    """A way to train up to ``width`` lanes at once."""

    width: int
    device: str

    def train(
        self, lanes: Sequence[Lane], anchors: Any, a: Any, kept: Memory, sent: Any
    ) -> tuple[Any, Any]:
        """Each lane's mean loss, accuracy and update norm, and its model.

        ``anchors`` and ``sent`` are looked up by the seed's row, ``a`` (updates, L) by client.
        ``kept`` holds every client's memory, (seeds, L, ...), which is changed in place.
        """
        ...


class Apart:
    """One lane after another, each with the network to itself."""

    width = 1

    def __init__(self, own: Client) -> None:
        self.own, self.device = own, own.device

    def train(
        self, lanes: Sequence[Lane], anchors: Any, a: Any, kept: Memory, sent: Any
    ) -> tuple[Any, Any]:
        """A single lane; its model is overwritten by the next."""
        (lane,) = lanes
        i, row = lane.client, lane.row
        memory = tuple(room[row, i] for room in kept)
        place = (i, lane.seed, lane.round)
        found = self.own.train(*place, anchors[row], a[:, i], memory, tuple(sent[row]))
        return [found], [self.own.w]
