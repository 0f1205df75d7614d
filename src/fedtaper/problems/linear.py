"""Federated linear regression (REG1 to REG8): data, mean fields, curvatures, equilibrium."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core import draws
from fedtaper.core.checks import (
    as_list,
    as_numbers,
    as_tuple,
    check_clients,
    check_memory,
    check_whole,
    per_client,
)
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.quadratic import Quadratic

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
_DATA, _FIRST_MODEL = 1, 2  # places of the draws


@dataclass(frozen=True)
class LinearRegression(Quadratic):
    r"""L clients, each with y = x'w_i + noise; the loss is half the mean squared residual.

    .. math:: h^{(i)}(w) = b_i - A_i w,\quad A_i = X_i'X_i/n_i,\quad b_i = X_i'y_i/n_i

    The mean fields, curvatures and equilibria are those of the clients' own samples, so they
    are exact for the mini-batches that a run draws.

    Args:
        num_clients: how many clients (L).
        dim: features of a sample (d).
        samples: samples of a client: one number, or one for each.
        feature_spread: standard deviation of the features (sigma_x): one, or one for each.
        sigma_w: standard deviation of the clients' true parameters.
        true_w: fixed true parameters instead, shape (d,) or (L, d).
        snr_db: variance of x'w over that of the noise, in dB: one, or one for each;
            ``math.inf`` for no noise.
        init_spread: standard deviation of the clients' first models, of which the shared
            model starts as the mean.
        seed: of the data (the experiment has a seed of its own for the run).

    >>> problem = LinearRegression(num_clients=2, samples=100, seed=1)
    >>> problem.x[0].shape, problem.y[0].shape
    ((100, 3), (100,))
    >>> w = problem.equilibrium([1.0, 0.0])
    >>> bool(abs(problem.mean_field(w)[0]).max() < 1e-9)
    True
    """

    num_clients: int = 10
    dim: int = 3
    samples: int | tuple[int, ...] = 5000
    feature_spread: float | tuple[float, ...] = 5.0
    sigma_w: float = 5.0
    true_w: tuple[Any, ...] | None = None
    snr_db: float | tuple[float, ...] = 10.0
    init_spread: float = 20.0
    seed: int = 0
    arrays: tuple[tuple[Array, ...], tuple[Array, ...]] | None = field(
        default=None, repr=False, compare=False
    )
    kind: ClassVar[ProblemKind] = "linear"
    default_clock: ClassVar[Unit] = "update"

    def __post_init__(self) -> None:
        for name in ("samples", "feature_spread", "snr_db", "true_w"):  # lists as tuples
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
        check_clients(self.num_clients)
        check_whole("dim", self.dim)
        check_memory("this many clients", self.num_clients * 100)
        sizes = per_client("samples", self.samples, self.num_clients)
        for i, size in enumerate(sizes):
            if not (size >= 1 and np.isfinite(size) and size == int(size)):
                raise FedtaperError(
                    f"client {i} has {size:g} samples: every client needs at least one"
                )
        check_memory("this regression", float(sizes.sum()) * (self.dim + 1) + self.dim**2)
        per_client("feature_spread", self.feature_spread, self.num_clients, low=1e-300)
        per_client("sigma_w", self.sigma_w, 1, low=0)
        per_client("init_spread", self.init_spread, 1, low=0)
        per_client("snr_db", self.snr_db, self.num_clients)
        check_whole("seed", self.seed, low=0)
        if self.true_w is not None:
            shape = as_numbers("true_w", self.true_w).shape
            if shape not in ((self.dim,), (self.num_clients, self.dim)):
                raise FedtaperError(
                    f"true_w has shape {shape}; it must be ({self.dim},) or "
                    f"({self.num_clients}, {self.dim})"
                )
            if not np.all(np.isfinite(as_numbers("true_w", self.true_w))):
                raise FedtaperError("true_w must be finite numbers: it holds NaN or infinity")

    @classmethod
    def from_arrays(
        cls, x: Sequence[ArrayLike], y: Sequence[ArrayLike], **settings: Any
    ) -> LinearRegression:
        """The user's own data: ``x[i]`` of shape (samples, d) and ``y[i]`` of shape (samples,)."""
        for name, given in (("x", x), ("y", y)):
            if not isinstance(given, Iterable):
                raise FedtaperError(f"{name} needs one array per client, not {given!r:.80}")
        xs = tuple(np.ascontiguousarray(as_numbers("x", a)) for a in as_list("x", x))
        ys = tuple(np.ascontiguousarray(as_numbers("y", a)) for a in as_list("y", y))
        if not xs or len(xs) != len(ys):
            raise FedtaperError(f"x has {len(xs)} clients and y has {len(ys)}; they must match")
        for i, (xi, yi) in enumerate(zip(xs, ys, strict=True)):
            if xi.ndim != 2 or yi.ndim != 1 or len(xi) != len(yi):
                raise FedtaperError(
                    f"client {i}: x has shape {xi.shape} and y {yi.shape}; they must be "
                    "(samples, d) and (samples,)"
                )
            if len(xi) == 0:
                raise FedtaperError(f"client {i} is empty: every client needs at least one sample")
            if xi.shape[1] != xs[0].shape[1]:
                raise FedtaperError(
                    f"client {i} has {xi.shape[1]} features and client 0 has {xs[0].shape[1]}: all "
                    "clients need the same number"
                )
            for name, array in (("x", xi), ("y", yi)):
                if not np.all(np.isfinite(array)):
                    where = tuple(int(v) for v in np.argwhere(~np.isfinite(array))[0])
                    raise FedtaperError(
                        f"client {i}: {name}{list(where)} is {array[where]}; "
                        "remove or correct samples that are not finite numbers"
                    )
        sizes = tuple(len(yi) for yi in ys)
        made = cls(num_clients=len(xs), dim=xs[0].shape[1], samples=sizes, **settings)
        return replace(made, arrays=(xs, ys))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return per_client("samples", self.samples, self.num_clients).astype(np.int64)

    @cached_property
    def client_w(self) -> Array:
        """The true parameters that the data was made with, (L, d); NaN for the user's own data."""
        if self.arrays is not None:
            return np.full((self.num_clients, self.dim), np.nan)
        if self.true_w is not None:
            fixed = np.asarray(self.true_w, dtype=np.float64)
            return np.broadcast_to(fixed, (self.num_clients, self.dim)).copy()
        return np.stack(
            [
                self.sigma_w * draws.generator(self.seed, _DATA, i, 0).normal(size=self.dim)
                for i in range(self.num_clients)
            ]
        )

    @cached_property
    def _data(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if self.arrays is not None:
            return self.arrays
        spread = per_client("feature_spread", self.feature_spread, self.num_clients)
        snr = 10 ** (per_client("snr_db", self.snr_db, self.num_clients) / 10)
        xs, ys = [], []
        for i, size in enumerate(self.sizes):
            rng = draws.generator(self.seed, _DATA, i, 1)
            x = spread[i] * rng.normal(size=(size, self.dim))
            noise = spread[i] * np.linalg.norm(self.client_w[i]) / math.sqrt(snr[i])
            xs.append(x)
            ys.append(x @ self.client_w[i] + noise * rng.normal(size=size))
        return tuple(xs), tuple(ys)

    @property
    def x(self) -> tuple[Array, ...]:
        """Features, ``x[i]`` of shape (samples of client i, d)."""
        return self._data[0]

    @property
    def y(self) -> tuple[Array, ...]:
        """Responses, ``y[i]`` of shape (samples of client i,)."""
        return self._data[1]

    @cached_property
    def rows(self) -> Array:
        """All clients' samples stacked, one row (x, y) per sample: the engines' layout."""
        return np.concatenate([np.column_stack(xy) for xy in zip(self.x, self.y, strict=True)])

    @cached_property
    def moments(self) -> tuple[Array, Array, Array]:
        """A (L, d, d), b (L, d) and the mean of y^2 (L,), from each client's samples."""
        pairs = list(zip(self.x, self.y, strict=True))
        return (
            np.stack([x.T @ x / len(y) for x, y in pairs]),
            np.stack([x.T @ y / len(y) for x, y in pairs]),
            np.array([y @ y / len(y) for _, y in pairs]),
        )

    @cached_property
    def curvature(self) -> Array:
        """Each client's largest curvature (its Lipschitz constant K_1 of A1)."""
        return np.asarray(np.linalg.eigvalsh(self.moments[0])[:, -1], dtype=np.float64)

    def initial(self, seed: int) -> Array:
        """The shared model before round 1: the mean of the clients' first models."""
        rng = draws.generator(seed, _FIRST_MODEL)
        return (self.init_spread * rng.normal(size=(self.num_clients, self.dim))).mean(axis=0)

    def batches(
        self, e: Experiment, seed: int, client: int, round_: int
    ) -> Iterator[NDArray[np.int64]]:
        """One client's mini-batches in one round: drawn uniformly, with replacement."""
        size = int(self.sizes[client])
        for step in range(e.steps[client]):
            yield draws.batch(seed, client, round_, step, int(e.batch_sizes[client]), size)

    def every_sample(self, client: int) -> NDArray[np.int64]:
        """All of a client's samples as one batch."""
        return np.arange(int(self.sizes[client]))

    def gradient(self, client: int, w: Array, batch: NDArray[np.int64] | slice) -> Array:
        """Mean over the batch of x (x'w - y), without the factor 2 (REG12)."""
        x, y = self.x[client][batch], self.y[client][batch]
        return x.T @ (x @ w - y) / len(y)

    def mean_field(self, w: Array) -> Array:
        """h_i(w) of every client: shape (..., L, d) for w of shape (..., d)."""
        a, b, _ = self.moments
        w = np.asarray(w)
        if w.ndim == 1:
            return b - a @ w
        flat = w.reshape(-1, self.dim) @ a.transpose(2, 0, 1).reshape(self.dim, -1)
        return b - flat.reshape(*w.shape[:-1], self.num_clients, self.dim)
