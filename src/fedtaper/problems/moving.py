"""Regression on a stream whose true parameters move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core import draws
from fedtaper.core.checks import as_tuple, check_type, check_whole, per_client
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.quadratic import equilibrium
from fedtaper.problems.streams import (
    Batch,
    RegressionStream,
    batch_gradient,
    population_moments,
    stream_batches,
)
from fedtaper.rules.arrivals import drawn_in

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
_DIRECTIONS = 1  # place of the draws


@dataclass(frozen=True)
class MovingRegression:
    """A stream whose true parameters move: slowly, at once, or both.

    No step size that tapers to 0 follows a target for ever, and there is no equilibrium to
    reach: :meth:`error` is the distance to w*(p_n) as it is in each round.

    Args:
        stream: what moves.
        drift: how far a client's true parameters move per round, each client in its own
            direction: one, or one for each.
        change_round: the round (counted from 1) before which the parameters change at once.
        change: how far they then move, in a new direction: one, or one for each.
        seed: of the directions.

    >>> moving = MovingRegression(RegressionStream(num_clients=2), change_round=11, change=3.0)
    >>> w = moving.targets(9, 11)
    >>> np.linalg.norm(w[1] - w[0], axis=-1).round(9)
    array([3., 3.])
    """

    stream: RegressionStream
    drift: float | tuple[float, ...] = 0.0
    change_round: int | None = None
    change: float | tuple[float, ...] = 0.0
    seed: int = 0
    kind: ClassVar[ProblemKind] = "moving"
    default_clock: ClassVar[Unit] = "update"

    def __post_init__(self) -> None:
        check_type("MovingRegression", self.stream, RegressionStream)
        for name in ("drift", "change"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
            per_client(name, getattr(self, name), self.num_clients, low=0)
        check_whole("seed", self.seed, low=0)
        if self.change_round is not None:
            check_whole("change_round", self.change_round)
        elif np.any(np.asarray(self.change) != 0):
            raise FedtaperError("a change needs a round: give change_round")

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return self.stream.num_clients

    @property
    def dim(self) -> int:
        """Features of a sample (d)."""
        return self.stream.dim

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The nominal number of samples of each client."""
        return self.stream.sizes

    @property
    def curvature(self) -> Array:
        """Each client's largest curvature: the features do not move."""
        return self.stream.curvature

    @property
    def rhos(self) -> Array:
        """Each client's rho."""
        return self.stream.rhos

    @property
    def spreads(self) -> Array:
        """Each client's feature spread."""
        return self.stream.spreads

    @property
    def noise(self) -> Array:
        """Standard deviation of each client's noise."""
        return self.stream.noise

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Samples in a block of each client's process."""
        return self.stream.lengths

    @cached_property
    def _directions(self) -> Array:
        """Unit vectors of the drift and of the change, (2, L, d)."""
        rng = draws.generator(self.seed, _DIRECTIONS, 99)
        v = rng.normal(size=(2, self.num_clients, self.dim))
        return np.asarray(v / np.linalg.norm(v, axis=-1, keepdims=True))

    def targets(self, first: int, last: int) -> Array:
        """The true parameters in rounds first to last - 1 (counted from 0), (rounds, L, d)."""
        drift = per_client("drift", self.drift, self.num_clients)[:, None] * self._directions[0]
        rounds = np.arange(first, last)[:, None, None]
        w = self.stream.client_w + rounds * drift
        if self.change_round is None:
            return np.asarray(w)
        change = per_client("change", self.change, self.num_clients)[:, None]
        return np.asarray(w + (rounds >= self.change_round - 1) * change * self._directions[1])

    def initial(self, seed: int) -> Array:
        """The shared model before round 1."""
        return self.stream.initial(seed)

    def batches(self, e: Experiment, seed: int, client: int, round_: int) -> Iterator[Batch]:
        """The next samples of the client's stream, (x, y) for each local update."""
        now = drawn_in(round_)
        w = self.targets(now, now + 1)[0, client]
        return stream_batches(self.stream, w, e, seed, client, round_)

    def every_sample(self, client: int) -> Batch:
        """Independent samples of the first round's population."""
        return self.stream.every_sample(client)

    def gradient(self, client: int, w: Array, batch: Batch) -> Array:
        """Mean over the batch of x (x'w - y)."""
        return batch_gradient(w, batch)

    def metrics(self, w: Array, p_n: Array, p: Array) -> dict[str, Array]:
        """Nothing: how good a model is depends on the round (see :meth:`error`)."""
        return {}

    def equilibrium_at(self, p: ArrayLike, round_: ArrayLike) -> Array:
        """w*(p) in a round, or in each of several rounds (counted from 1): (..., d)."""
        rounds = np.atleast_1d(np.asarray(round_, dtype=np.int64))
        w = np.concatenate([self.targets(k - 1, k) for k in rounds.tolist()])
        found = equilibrium(population_moments(self.stream, w), np.broadcast_to(p, w.shape[:2]))
        return found.reshape(*np.shape(round_), self.dim)

    def error(self, run: Any) -> Array:
        """Distance of a run's models to w*(p_n) of their round: one value per recorded round."""
        p_n = np.concatenate([run.experiment.effective_influence(k - 1, k) for k in run.round])
        return np.asarray(np.linalg.norm(run.w - self.equilibrium_at(p_n, run.round), axis=-1))
