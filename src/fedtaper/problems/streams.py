"""Regression on data that arrives as it is needed: fresh, correlated in time, or moving.

A client's features are a Gauss-Markov process, x_{t+1} = rho x_t + sqrt(1 - rho^2) e_t. Any
stretch of it can be computed by itself, from (seed, client, place), so a run does not depend on
the engine, on batching over seeds or on a resume. The process is cut into blocks; the values at
the ends of a block are drawn first and the rest is filled in by halving, each value from its
conditional law given the two neighbours. Blocks are so long that their ends are independent to
one part in 1e8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_whole, per_client
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.quadratic import Moments, Quadratic, equilibrium

Array = NDArray[np.float64]
Batch = tuple[Array, Array]
LARGEST_RHO = 0.9999
SHORTEST_BLOCK = 64
_INDEPENDENT = 1e-8
_DATA, _FIRST_MODEL, _SAMPLE = 1, 2, 12  # places of the draws
_EVERY = 4096  # samples to look at


def block_length(rho: float) -> int:
    """How long a block is: a power of 2 after which the process has forgotten its past."""
    length = SHORTEST_BLOCK
    while rho**length > _INDEPENDENT:
        length *= 2
    return length


def normal_table(key: Any, rows: NDArray[np.int64], columns: int) -> Array:
    """Standard normal numbers of a block, one row for each given place."""
    with np.errstate(over="ignore"):
        j = rows.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(
            columns, dtype=np.uint64
        )
        place = draws.normal_place(key, j)
        first, second = draws.mix(place), draws.mix(place + draws.GOLDEN)
    u, v = ((h >> np.uint64(11)).astype(np.float64) * 2.0**-53 for h in (first, second))
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v))


def gauss_markov(seed: int, client: int, block: int, rho: float, columns: int) -> Array:
    """One block of a client's process: ``columns - 1`` correlated columns, and one of noise.

    >>> x = np.concatenate([gauss_markov(0, 0, k, 0.9, 2) for k in range(200)])[:, 0]
    >>> bool(abs(np.corrcoef(x[:-1], x[1:])[0, 1] - 0.9) < 0.01)
    True
    """
    length = block_length(rho)
    with np.errstate(over="ignore"):
        here, after = (
            draws.stream_key(np.uint64(seed), np.uint64(client), np.uint64(k))
            for k in (block, block + 1)
        )
    z = normal_table(here, np.arange(length), columns)
    x = np.concatenate([z, normal_table(after, np.zeros(1, dtype=np.int64), columns)])
    process = x[:, :-1]
    gap = length
    while gap > 1:
        half = gap // 2
        r = rho**half
        middle = slice(half, length, gap)
        process[middle] = r / (1 + r * r) * (process[:length:gap] + process[gap::gap]) + (
            math.sqrt((1 - r * r) / (1 + r * r)) * process[middle]
        )
        gap = half
    return x[:length]


@dataclass(frozen=True)
class RegressionStream(Quadratic):
    """L clients with y = x'w_i + noise, whose samples are used once and never return.

    What is minimised is the population risk, so equilibria are those of the distribution and
    not of a sample. A stream goes on whether or not its client takes part.

    Args:
        num_clients: how many clients (L).
        dim: features of a sample (d).
        rho: correlation of the features from one sample to the next, from 0 (fresh,
            independent samples) to 0.9999: one, or one for each.
        feature_spread: standard deviation of the features: one, or one for each.
        sigma_w: standard deviation of the clients' true parameters.
        true_w: fixed true parameters instead, shape (d,) or (L, d).
        snr_db: variance of x'w over that of the noise, in dB: one, or one for each.
        init_spread: standard deviation of the clients' first models.
        samples: what a server that weights by samples believes a client to hold.
        seed: of the true parameters (the experiment has a seed of its own).

    >>> problem = RegressionStream(num_clients=2, rho=0.99)
    >>> bool(np.allclose(problem.equilibrium([1.0, 0.0]), problem.client_w[0]))
    True
    """

    num_clients: int = 10
    dim: int = 3
    rho: float | tuple[float, ...] = 0.0
    feature_spread: float | tuple[float, ...] = 5.0
    sigma_w: float = 5.0
    true_w: tuple[Any, ...] | None = None
    snr_db: float | tuple[float, ...] = 10.0
    init_spread: float = 20.0
    samples: int | tuple[int, ...] = 1_000_000
    seed: int = 0
    kind: ClassVar[ProblemKind] = "stream"
    default_clock: ClassVar[Unit] = "update"

    def __post_init__(self) -> None:
        for name in ("rho", "feature_spread", "snr_db", "samples", "true_w"):  # lists as tuples
            value = getattr(self, name)
            if isinstance(value, (list, np.ndarray)):
                nested = np.asarray(value).tolist()
                value = tuple(tuple(v) if isinstance(v, list) else v for v in nested)
                object.__setattr__(self, name, value)
        check_whole("num_clients", self.num_clients)
        check_whole("dim", self.dim)
        check_whole("seed", self.seed, low=0)
        for i, rho in enumerate(per_client("rho", self.rho, self.num_clients)):
            if not 0 <= rho <= LARGEST_RHO:
                raise FedtaperError(
                    f"rho of client {i} is {rho:g}; a stream that forgets has 0 <= rho <= "
                    f"{LARGEST_RHO:g}"
                )
        per_client("feature_spread", self.feature_spread, self.num_clients, low=1e-300)
        per_client("samples", self.samples, self.num_clients, low=1)
        per_client("snr_db", self.snr_db, self.num_clients)
        per_client("sigma_w", self.sigma_w, 1, low=0)
        per_client("init_spread", self.init_spread, 1, low=0)
        shape = np.shape(self.true_w) if self.true_w is not None else (self.dim,)
        if shape not in ((self.dim,), (self.num_clients, self.dim)):
            raise FedtaperError(
                f"true_w has shape {shape}; it must be ({self.dim},) or "
                f"({self.num_clients}, {self.dim})"
            )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The nominal number of samples of each client."""
        return per_client("samples", self.samples, self.num_clients).astype(np.int64)

    @cached_property
    def rhos(self) -> Array:
        """Each client's rho."""
        return per_client("rho", self.rho, self.num_clients)

    @property
    def correlation(self) -> float:
        """The largest rho: what ``check`` reports."""
        return float(self.rhos.max())

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Samples in a block of each client's process."""
        return np.array([block_length(rho) for rho in self.rhos.tolist()], dtype=np.int64)

    @cached_property
    def spreads(self) -> Array:
        """Each client's feature spread."""
        return per_client("feature_spread", self.feature_spread, self.num_clients)

    @cached_property
    def client_w(self) -> Array:
        """The clients' true parameters, (L, d)."""
        if self.true_w is not None:
            fixed = np.asarray(self.true_w, dtype=np.float64)
            return np.broadcast_to(fixed, (self.num_clients, self.dim)).copy()
        made = [draws.generator(self.seed, _DATA, i, 0) for i in range(self.num_clients)]
        return np.stack([self.sigma_w * rng.normal(size=self.dim) for rng in made])

    @cached_property
    def noise(self) -> Array:
        """Standard deviation of each client's noise."""
        snr = 10 ** (per_client("snr_db", self.snr_db, self.num_clients) / 10)
        return np.asarray(self.spreads * np.linalg.norm(self.client_w, axis=1) / np.sqrt(snr))

    def targets(self, first: int, last: int) -> Array:
        """The true parameters in rounds first to last - 1: (1, L, d), since they stay."""
        return self.client_w[None]

    @cached_property
    def moments(self) -> Moments:
        """A, b and the mean of y^2 of the population."""
        return population_moments(self, self.client_w)

    @property
    def x(self) -> tuple[Array, ...]:
        """Features of samples that stand for each client's population."""
        return tuple(self._sample(i)[0] for i in range(self.num_clients))

    @property
    def y(self) -> tuple[Array, ...]:
        """Their responses."""
        return tuple(self._sample(i)[1] for i in range(self.num_clients))

    def initial(self, seed: int) -> Array:
        """The shared model before round 1: the mean of the clients' first models."""
        rng = draws.generator(seed, _FIRST_MODEL)
        return (self.init_spread * rng.normal(size=(self.num_clients, self.dim))).mean(axis=0)

    def stretch(self, seed: int, client: int, start: int, count: int) -> Array:
        """Samples of the process from ``start`` on, (count, d + 1); the last column is noise."""
        rho = float(self.rhos[client])
        length = block_length(rho)
        blocks = range(start // length, (start + count - 1) // length + 1)
        made = [gauss_markov(seed, client, block, rho, self.dim + 1) for block in blocks]
        begin = start - blocks[0] * length
        return np.concatenate(made)[begin : begin + count]

    def batches(self, e: Any, seed: int, client: int, round_: int) -> Iterator[Batch]:
        """The next samples of the client's stream, (x, y) for each local update."""
        return stream_batches(self, self.client_w[client], e, seed, client, round_)

    def every_sample(self, client: int) -> Batch:
        """A few points that have exactly the population's first two moments."""
        axes = math.sqrt(self.dim) * np.eye(self.dim)
        points = np.concatenate([axes, -axes])
        z = np.concatenate([np.insert(points, self.dim, noise, axis=1) for noise in (1.0, -1.0)])
        return observed(self, client, z, self.client_w[client])

    def _sample(self, client: int) -> Batch:
        z = draws.generator(self.seed, _SAMPLE, client).normal(size=(_EVERY, self.dim + 1))
        return observed(self, client, z, self.client_w[client])

    def gradient(self, client: int, w: Array, batch: Batch) -> Array:
        """Mean over the batch of x (x'w - y), without the factor 2 (REG12)."""
        return batch_gradient(w, batch)


def population_moments(stream: RegressionStream, w: Array) -> Moments:
    """The moments of clients whose true parameters are w, (..., L, d)."""
    square = stream.spreads**2
    a = square[:, None, None] * np.eye(stream.dim)
    c = square * np.sum(w * w, axis=-1) + stream.noise**2
    return np.broadcast_to(a, (*w.shape[:-1], stream.dim, stream.dim)), square[:, None] * w, c


def observed(stream: RegressionStream, client: int, z: Array, w: Array) -> Batch:
    """Features and responses from standard normal columns, with true parameters w."""
    x = stream.spreads[client] * z[:, :-1]
    return x, x @ w + stream.noise[client] * z[:, -1]


def stream_batches(
    stream: RegressionStream, w: Array, e: Any, seed: int, client: int, round_: int
) -> Iterator[Batch]:
    """One client's mini-batches in one round, with true parameters w."""
    steps, size = int(e.steps[client]), e.batch_size
    z = stream.stretch(seed, client, round_ * steps * size, steps * size)
    for step in range(steps):
        yield observed(stream, client, z[step * size : (step + 1) * size], w)


def batch_gradient(w: Array, batch: Batch) -> Array:
    """Mean over the batch of x (x'w - y)."""
    x, y = batch
    return np.asarray(x.T @ (x @ w - y) / len(y))


@dataclass(frozen=True)
class MovingRegression:
    """A stream whose true parameters move: slowly, at once, or both.

    No step size that tapers to 0 follows a target for ever, and there is no equilibrium to
    reach: :meth:`error` is the distance to where w*(p_n) stands in each round.

    Args:
        stream: what moves.
        drift: how far a client's true parameters move per round, each in a direction of its
            own: one, or one for each.
        change_round: before which round (counted from 1) the parameters change at once.
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
        for name in ("drift", "change"):
            value = getattr(self, name)
            if isinstance(value, (list, np.ndarray)):
                object.__setattr__(self, name, tuple(np.asarray(value).tolist()))
            per_client(name, getattr(self, name), self.num_clients, low=0)
        check_whole("seed", self.seed, low=0)
        if self.change_round is not None:
            check_whole("change_round", self.change_round)
        elif np.any(np.asarray(self.change) != 0):
            raise FedtaperError("a change needs its round: give change_round")

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
        rng = draws.generator(self.seed, _DATA, 99)
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

    def batches(self, e: Any, seed: int, client: int, round_: int) -> Iterator[Batch]:
        """The next samples of the client's stream, (x, y) for each local update."""
        w = self.targets(round_, round_ + 1)[0, client]
        return stream_batches(self.stream, w, e, seed, client, round_)

    def every_sample(self, client: int) -> Batch:
        """Independent samples of the first round's population."""
        return self.stream.every_sample(client)

    def gradient(self, client: int, w: Array, batch: Batch) -> Array:
        """Mean over the batch of x (x'w - y)."""
        return batch_gradient(w, batch)

    def metrics(self, w: Array, p_n: Array, p: Array) -> dict[str, Array]:
        """Nothing: what a model is worth depends on the round (see :meth:`error`)."""
        return {}

    def equilibrium_at(self, p: ArrayLike, round_: ArrayLike) -> Array:
        """Where w*(p) stands in a round, or in each of several (counted from 1): (..., d)."""
        rounds = np.atleast_1d(np.asarray(round_, dtype=np.int64))
        w = np.concatenate([self.targets(k - 1, k) for k in rounds.tolist()])
        found = equilibrium(population_moments(self.stream, w), np.broadcast_to(p, w.shape[:2]))
        return found.reshape(*np.shape(round_), self.dim)

    def error(self, run: Any) -> Array:
        """Distance of a run's models to w*(p_n) of their round: one value per recorded round."""
        p_n = np.concatenate([run.experiment.effective_influence(k - 1, k) for k in run.round])
        return np.asarray(np.linalg.norm(run.w - self.equilibrium_at(p_n, run.round), axis=-1))
