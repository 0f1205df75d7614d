"""What engines share that add late updates: the arrivals of every seed, and old models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        """Known before anything is trained; makes room for old models in the state."""
        made = tuple(e.arrivals(int(seed)) for seed in state.seeds)
        depth = max(one.depth for one in made)
        if state.history is None:
            state.history = np.repeat(state.w[:, None], depth, axis=1)
        return cls(e, made, depth)

    def table(self, seeds: slice, first: int, last: int) -> Arrivals:
        """The arrivals of some seeds and rounds, with a leading axis of seeds."""
        parts = [one[first:last] for one in self.arrivals[seeds]]
        return Arrivals(
            *(np.stack([getattr(one, name) for one in parts]) for name in Arrivals.NAMES)
        )

    def step_sizes(self, rows: NDArray[np.int64]) -> tuple[int, Array]:
        """The first of these rounds, and the step sizes from there to the last of them."""
        if not rows.size:
            return 0, self.e.step_sizes(0, 0)
        low = int(rows.min())
        return low, self.e.step_sizes(low, int(rows.max()) + 1)

    def notes(self, first: int, last: int) -> dict[str, Array]:
        """Simulated time and mean staleness of each round, (seeds, rounds)."""
        if self.e.asynchronous is None:
            return {}
        parts = [one[first:last] for one in self.arrivals]
        return {
            "time": np.stack([one.time for one in parts]),
            "staleness": np.stack([one.behind.mean(axis=1) for one in parts]),
        }
