"""A round's answers as they arrive: their weighted sum, and what is kept of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.protocols import ServerRule, is_combining, is_network
from fedtaper.core.sketch import sketch
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.guard import Answer
from fedtaper.experiment import Experiment


class Intake:
    """Adds up one round. An update is added and then dropped, because models are large.

    For a server rule that needs each client's update, they are kept until the round is complete.

    ``norms`` is NaN for a site that was asked and does not count, and so is its row of ``moves``,
    which keeps the updates if they are recorded (networks: a sketch of them).
    """

    def __init__(
        self,
        e: Experiment,
        k: int,
        w: Any,
        asked: list[int],
        moves: Any,
        clipping_norm: float | None = None,
    ) -> None:
        self.limit = clipping_norm
        self.weights = e.server_weights(e.step_sums(k, k + 1))[0]
        self.network = is_network(e.problem)
        self.total = np.zeros(len(w), w.dtype)  # no memory until it is written to
        self.norms = np.zeros(e.num_clients)
        self.norms[asked] = np.nan
        self.there = np.zeros(e.num_clients, dtype=bool)  # those whose updates count
        self.over_present = e.average_over == "present"
        self.moves = moves
        self.told: list[dict[str, float]] = []
        self.kept: dict[int, Any] | None = {} if is_combining(e.server) else None
        if moves is not None:
            moves[asked] = np.nan

    def add(self, client: int, answer: Answer) -> None:
        """Add an update; the sum depends on the order, so add in the order of the clients."""
        update, self.norms[client], measured = answer
        self.there[client] = True
        clipped = self._clipped(self.norms[client])
        if self.kept is not None:
            self.kept[client] = np.concatenate(update) * self.total.dtype.type(clipped)
        else:
            weight = self.total.dtype.type(self.weights[client] * clipped)
            for here, piece in zip(wire.cut(self.total), update, strict=True):
                here += weight * piece
        if self.moves is not None:
            whole = np.concatenate(update)
            self.moves[client] = sketch(whole) if self.network else whole
        self.told.append(measured)

    def combined(self, server: ServerRule) -> Any:
        """The update for the server rule's step: the sum, or what it makes of all updates."""
        if self.kept is not None and is_combining(server):
            clients = sorted(self.kept)
            if clients:
                updates = np.stack([self.kept.pop(i) for i in clients])
                found = server.combine(updates, self.weights[clients])
                self.total = np.asarray(found, dtype=self.total.dtype)
        return self.total

    def _clipped(self, norm: float) -> float:
        """The factor by which an update is scaled down."""
        return 1.0 if self.limit is None or norm <= self.limit else self.limit / norm

    @property
    def scale(self) -> float:
        """The factor on the weights if the mean is over the participants only."""
        if not self.over_present or not self.there.any():
            return 1.0
        return float(self.weights.sum() / self.weights[self.there].sum())

    @property
    def mean(self) -> Any:
        """The weighted sum; or the mean over the participants, if that is asked for."""
        if self.kept is not None or self.scale == 1.0:
            return self.total
        return self.total * self.total.dtype.type(self.scale)

    def add_noise(self, multiplier: float) -> None:
        """Central differential privacy: Gaussian noise scaled to the largest share of a site.

        With equal weights its standard deviation is that of Flower's own wrapper, multiplier
        times clipping norm over clients. It comes from the system's entropy, never from the
        run's seed, which every site knows.
        """
        if self.limit is not None and multiplier > 0:
            deviation = multiplier * self.limit * float(self.weights.max())
            fresh = np.random.default_rng()
            for here in wire.cut(self.total):
                here += fresh.normal(0.0, deviation, len(here)).astype(here.dtype)

    @property
    def count(self) -> int:
        """Updates that count."""
        return len(self.told)

    def measured(self) -> dict[str, float]:
        """The means of what the sites measured."""
        names = dict.fromkeys(name for row in self.told for name in row)
        values = {name: [row[name] for row in self.told if name in row] for name in names}
        return {name: float(np.mean(v)) for name, v in values.items()}
