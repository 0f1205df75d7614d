"""The mini-batches of many lanes, and which lanes make an update together.

A user's loss is a function of a whole batch, so a short batch cannot be padded: only lanes whose
batches have the same size make an update together. A lane never waits for another, so neighbours
may be at different updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves, tree_map

from fedtaper.core.protocols import NetworkProblem
from fedtaper.engines.network_client import Lane
from fedtaper.experiment import Experiment
from fedtaper.problems.network import Minibatches

ROUND_BYTES = 2**26  # mini-batches of a round that are gathered in one go


@dataclass(frozen=True)
class Turn:
    """Lanes that make an update together: ``rows`` says which of its updates each one makes."""

    members: NDArray[np.int64]
    rows: NDArray[np.int64]
    size: int  # samples in each of their mini-batches

    @property
    def row(self) -> int | None:
        """The number of the update, if it is the same for all."""
        first = int(self.rows[0])
        return first if np.all(self.rows == first) else None


def turns(sizes: Sequence[NDArray[np.int64]]) -> list[Turn]:
    """Every lane's updates in its order, together with all lanes that have the same batch size.

    >>> [(t.members.tolist(), t.size) for t in turns([np.array([4, 4, 2]), np.array([4, 2, 4])])]
    [([0, 1], 4), ([0], 4), ([0, 1], 2), ([1], 4)]
    """
    return _turns(tuple(tuple(part.tolist()) for part in sizes))


@lru_cache(maxsize=64)  # most rounds are alike
def _turns(sizes: tuple[tuple[int, ...], ...]) -> list[Turn]:
    place = [0] * len(sizes)
    found: list[Turn] = []
    while True:
        waiting: dict[int, list[int]] = {}
        for lane, own in enumerate(sizes):
            if place[lane] < len(own):
                waiting.setdefault(own[place[lane]], []).append(lane)
        if not waiting:
            return found
        size = max(waiting, key=lambda s: (len(waiting[s]), s))
        members = np.array(waiting[size])
        found.append(Turn(members, np.array([place[lane] for lane in members]), size))
        for lane in waiting[size]:
            place[lane] += 1


def each(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with every tensor changed; fast for a plain tuple of tensors."""
    if all(isinstance(part, torch.Tensor) for part in batch):
        return tuple([change(part) for part in batch])
    return tree_map(change, batch)


class Resident:
    """All clients' samples stacked on the device: a mini-batch is a look-up there."""

    def __init__(self, problem: NetworkProblem, device: str, dtype: Any = None) -> None:
        count = problem.num_clients
        taken = [problem.take(i, problem.every_sample(i), dtype) for i in range(count)]
        there = [tree_map(lambda t: t.to(device), part) for part in taken]
        self.samples = tree_map(lambda *parts: torch.cat(parts), *there)
        self.first = np.cumsum([0, *problem.sizes[:-1].tolist()])


class RoundBatches:
    """The mini-batches of some lanes in one round, stacked as they are asked for."""

    def __init__(
        self, e: Experiment, problem: NetworkProblem, lanes: Sequence[Lane], updates: int,
        sample_bytes: int, device: str = "cpu", dtype: Any = None, resident: Resident | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.lanes, self.device, self.dtype = problem, lanes, device, dtype
        self.found: list[Minibatches] = [
            problem.batches(e, lane.seed, lane.client, lane.round)  # type: ignore[misc]  # in memory
            for lane in lanes
        ]
        self.sizes = [batches.size[:updates] for batches in self.found]
        self.turns = turns(self.sizes)
        self.whole: Any = None
        self.index: torch.Tensor | None = None
        if resident is not None and self.found[0].flip is None:
            self.samples, self.index = resident.samples, self._places(resident)
            return
        samples = max(map(len, self.sizes)) * self.found[0].index.shape[1] * len(lanes)
        if samples * sample_bytes <= ROUND_BYTES:
            self.whole = self._gathered()

    def keys(self, turn: Turn) -> list[int]:
        """The seed of each member's update."""
        return [self.found[j][int(row)].key for j, row in zip(turn.members, turn.rows, strict=True)]

    def of(self, turn: Turn) -> Any:
        """The members' mini-batches: the loss's arguments, each with the lanes as first axis."""
        if self.index is not None:
            picked = self._part(self.index, turn)
            return each(lambda t: t[picked], self.samples)
        if self.whole is None:
            taken = [self._take(j, row) for j, row in zip(turn.members, turn.rows, strict=True)]
            return self._there(tree_map(lambda *parts: torch.stack(parts), *taken))
        return each(lambda t: self._part(t, turn), self.whole)

    def _part(self, whole: torch.Tensor, turn: Turn) -> torch.Tensor:
        """What the members need of a tensor (updates, lanes, batch, ...)."""
        row = turn.row
        if row is not None and np.array_equal(turn.members, np.arange(len(self.lanes))):
            return whole[row, :, : turn.size]
        rows, members = torch.from_numpy(turn.rows), torch.from_numpy(turn.members)
        return whole[rows, members, : turn.size]

    def _places(self, resident: Resident) -> torch.Tensor:
        """The place of every sample of the round among the resident ones."""
        rows, width = max(map(len, self.sizes)), self.found[0].index.shape[1]
        places = np.zeros((rows, len(self.lanes), width), dtype=np.int64)
        for j, (lane, batches) in enumerate(zip(self.lanes, self.found, strict=True)):
            own = batches.index[:rows]
            places[: len(own), j] = own + resident.first[lane.client]
        return torch.from_numpy(places).to(self.device)

    def _take(self, lane: int, row: int) -> Any:
        batch = self.found[lane][int(row)]
        return self.problem.take(self.lanes[lane].client, batch, self.dtype)

    def _there(self, batch: Any) -> Any:
        return batch if self.device == "cpu" else tree_map(lambda t: t.to(self.device), batch)

    def _gathered(self) -> Any:
        """All rows of all lanes, (updates, lanes, batch, ...): one look-up for each lane."""
        rows, width = max(map(len, self.sizes)), self.found[0].index.shape[1]
        taken = []
        for lane, batches in zip(self.lanes, self.found, strict=True):
            all_rows = self.problem.take(lane.client, _flat(batches, rows), self.dtype)
            taken.append(tree_map(lambda t: t.view(rows, width, *t.shape[1:]), all_rows))
        return self._there(tree_map(lambda *parts: torch.stack(parts, 1), *taken))


def _flat(batches: Minibatches, rows: int) -> Minibatches:
    """The first rows as one long row; missing ones are filled with sample 0."""

    def long(array: Any) -> Any:
        if array is None:
            return None
        out = np.zeros((rows, array.shape[1]), dtype=array.dtype)
        count = min(rows, len(array))
        out[:count] = array[:count]
        return out.reshape(-1)

    index = long(batches.index)
    return Minibatches(index, np.array([len(index)]), long(batches.flip), long(batches.angle))


def sample_bytes(problem: NetworkProblem, dtype: Any = None) -> int:
    """What one sample takes in memory."""
    one = Minibatches(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
    return sum(t.numel() * t.element_size() for t in tree_leaves(problem.take(0, one, dtype)))
