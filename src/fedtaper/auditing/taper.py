r"""How fast a client really tapers, from what it sends.

While a client makes the updates of a round it approaches its own optimum w_i, so what it
sends is not its step sum S_k times its mean field but, with curvature :math:`\lambda`,

.. math:: u_k \approx g_k (w_i - \bar w_k), \qquad
   g_k = 1 - \prod_m (1 - a_m \lambda) \approx 1 - e^{-\lambda S_k - \lambda^2 S_k^{(2)}/2},

with :math:`S_k^{(2)}` the sum of the squared step sizes. A client that tapers by an excess e
faster than declared has its step sizes multiplied by :math:`n^{-e}`. A plain slope of
log |u_k| takes the bend of g_k for a taper (0.07 off for honest clients of the paper's size);
here :math:`\lambda` is fitted beside e. With the updates at hand w_i is fitted too, so that
the motion of the shared model is accounted for; for sizes alone see :mod:`fedtaper.auditing.sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing.robust import middle, row_median

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
CURVATURE_SPREAD = 1.0  # prior deviation of log curvature
EXCESS_SPREAD = 0.5  # prior deviation of the excess
OVERSHOOT = 3.0  # rounds whose largest a * curvature exceeds 1 / this count for little
SYSTEMATIC, BESIDE = 0.006, 0.014  # what a model, or a comparison, leaves out, as a deviation
FLOOR = 1e-12


@dataclass(frozen=True)
class Declared:
    """The declared step sizes, round by round, each (L, rounds)."""

    sums: Array
    squares: Array
    log_n: Array  # mean of log(n + offset) over the updates of the round, weighted by step size
    largest: Array

    def pick(self, clients: NDArray[Any] | slice, rounds: slice = slice(None)) -> Declared:
        """Some clients, some rounds."""
        fields = (self.sums, self.squares, self.log_n, self.largest)
        return Declared(*(f[clients, rounds] for f in fields))


@dataclass(frozen=True)
class Fit:
    """Excess taper of each client with its standard error, and what else was fitted."""

    excess: Array
    error: Array
    log_curvature: Array
    size: Array  # distance to its optimum, in the model's units
    explained: Array  # share of what was sent that the model explains
    common: Array  # (rounds,) what all clients share beside the model, in logs (sizes)


def fit_updates(updates: Array, w: Array, declared: Declared, rounds_each: Array) -> Fit:
    """From updates (L, rounds, d), NaN where absent, and the models they started from.

    ``rounds_each`` (L, rounds) says how many rounds each entry is the mean of.
    """
    there = rounds_each > 0
    u = np.where(there[..., None], updates, 0.0)
    curvature, excess, place = _start_updates(u, w, declared, rounds_each)
    centre = float(np.median(curvature))
    prior = np.full(len(u), 1 / CURVATURE_SPREAD**2)
    freedom = np.maximum(there.sum(axis=1) * u.shape[2] - u.shape[2] - 2, 1)
    for _ in range(25):
        g, bend, variance, trust = shape(declared, curvature, excess)
        weight = rounds_each * trust / variance
        gap = place[:, None] - w
        residual = (u - g[..., None] * gap) * there[..., None]
        square = weight * (residual**2).sum(axis=2)
        scale = np.maximum(square.sum(axis=1) / freedom, FLOOR**2)
        outlying = np.sqrt(square / (u.shape[2] * scale[:, None])) / 2.5
        robust = weight / np.maximum(1, outlying) / scale[:, None]
        step = _Step(g, bend[..., None] * gap, declared.log_n, residual, robust)
        move = step.solve(prior, curvature - centre, excess)
        place, curvature, excess = place + move[0], curvature + move[1], excess + move[2]
        excess = np.clip(excess, -1.0, 3.0)
        if _settled(move):
            break
    total = (weight * (u**2).sum(axis=2)).sum(axis=1)
    return Fit(
        excess,
        np.hypot(step.error(prior), SYSTEMATIC),
        curvature,
        np.linalg.norm(place - w[-1], axis=1),
        1 - square.sum(axis=1) / np.maximum(total, FLOOR**2),
        np.zeros(u.shape[1]),
    )


def fit_peers(sizes: Array, declared: Declared, rounds_each: Array) -> Fit:
    """From sizes (L, rounds) compared with one another, if no model of a round can be trusted.

    What the clients have in common, round by round, is removed; a client's excess is the slope
    of the rest, and how much honest slopes differ is estimated from the clients themselves.
    The first rounds, in which everything moves, are left out.
    """
    later = np.arange(sizes.shape[1]) >= max(2, sizes.shape[1] // 10)
    there = (rounds_each > 0) & (np.nan_to_num(sizes) > 0) & later
    logs = np.where(there, np.log(np.where(there, sizes, 1.0) / declared.sums), 0.0)
    excess, level = np.zeros(len(sizes)), row_median(logs, there)
    centred = declared.log_n - row_median(declared.log_n, there)[:, None]
    like = np.ones(len(sizes), dtype=bool)
    for _ in range(12):
        flat = logs - level[:, None] + excess[:, None] * centred
        common = row_median(flat.T, (there & like[:, None]).T)
        residual = np.where(there, flat - common, 0.0)
        scale = np.maximum(1.4826 * row_median(np.abs(residual), there), 1e-6)[:, None]
        weight = rounds_each * there / np.maximum(1, np.abs(residual) / (2 * scale))
        step = _Step(
            np.ones_like(logs), centred[..., None], 0 * centred, residual[..., None], weight
        )
        slope = step.scores[:, :, 0].sum(axis=1) / np.maximum(step.matrix[:, 0, 0], 1e-300)
        level = level + (step.place[:, 0] - step.cross[:, 0, 0] * slope) / step.pivot
        excess = excess - slope
        excess = excess - middle(excess[like])
        spread = 1.4826 * middle(np.abs(excess))
        like = np.abs(excess) <= max(2.5 * spread, FLOOR)
    own = scale[:, 0] / np.sqrt(np.maximum((weight * centred**2).sum(axis=1), 1e-300))
    error = np.hypot(np.hypot(own, spread), BESIDE)
    return Fit(excess, error, np.zeros(len(sizes)), np.exp(level), np.ones(len(sizes)), common)


def shape(declared: Declared, curvature: Array, excess: Array) -> tuple[Array, ...]:
    """G_k, its derivative by log curvature, the noise's relative variance, and trust (0 to 1).

    The noise of a round is the sum of the steps' noises, each damped by the updates after it.
    Rounds that overshoot are not trusted: there the expansion of the product fails.
    """
    k = np.exp(curvature)[:, None]
    ratio = np.exp(-excess[:, None] * declared.log_n)
    x = k * declared.sums * ratio
    second = 0.5 * k**2 * declared.squares * ratio**2
    left = np.exp(-np.minimum(x + second, 700))
    g = np.maximum(-np.expm1(-x - second), 1e-300)
    damping = -np.expm1(-2 * x) / np.maximum(2 * x, 1e-300)
    overshoot = 1 + np.minimum(OVERSHOOT * declared.largest * ratio * k, 1e6) ** 8
    variance = np.maximum(declared.squares * ratio**2 * damping, 1e-300)
    return g, left * (x + 2 * second), variance, 1 / overshoot


class _Step:
    """A Gauss-Newton step for (place, log curvature, excess), the place eliminated.

    The model's derivative is ``coefficient`` by the place (times the identity), ``bend`` by
    log curvature, and -log n times ``bend`` by the excess.
    """

    def __init__(self, coefficient: Array, bend: Array, log_n: Array, r: Array, w: Array) -> None:
        self.pivot = np.maximum((w * coefficient**2).sum(axis=1), 1e-300)
        both = np.stack([bend, -log_n[..., None] * bend], axis=-1)  # (L, K, d, 2)
        weighted = w[..., None, None] * both
        self.cross = np.einsum("lk,lkdi->ldi", coefficient, weighted)
        inner = np.einsum("lkdi,lkdj->lij", weighted, both)
        self.matrix = (
            inner - np.einsum("ldi,ldj->lij", self.cross, self.cross) / (self.pivot[:, None, None])
        )
        self.place = np.einsum("lk,lkd->ld", w * coefficient, r)
        plain = np.einsum("lkdi,lkd->lki", weighted, r)
        share = np.einsum("lkd,ldi->lki", (w * coefficient)[..., None] * r, self.cross)
        self.scores = plain - share / self.pivot[:, None, None]

    def _penalised(self, prior: Array) -> Array:
        return self.matrix + self._prior(prior)

    def _prior(self, prior: Array) -> Array:
        out = np.zeros_like(self.matrix)
        out[:, 0, 0], out[:, 1, 1] = prior, 1 / EXCESS_SPREAD**2
        return out

    def inverse(self, prior: Array) -> Array:
        """Covariance of (log curvature, excess) if the model holds."""
        return np.asarray(np.linalg.inv(self._penalised(prior)), dtype=np.float64)

    def solve(self, prior: Array, off: Array, excess: Array) -> tuple[Array, Array, Array]:
        """The moves, kept short enough to stay where the linearisation holds."""
        right = self.scores.sum(axis=1)
        right = right - np.stack([prior * off, excess / EXCESS_SPREAD**2], axis=1)
        move = np.linalg.solve(self._penalised(prior), right[..., None])[..., 0]
        size = np.maximum(np.abs(move), 1e-12)
        short = np.minimum(1.0, np.minimum(1.0 / size[:, 0], 0.3 / size[:, 1]))
        move = move * short[:, None]
        place = (self.place * short[:, None] - np.einsum("ldi,li->ld", self.cross, move)) / (
            self.pivot[:, None]
        )
        return place, move[:, 0], move[:, 1]

    def error(self, prior: Array) -> Array:
        """Standard error of the excess: the larger of the model's and the sandwich's."""
        inverse = self.inverse(prior)
        meat = np.einsum("lki,lkj->lij", self.scores, self.scores) + self._prior(prior)
        sandwich = inverse @ meat @ inverse
        return np.sqrt(np.maximum(sandwich[:, 1, 1], inverse[:, 1, 1]))


def _settled(move: tuple[Array, Array, Array]) -> bool:
    """Whether every client's curvature and excess have converged."""
    return float(max(np.abs(move[1]).max(), np.abs(move[2]).max())) < 1e-4


def _grid(declared: Declared, low: float, high: float, count: int) -> Array:
    halfway = float(np.median(declared.sums[:, declared.sums.shape[1] // 2]))
    return np.log(np.geomspace(low, high, count) / halfway)


def _start_updates(
    u: Array, w: Array, declared: Declared, rounds_each: Array
) -> tuple[Array, Array, Array]:
    """The best curvature and excess of a grid, for each client separately."""
    best = np.full(len(u), -np.inf)
    curvature, excess = np.zeros(len(u)), np.zeros(len(u))
    place = np.zeros((len(u), u.shape[2]))
    count = (rounds_each > 0).sum(axis=1) * u.shape[2]
    for value, more in product(_grid(declared, 1e-3, 5, 14), (0.0, 0.12, 0.24)):
        each = np.full(len(u), value)
        g, _, variance, trust = shape(declared, each, 0 * each + more)
        weight = rounds_each * trust / variance
        total = np.maximum((weight * g**2).sum(axis=1), 1e-300)
        target = u + g[..., None] * w
        where = np.einsum("lk,lkd->ld", weight * g, target) / total[:, None]
        square = (weight * ((u - g[..., None] * (where[:, None] - w)) ** 2).sum(axis=2)).sum(axis=1)
        log_weight = np.where(rounds_each > 0, np.log(np.maximum(weight, 1e-300)), 0).sum(axis=1)
        score = 0.5 * u.shape[2] * log_weight - 0.5 * count * np.log(np.maximum(square, 1e-300))
        better = score > best
        best = np.where(better, score, best)
        curvature = np.where(better, value, curvature)
        excess = np.where(better, more, excess)
        place = np.where(better[:, None], where, place)
    return curvature, excess, place
