"""Is a step size too large for the curvature it meets? Checked before a run, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedtaper.core.checks import check_type
from fedtaper.core.errors import FedtaperError, StabilityWarning, warn
from fedtaper.core.protocols import as_quadratic, as_stream, is_combining, is_quadratic
from fedtaper.experiment import Experiment

MEASURABLE = 200_000  # parameters up to which a curvature is measured unasked
LOOK = 300  # rounds looked at: the climb of a tapering step is over well before


@dataclass(frozen=True)
class Stability:
    """The expected motion of the shared model's distance to its equilibrium.

    ``peak`` is the largest factor by which a distance grows in the first rounds, as a
    power of ten, and ``peak_round`` the round of it; ``growth`` is the factor of the last round
    looked at (above 1: the distance never shrinks again). ``names`` are those of ``clients``, if
    the experiment has names.
    """

    clients: tuple[int, ...]
    first_step: float
    curvature: float
    peak: float
    peak_round: int
    growth: float
    safe_offset: float
    safe_c: float
    names: tuple[str, ...] = ()

    @property
    def stable(self) -> bool:
        """Whether no client's first step exceeds 2 / curvature."""
        return not self.clients

    @property
    def advice(self) -> str:
        """What will happen and what to change, in one line."""
        if self.stable:
            return "every first step is below 2 / curvature"
        start = (
            f"the first step size of {self._who()} is above 2 / curvature "
            f"({self.first_step:g}, limit {2 / self.curvature:.3g})"
        )
        if math.isnan(self.growth):
            return (
                f"{start}: local updates overshoot; use offset = {self.safe_offset:.0f} "
                "or a smaller c"
            )
        if self.growth > 1:
            rounds = max(1, round(308 / math.log10(self.growth)))
            how = f"grows {self.growth:.3g}-fold per round and diverges after about {rounds} rounds"
            if math.isinf(self.growth):
                how = f"diverges in round {self.peak_round}"
            return f"{start}: the expected distance {how}; use a step below {self.safe_c:.3g}"
        if self.peak < 0.05:
            return (
                f"{start}: the first updates overshoot, but they taper fast enough that the shared "
                f"model is not expected to climb; offset = {self.safe_offset:.0f} or "
                f"c = {self.safe_c:.3g} avoids the overshoot"
            )
        return (
            f"{start}: the model first climbs about 1e{self.peak:.0f}-fold (until round "
            f"{self.peak_round}) before it contracts; offset = {self.safe_offset:.0f} or "
            f"c = {self.safe_c:.3g} avoids the climb"
        )

    def _who(self) -> str:
        """The clients in words: all of a few, or the first three."""
        several = "clients " if len(self.clients) > 1 else "client "
        each = self.names or tuple(str(i) for i in self.clients)
        first, last = (
            (each[:3], f"{len(each) - 3} more") if len(each) > 4 else (each[:-1], each[-1])
        )
        shown = f"{', '.join(first)} and {last}" if first else last
        return shown if self.names else several + shown


def stability(experiment: Experiment) -> Stability:
    """Compare first steps with curvatures, and follow the expected motion if it matters."""
    check_type("stability", experiment, Experiment)
    found = curvatures(experiment)
    if found is None:
        raise FedtaperError(
            f"{type(experiment.problem).__name__} has no known curvatures to compare the steps "
            f"with: it is a recorded run, or has more than {MEASURABLE:,} parameters"
        )
    return stability_at(experiment, found)


def curvatures(experiment: Experiment) -> Any:
    """Each client's largest curvature: in closed form, or by power iteration at the first model.

    None for models too large for that to be quick.
    """
    problem = experiment.problem
    if is_quadratic(problem):
        return problem.curvature
    if problem.kind == "moving":
        return as_stream(problem).curvature
    if problem.kind == "recorded" or problem.dim > MEASURABLE:
        return None
    w = problem.initial(experiment.seed)
    found = []
    for i in range(experiment.num_clients):
        batch = next(iter(problem.batches(experiment, experiment.seed, i, 0)))
        gradient = partial(problem.gradient, i, batch=batch)
        found.append(largest_curvature(gradient, w, iterations=8))
    return np.array(found)


def largest_curvature(gradient: Any, w: Any, iterations: int = 20) -> float:
    """The largest eigenvalue of the Hessian in size, by power iteration on gradient differences.

    >>> largest_curvature(lambda w: np.array([1.0, 3.0]) * w, np.zeros(2))
    3.0
    """
    v = np.random.default_rng(0).normal(size=len(w))
    v /= np.linalg.norm(v)
    size = 1e-4 * max(1.0, float(np.linalg.norm(w)))
    value = 0.0
    for _ in range(iterations):
        product = (gradient(w + size * v) - gradient(w - size * v)) / (2 * size)
        value = float(np.linalg.norm(product))
        if value == 0:
            break
        v = product / value
    return round(value, 12)


def stability_at(experiment: Experiment, curvature: Any) -> Stability:
    """Like :func:`stability`, for given curvatures."""
    first = np.max(experiment.step_sizes(0, 1)[0], axis=0)
    curvature = curvature + experiment.local.added_curvature
    bad = np.flatnonzero(first * curvature > 2)
    if not len(bad):
        return Stability((), float(first.max()), float(curvature.max()), 0.0, 0, 0.0, 0.0, 0.0)
    worst = int(bad[np.argmax(first[bad] * curvature[bad])])
    other = experiment.server.rescales or is_combining(experiment.server)
    scaled = other or not is_quadratic(experiment.problem)
    peak, peak_round, growth = (math.nan, 0, math.nan) if scaled else _expected_growth(experiment)
    schedule = experiment.schedules[worst]
    offset = 0.0
    if schedule.delta > 0:
        offset = math.ceil((schedule.c * curvature[worst]) ** (1 / schedule.delta)) - 1
    return Stability(
        clients=tuple(int(i) for i in bad),
        first_step=float(first[worst]),
        curvature=float(curvature[worst]),
        peak=peak,
        peak_round=peak_round,
        growth=growth,
        safe_offset=offset,
        safe_c=float((1.0 if offset else 2.0) / curvature[worst]),
        names=tuple(experiment.names[i] for i in bad) if experiment.names else (),
    )


def _expected_growth(e: Experiment) -> tuple[float, int, float]:
    """Norm of the product of the expected round maps, in powers of ten; last round's growth.

    In expectation a client's update maps its distance by I - a A_i (a linear map: exact for
    regression), so a round maps the shared model's by the weighted mean of their products.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _growth(e)


def _growth(e: Experiment) -> tuple[float, int, float]:
    matrices, _, _ = as_quadratic(e.problem).moments
    identity = np.eye(e.problem.dim)
    mu = e.local.added_curvature
    a = e.step_sizes(0, min(e.rounds, LOOK))
    weights = e.server_weights(a.sum(axis=1)) * e.rates
    product, log10, peak, peak_round, growth = identity, 0.0, 0.0, 0, 0.0
    for k in range(len(a)):
        mine = np.broadcast_to(identity, matrices.shape)
        for step in range(a.shape[1]):
            scale = a[k, step][:, None, None]
            mine = mine - scale * (matrices @ mine + mu * (mine - identity))
        product = (identity + np.tensordot(weights[k], mine - identity, axes=1)) @ product
        if not np.all(np.isfinite(product)):  # beyond what a number holds, within a round
            return math.inf, k + 1, math.inf
        growth = float(np.linalg.norm(product, 2))
        if growth == 0:
            break
        product = product / growth
        log10 += math.log10(growth)
        if log10 > peak:
            peak, peak_round = log10, k + 1
        if log10 < peak - 1:  # well past the top
            break
    return peak, peak_round, growth


def warn_if_unstable(experiment: Experiment) -> None:
    """The warning before a run; a step that is scaled by coordinate has no known limit."""
    if is_quadratic(experiment.problem) and not experiment.local.rescales:
        found = stability(experiment)
        if not found.stable:
            warn(found.advice, StabilityWarning)
        pull = late_pull(experiment)
        if pull > np.pi / 2:
            warn(
                "the first steps are too large for the delays: summed over the longest delay, step "
                f"size times curvature is {pull:.3g}, above pi / 2, so the model will climb before "
                "it settles; use a smaller c or a larger offset",
                StabilityWarning,
            )


def late_pull(experiment: Experiment) -> float:
    """How far the shared model's first steps would pull it within the longest delay.

    The motion w' = -A w(t - tau) is stable where the largest eigenvalue of A times tau is below
    pi / 2. Asynchronous servers, whose delays are random, are not checked.
    """
    e = experiment
    if e.late_by is None:
        return 0.0
    rate = (e.server_weights(e.step_sums(0, 1)) * e.weighted_counts * e.step_sums(0, 1))[0]
    a = np.tensordot(rate, as_quadratic(e.problem).moments[0], axes=1)
    return float(np.linalg.eigvalsh(a)[-1] * max(delay.most for delay in e.late_by))
