"""Rounds of networks whose updates are late, asynchronous or on their own clocks.

The models of the last rounds are kept in the State: 8 bytes per parameter, seed and model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedtaper.core.protocols import Array, Block, State
from fedtaper.core.sketch import sketch
from fedtaper.engines.cpu import CpuSession, note
from fedtaper.engines.history import Timeline
from fedtaper.experiment import Experiment
from fedtaper.rules.arrivals import Arrivals
from fedtaper.rules.behaviours import actual_step_sizes, tables


class LateSession(CpuSession):
    """Each update is made from the model that its client was sent."""

    def __init__(
        self, experiment: Experiment, state: State, workers: int | None = None,
        device: str = "cpu", way: str | None = "per-client", dtype: torch.dtype = torch.float32,
        exact: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(experiment, state, workers, device, way, dtype, exact)
        self.timeline = Timeline.of(experiment, state)

    def steer(self, experiment: Experiment) -> None:
        """Use other step sizes from here on."""
        super().steer(experiment)
        self.timeline = replace(self.timeline, e=experiment)

    def _round(self, block: Block, s: int, k: int, a: Any) -> None:
        began = time.perf_counter()
        e, round_ = self.e, self.state.round
        weights = e.server_weights(e.step_sums(round_, round_ + 1))[0]
        slots = self.timeline.arrivals[s][round_ : round_ + 1]
        before, update = self.w[s], torch.zeros_like(self.w[s])
        found = np.full((e.num_clients, 3), np.nan)
        moves: dict[int, Any] = {}
        for i, factor, values, move in self._moves(slots, s):
            found[i] = values
            if not math.isfinite(values[2]):
                self.state.dead_round[s], self.state.dead_client[s] = round_ + 1, i
                return
            update += float(weights[i]) * factor * move
            moves[i] = moves[i] + move if i in moves else move
        if self.state.last is not None:
            for i, move in moves.items():
                self.state.last[s, i] = move.cpu().numpy()
        self.w[s], memory = e.server.step(before, update, self.memory[s])
        facts = self.timeline.taken_part(s, round_)
        self.memory[s] = e.server.learn(update, *facts, memory)
        assert self.state.history is not None
        self.state.history[s, (round_ + 1) % self.timeline.depth] = self.w[s].cpu().numpy()
        block.update_norms[s, k] = 0.0
        for i, move in moves.items():
            block.update_norms[s, k, i] = float(move.norm())
        if block.updates is not None:
            block.updates[s, k] = 0.0
            for i, move in moves.items():
                block.updates[s, k, i] = sketch(move.cpu().numpy().astype(np.float64))
        self._measure(block, s, k, found, float((self.w[s] - before).norm()))
        self.round_seconds = time.perf_counter() - began
        notes = {n: float(v[s, 0]) for n, v in self.timeline.notes(round_, round_ + 1).items()}
        note(block, s, k, notes | {"seconds": self.round_seconds})

    def _side_by_side(self, alive: list[int], a: Any) -> None:
        """Train each seed by itself: its clients start from different models."""

    def _moves(self, slots: Arrivals, s: int) -> Iterator[tuple[int, float, Array, Any]]:
        """Client, staleness weight, measures and update of every slot.

        Clients that start from one model with one clock are trained side by side.
        """
        assert self.state.history is not None
        together: dict[tuple[int, int, int], list[int]] = {}
        for slot in np.flatnonzero(slots.client[0] >= 0).tolist():
            place = (int(slots.base[0, slot]), int(slots.draw[0, slot]), int(slots.row[0, slot]))
            together.setdefault(place, []).append(slot)
        for (base, draw, row), members in together.items():
            kept = self.state.history[s, base % self.timeline.depth]
            anchor = torch.from_numpy(kept).to(self.own.device, self.dtype)
            a = actual_step_sizes(self.e, row, row + 1)[0]
            self.kinds = tables(self.e, row, row + 1)
            factor = {int(slots.client[0, m]): float(slots.factor[0, m]) for m in members}
            clients = np.array(list(factor), dtype=np.int64)
            for low in range(0, len(clients), self.group):
                part = clients[low : low + self.group]
                for i, values, model in self._trained(part, s, draw, anchor, a):
                    move = self._sent(model - anchor, i, 0, s, draw)
                    yield i, factor[i], np.asarray(values), move
