"""Regression on data that is made as it is needed: fresh, or correlated in time.

A client's features are a Gauss-Markov process (``gauss_markov.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import (
    as_tuple,
    check_clients,
    check_memory,
    check_whole,
    optional_numbers,
    per_client,
)
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.gauss_markov import block_length, gauss_markov
from fedtaper.problems.quadratic import Moments, Quadratic

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
Batch = tuple[Array, Array]
LARGEST_RHO = 0.9999
_DATA, _FIRST_MODEL, _SAMPLE = 1, 2, 12  # places of the draws
_EVERY = 4096  # samples to look at


@dataclass(frozen=True)
class RegressionStream(Quadratic):
    """L clients with y = x'w_i + noise, whose samples are used once and never again.

    The population risk is minimised, so equilibria are those of the distribution and not of a
    sample. A stream advances whether or not its client takes part.

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
        samples: how many samples a server that weights by samples counts for a client.
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
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
        check_clients(self.num_clients)
        check_whole("dim", self.dim)
        check_memory("this stream", float(self.num_clients) * self.dim + float(self.dim) ** 2)
        check_whole("seed", self.seed, low=0)
        for i, rho in enumerate(per_client("rho", self.rho, self.num_clients)):
            if not 0 <= rho <= LARGEST_RHO:
                raise FedtaperError(
                    f"rho of client {i} is {rho:g}; it must be at least 0 and at most "
                    f"{LARGEST_RHO:g}"
                )
        per_client("feature_spread", self.feature_spread, self.num_clients, low=1e-300)
        per_client("samples", self.samples, self.num_clients, low=1)
        per_client("snr_db", self.snr_db, self.num_clients)
        per_client("sigma_w", self.sigma_w, 1, low=0)
        per_client("init_spread", self.init_spread, 1, low=0)
        given = optional_numbers("true_w", self.true_w)
        shape = (self.dim,) if given is None else given.shape
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

    def batches(self, e: Experiment, seed: int, client: int, round_: int) -> Iterator[Batch]:
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
    stream: RegressionStream, w: Array, e: Experiment, seed: int, client: int, round_: int
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
