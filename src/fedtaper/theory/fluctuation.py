r"""Where the shared model is centred at clock n, and how widely mini-batches spread it.

In a round the model moves by :math:`-G_n (w - w^*(p_n))` plus noise of covariance
:math:`C_n`, with the clients' effective weights in both:

.. math::
    G_n = \sum_i q_i \pi_i s_i H_i, \qquad
    C_n = \sum_i q_i^2 \left( \pi_i r_i \Gamma_i / m_i + \pi_i (1 - \pi_i) s_i^2 h_i h_i' \right)

(server weight q, participation rate pi, sum s and sum of squares r of a round's step sizes,
Hessian H, mean field h, covariance Gamma of one sample's gradient, size m of the client's
mini-batches). So the covariance follows :math:`P \leftarrow (I - G) P (I - G) + C`; with equal
tapers it settles at :math:`a_n V`, where :math:`H V + V H = \Gamma`. It is propagated along a grid
of clock values that is even in log n, exactly between its points, so far clock values cost no more
than near ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.participation import Participation
from fedtaper.experiment import Experiment
from fedtaper.theory.clock import OdeClock
from fedtaper.theory.equilibria import minimiser, refuse_elsewhere, sensitivity
from fedtaper.theory.losses import Losses, losses_of
from fedtaper.theory.network_losses import TorchLosses

Array = NDArray[np.float64]
POINTS = 80  # of the grid
BACK = 50.0  # it starts at this part of the clock value asked for
MOST = 500  # parameters: the covariance is dense


@dataclass(frozen=True)
class Fluctuation:
    """The shared model at clock n according to theory, without a run.

    Attributes:
        experiment, n: the experiment, and the clock value.
        target: w*(p_n), the optimum of the influences at n.
        lag: by how much the model's mean differs from the target: the target moves while
            influences do, clients drift apart within a round, and changing curvature turns
            noise into a shift.
        covariance: of the model around its mean, from mini-batches and participation.
        share: the influences at n, as shares that sum to 1.
        memory: the share of the first model's distance that is left.
    """

    experiment: Experiment
    n: float
    target: Array
    lag: Array
    covariance: Array
    share: Array
    memory: float
    losses: Losses

    @property
    def forgotten(self) -> bool:
        """Whether what is left of the first model's distance is small compared with the noise."""
        first = self.experiment.problem.initial(self.experiment.seed)
        far = self.memory * float(np.linalg.norm(first - self.target))
        return far < 0.1 * float(np.sqrt(np.linalg.eigvalsh(self.covariance)[-1]))

    @cached_property
    def sampling(self) -> Array:
        """Covariance of the target itself over other data sets of the same sizes."""
        curvature = self.losses.hessian(self.target, self.share)
        sizes = np.asarray(self.experiment.problem.sizes, dtype=np.float64)
        noise = np.tensordot(self.share**2 / sizes, self.losses.noise(self.target), axes=1)
        half = np.linalg.solve(curvature, noise)
        return np.asarray(np.linalg.solve(curvature, half.T))

    @cached_property
    def own_samples(self) -> tuple[Array, Array, Array]:
        """What the choice of samples does to every client's mean loss at the population's optimum.

        Its variance, (L,), its covariance with the target, (L, d), and that of its gradient (rows)
        with the target (columns), (L, d, d): the target follows each client's own samples.
        """
        curvature = self.losses.hessian(self.target, self.share)
        sizes = np.asarray(self.experiment.problem.sizes, dtype=np.float64)
        variance, along = self.losses.spread(self.target)
        pull = -(self.share / sizes)[:, None] * along
        pulls = -(self.share / sizes)[:, None, None] * self.losses.noise(self.target)
        inverse = np.linalg.inv(curvature)
        return variance / sizes, pull @ inverse, pulls @ inverse

    @cached_property
    def clients(self) -> tuple[Array, Array]:
        """Each client's Hessian at the target, and the weighted one."""
        return self.losses.hessians(self.target), self.losses.hessian(self.target, self.share)


def fluctuation(e: Experiment, n: float) -> Fluctuation:
    """Target, lag and covariance of an experiment's model at clock n."""
    _refuse(e)
    losses = losses_of(e.problem)
    share = _shares(e, n)
    target = minimiser(losses, share)
    grid = np.geomspace(max(n / BACK, min(n, e.period)), n, POINTS)
    covariance = _covariance(e, losses, target, grid)
    lag = _lags(e, losses, target, grid)[1][-1]
    lag = lag + _bend(losses, target, share, covariance)
    slowest = np.linalg.eigvalsh(losses.hessian(target, e.field_weights(n)))[0]
    memory = float(np.exp(-max(0.0, slowest) * OdeClock.of(e).t(n)))
    return Fluctuation(e, float(n), target, lag, covariance, share, memory, losses)


def _refuse(e: Experiment) -> None:
    refuse_elsewhere(e)
    plain = e.average_over == "all" and e.delays is None and e.asynchronous is None
    chances = not isinstance(e.participation, Participation)
    if not (
        plain and chances and not e.own_clock and not e.local.rescales and not e.local.receives
    ):
        raise FedtaperError(
            "the covariance is known only for clients that answer in time, are absent only by "
            'chance, and a mean over all of them: use --method scaling (method="scaling")'
        )
    if e.server.rescales or e.server.init(np.zeros(1)):
        raise FedtaperError(
            f"the covariance is known only for a mean of the clients' models; {e.server!r} changes "
            'every step: use --method scaling (method="scaling")'
        )
    if e.local_epochs is not None:
        raise FedtaperError(
            "the covariance is known only for mini-batches drawn with replacement (local_steps); "
            'with local_epochs use --method scaling (method="scaling")'
        )
    if e.problem.dim > MOST:
        raise FedtaperError(
            f"a covariance of {e.problem.dim:,} parameters is too large (at most {MOST}); "
            'use --method scaling (method="scaling")'
        )


def _shares(e: Experiment, n: float) -> Array:
    weights = e.field_weights(n)
    return weights / weights.sum()


@dataclass(frozen=True)
class _Round:
    """A round at clock n: the weight of every client's pull, and of its noises."""

    pull: Array  # q pi s
    batch: Array  # q^2 pi r / m_i
    absence: Array  # q^2 pi (1 - pi) s^2


def _round(e: Experiment, n: float) -> _Round:
    a = e.local.counts(e.round_step_sizes(max(n - e.period / 2, 0.0))[None])[0]
    sums, squares = a.sum(axis=0), (a * a).sum(axis=0)
    q, rate = e.server_weights(sums[None])[0], e.rates
    return _Round(
        pull=q * rate * sums,
        batch=q**2 * rate * squares / e.batch_sizes,
        absence=q**2 * rate * (1 - rate) * sums**2,
    )


def _covariance(e: Experiment, losses: Losses, w: Array, grid: Array) -> Array:
    """P at the grid's end, from the value to which it would settle with the first step sizes."""
    noise, field, bends = losses.noise(w), losses.gradients(w), losses.hessians(w)
    absences = np.einsum("li,lj->lij", field, field)

    def parts(n: float) -> tuple[Array, Array, Array]:
        here = _round(e, n)
        rates, vectors = np.linalg.eigh(np.tensordot(here.pull, bends, axes=1))
        made = np.tensordot(here.batch, noise, axes=1)
        made = made + np.tensordot(here.absence, absences, axes=1)
        return np.clip(rates, 1e-300, 1.0), vectors, vectors.T @ made @ vectors

    rates, vectors, made = parts(grid[0])
    both = rates[:, None] + rates - rates[:, None] * rates
    out = vectors @ (made / both) @ vectors.T
    for low, high in pairwise(grid):
        rates, vectors, made = parts(0.5 * (low + high))
        both = rates[:, None] + rates - rates[:, None] * rates  # what a round takes off
        left = -np.expm1((high - low) / e.period * np.log1p(-np.minimum(both, 1 - 1e-16)))
        here = vectors.T @ out @ vectors
        out = vectors @ ((1 - left) * here + left * made / both) @ vectors.T
    return np.asarray(0.5 * (out + out.T))


def centres(e: Experiment, n: Array) -> tuple[Array, Array]:
    """w*(p_n) at the last of rising clock values, and the model's mean at each of them."""
    losses = losses_of(e.problem)
    target = minimiser(losses, _shares(e, float(n[-1])))
    grid = np.geomspace(max(1.0, float(n[0]) / BACK), float(n[-1]), 4 * POINTS)
    targets, lags = _lags(e, losses, target, grid)
    where = np.log(np.maximum(n, grid[0]))
    found = [np.interp(where, np.log(grid), column) for column in (targets + lags).T]
    return target, np.column_stack(found)


def _lags(e: Experiment, losses: Losses, w: Array, grid: Array) -> tuple[Array, Array]:
    """w*(p_n) and the mean minus w*(p_n) along a grid, to first order in their distance.

    The mean is pulled to w*(p_n) plus the shift that local drift causes, while w*(p_n) moves.
    """
    bends, field = losses.hessians(w), -losses.gradients(w)
    drifted = np.einsum("lij,lj->li", bends, field) + e.local.added_curvature * field
    targets = _targets(e, losses, w, grid)
    out = np.zeros((len(grid), len(w)))
    for j, (low, high) in enumerate(pairwise(grid)):
        middle, rounds = 0.5 * (low + high), (high - low) / e.period
        weights = e.field_weights(middle)
        shift = (weights * e.local_drift(middle)) @ drifted
        shift = -np.linalg.solve(np.tensordot(weights, bends, axes=1), shift)
        rates, vectors = np.linalg.eigh(np.tensordot(_round(e, middle).pull, bends, axes=1))
        rates = np.clip(rates, 1e-300, 1.0)
        speed = (targets[j + 1] - targets[j]) / rounds
        rest = shift - vectors @ ((vectors.T @ speed) / rates)
        if j == 0:
            out[0] = rest
        kept = np.exp(rounds * np.log1p(-np.minimum(rates, 1 - 1e-16)))
        out[j + 1] = rest + vectors @ (kept * (vectors.T @ (out[j] - rest)))
    return targets, out


def _targets(e: Experiment, losses: Losses, w: Array, grid: Array) -> Array:
    """w*(p_n) along the grid, backwards from w at its end."""
    weights = e.field_weights(grid)
    weights = weights / weights.sum(axis=1, keepdims=True)
    out = np.tile(w, (len(grid), 1))
    for j in range(len(grid) - 2, -1, -1):
        if np.allclose(weights[j], weights[j + 1], rtol=1e-9, atol=0):
            out[j] = out[j + 1]
        else:
            moved = weights[j] - weights[j + 1]
            near = out[j + 1] + sensitivity(losses, out[j + 1], weights[j + 1]) @ moved
            out[j] = minimiser(losses, weights[j], near)
    return out


def _bend(losses: Losses, w: Array, share: Array, covariance: Array) -> Array:
    """The effect of noise if the curvature changes: 0 for quadratic losses."""
    if not isinstance(losses, TorchLosses):
        return np.zeros(len(w))
    third = losses.third(w, share, covariance)
    return np.asarray(-0.5 * np.linalg.solve(losses.hessian(w, share), third))
