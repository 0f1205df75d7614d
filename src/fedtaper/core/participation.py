"""Who takes part in a round: patterns, and what they do to a mean over the participants.

A pattern is a frozen dataclass with ``rates``, the share of rounds in which each client takes
part, and ``present``, who is there, drawn by (seed, client, round).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_whole, per_client
from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
LOOKED_AT = 20_000  # rounds over which a mean is taken where there is no closed form


@runtime_checkable
class Participation(Protocol):
    """What an experiment asks of a pattern."""

    def rates(self, num_clients: int) -> Array:
        """The share of rounds in which each client takes part, (L,)."""
        ...

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """Who takes part in rounds first to last - 1 (counted from 0), (rounds, L)."""
        ...


@dataclass(frozen=True)
class Chances:
    """Each client takes part by chance, independently: one chance for all, or one per client.

    A number or a list given as ``participation=`` means this.
    """

    chance: float | tuple[float, ...] = 1.0

    def rates(self, num_clients: int) -> Array:
        """The chances."""
        return per_client("participation", self.chance, num_clients, low=0, high=1)

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """Drawn for each client and round."""
        rates = self.rates(num_clients)
        out = np.ones((last - first, num_clients), dtype=bool)
        some = np.flatnonzero(rates < 1)
        out[:, some] = draws.uniform_table(seed, some, first, last) < rates[some]
        return out


@dataclass(frozen=True)
class Exactly:
    """Exactly k clients per round, drawn without replacement: every set of k is equally likely.

    >>> Exactly(2).present(0, 3, seed=0, num_clients=5).sum(axis=1)
    array([2, 2, 2])
    """

    k: int

    def __post_init__(self) -> None:
        check_whole("k", self.k)

    def rates(self, num_clients: int) -> Array:
        """K / L for each client."""
        if self.k > num_clients:
            raise FedtaperError(
                f"Exactly({self.k}) needs {self.k} clients; there are {num_clients}"
            )
        return np.full(num_clients, self.k / num_clients)

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """Those with the k smallest of L draws."""
        out = np.zeros((last - first, num_clients), dtype=bool)
        u = draws.uniform_table(seed, np.arange(num_clients), first, last)
        chosen = np.argsort(u, axis=1, kind="stable")[:, : self.k]
        np.put_along_axis(out, chosen, True, axis=1)
        return out


def mean_shares(pattern: Participation, weights: Array) -> Array:
    r"""The expected weight of each client in a mean over those who take part.

    .. math:: E\left[\frac{1_i q_i}{\sum_j 1_j q_j}\right]

    ``weights`` are the server's, (..., L); a round in which nobody takes part adds nothing.

    >>> mean_shares(Exactly(2), np.full(5, 0.2)).round(3)
    array([0.2, 0.2, 0.2, 0.2, 0.2])
    >>> mean_shares(Chances((1.0, 0.5)), np.array([0.5, 0.5]))
    array([0.75, 0.25])
    """
    flat = weights.reshape(-1, weights.shape[-1])
    rows, back = np.unique(flat, axis=0, return_inverse=True)
    found = np.stack([_one(pattern, row) for row in rows])
    return found[back.ravel()].reshape(weights.shape)


def _one(pattern: Participation, q: Array) -> Array:
    count = len(q)
    rates = pattern.rates(count)
    if np.all(rates == 1):
        return q / q.sum()
    if isinstance(pattern, Exactly) and np.all(q == q[0]):
        return np.full(count, 1 / count)
    if isinstance(pattern, Chances):
        return _independent(rates, q / q.mean())
    if isinstance(pattern, Exactly) and math.comb(count, pattern.k) <= LOOKED_AT:
        places = np.array(list(itertools.combinations(range(count), pattern.k)))
        there = np.zeros((len(places), count), dtype=bool)
        np.put_along_axis(there, places, True, axis=1)
    else:
        there = pattern.present(0, LOOKED_AT, 0, count)
    totals = (there * q).sum(axis=1, keepdims=True)
    return np.asarray((there * q / np.where(totals > 0, totals, 1.0)).mean(axis=0))


def _independent(rates: Array, q: Array) -> Array:
    """By 1 / x = integral of exp(-x s): a product over the clients under one integral."""
    s, mass = _half_line()
    factors = 1 - rates + rates * np.exp(-np.outer(s, q))
    out = np.empty(len(q))
    for i in range(len(q)):
        others = np.delete(factors, i, axis=1).prod(axis=1)
        out[i] = rates[i] * q[i] * (mass * np.exp(-s * q[i]) * others).sum()
    return out


def _half_line() -> tuple[Array, Array]:
    """Places and weights to integrate over s > 0: the trapezium rule in log s."""
    x = np.linspace(-40.0, 12.0, 4001)
    s = np.exp(x)
    return s, s * (x[1] - x[0])
