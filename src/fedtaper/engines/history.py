"""What engines with late updates share: the arrivals of every seed, and old models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_memory
from fedtaper.core.protocols import Array, State
from fedtaper.experiment import Experiment
from fedtaper.rules.arrivals import Arrivals


@dataclass(frozen=True)
class Timeline:
    """Every seed's arrivals in all rounds, and how many models back they reach."""

    e: Experiment
    arrivals: tuple[Arrivals, ...]
    depth: int

    @classmethod
    def of(cls, e: Experiment, state: State) -> Timeline:
        """Simulate the arrivals before anything is trained; make room for old models."""
        made = tuple(e.arrivals(int(seed)) for seed in state.seeds)
        depth = 1 + max(one.reach for one in made)
        check_memory("keeping the models that late updates start from", depth * state.w.size)
        if state.history is None:
            state.history = np.repeat(state.w[:, None], depth, axis=1)
        elif state.history.shape[1] != depth:
            state.history = _moved(state.history, state.round, depth)
        return cls(e, made, depth)

    def table(self, seeds: slice, first: int, last: int) -> Arrivals:
        """The arrivals of some seeds and rounds, with a leading axis of seeds."""
        parts = [one[first:last] for one in self.arrivals[seeds]]
        if len(parts) == 1:  # a view does
            columns = {name: vars(parts[0])[name][None] for name in Arrivals.NAMES}
        else:
            columns = {n: np.stack([vars(one)[n] for one in parts]) for n in Arrivals.NAMES}
        return Arrivals(**columns, reach=self.depth - 1)

    def step_sizes(self, rows: NDArray[np.int64]) -> tuple[int, Array]:
        """The first of these rounds, and the step sizes from there to the last of them."""
        if not rows.size:
            return 0, self.e.step_sizes(0, 0)
        low = int(rows.min())
        return low, self.e.step_sizes(low, int(rows.max()) + 1)

    def taken_part(self, s: int, round_: int) -> tuple[float, float]:
        """What ``ServerRule.learn`` receives after a round of the seed in row s.

        As ``engines.taken_part`` of a round in step, but an update's step sum is that of the
        round whose step sizes it was made with, and its staleness weight counts.
        """
        slots, e = self.arrivals[s][round_ : round_ + 1], self.e
        there = slots.client[0] >= 0
        client, row, factor = (x[0, there] for x in (slots.client, slots.row, slots.factor))
        made = {k: e.step_sums(k, k + 1)[0] for k in set(row.tolist())}
        sums = e.step_sums(round_, round_ + 1)
        weights = e.server_weights(sums)[0]
        own = np.array([made[k][i] for k, i in zip(row.tolist(), client.tolist(), strict=True)])
        usual = weights * sums[0]
        share = float(usual[np.unique(client)].sum() / usual.sum())
        return float((weights[client] * factor * own).sum()), share

    def notes(self, first: int, last: int) -> dict[str, Array]:
        """Simulated time and mean staleness of each round, (seeds, rounds)."""
        if self.e.asynchronous is None:
            return {}
        parts = [one[first:last] for one in self.arrivals]
        return {
            "time": np.stack([one.time for one in parts]),
            "staleness": np.stack([one.behind.mean(axis=1) for one in parts]),
        }


def _moved(history: Array, round_: int, depth: int) -> Array:
    """The newest models in a ring of another depth, as when a run is extended by more rounds."""
    out = np.repeat(history[:, [round_ % history.shape[1]]], depth, axis=1)
    for version in range(max(0, round_ - min(depth, history.shape[1]) + 1), round_ + 1):
        out[:, version % depth] = history[:, version % history.shape[1]]
    return out
