"""A round's answers as they come in: their weighted sum, and of each what is worth keeping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedtaper.audit.directions import sketch
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.guard import Answer
from fedtaper.experiment import Experiment


class Intake:
    """Adds up one round. An update is added and let go: models are large.

    ``norms`` is NaN where a site was asked and does not count, and so is its row of ``moves``,
    where updates are to be kept (networks: a sketch of them).
    """

    def __init__(self, e: Experiment, k: int, room: Any, asked: list[int], moves: Any) -> None:
        self.weights = e.server_weights(e.step_sums(k, k + 1))[0]
        self.network = hasattr(e.problem, "batch_loss")
        self.total = room  # used again in every round: fresh memory costs more than the sum
        self.total[:] = 0.0
        self.norms = np.zeros(e.num_clients)
        self.norms[asked] = np.nan
        self.moves = moves
        self.told: list[dict[str, float]] = []
        if moves is not None:
            moves[asked] = np.nan

    def add(self, client: int, answer: Answer) -> None:
        """One more update; the sum depends on the order, so add in that of the clients."""
        update, self.norms[client], measured = answer
        weight = self.total.dtype.type(self.weights[client])
        for here, piece in zip(wire.cut(self.total), update, strict=True):
            here += weight * piece
        if self.moves is not None:
            whole = np.concatenate(update)
            self.moves[client] = sketch(whole) if self.network else whole
        self.told.append(measured)

    @property
    def count(self) -> int:
        """Updates that count."""
        return len(self.told)

    def measured(self) -> dict[str, float]:
        """The means of what the sites measured, where all of it is finite."""
        names = dict.fromkeys(name for row in self.told for name in row)
        values = {name: [row[name] for row in self.told if name in row] for name in names}
        return {name: float(np.mean(v)) for name, v in values.items() if all(map(math.isfinite, v))}
