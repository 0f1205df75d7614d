"""The ODE's clock T (Eqn17) and its inverse, exact for n up to 1e18 without summing n terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
HEAD = 12  # terms added one by one before the series, which then is good to the last digit
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
_FARTHEST = 1e300
LONGEST_HEAD = 2_000_000  # rounds summed one by one before a schedule settles


def power_sum(y: Any, delta: float) -> Any:
    r"""A smooth S with S(y + 1) - S(y) = y^-delta, by Euler-Maclaurin, for y > 0.

    .. math:: S(y) = \int_1^y u^{-\delta} du - \frac{y^{-\delta}}{2}
              - \sum_j \frac{B_{2j}}{(2j)!} (\delta)_{2j-1} y^{-\delta-2j+1}

    taken at y + HEAD, minus the HEAD terms in between. It works for delta = 1 and delta = 0 too.

    >>> float(round(power_sum(4.0, 1.0) - power_sum(1.0, 1.0), 12))  # 1 + 1/2 + 1/3
    1.833333333333
    """
    far, short = y + HEAD, 1 - delta
    log = np.log(far)
    total = (np.expm1(short * log) / short if short else log) - far**-delta / 2
    rising = delta  # delta (delta + 1) ... over (2j)!
    for j, bernoulli in enumerate(BERNOULLI, start=1):
        total = total - bernoulli * rising / math.factorial(2 * j) * far ** (1 - 2 * j - delta)
        rising *= (delta + 2 * j - 1) * (delta + 2 * j)
    for j in range(HEAD):
        total = total - (y + j) ** -delta
    return total


def power_sum_slope(y: Any, delta: float) -> Any:
    """The derivative of :func:`power_sum`."""
    far = y + HEAD
    total = far**-delta + delta / 2 * far ** (-delta - 1)
    rising = delta * (delta + 1)
    for j, bernoulli in enumerate(BERNOULLI, start=1):
        total = total + bernoulli * rising / math.factorial(2 * j) * far ** (-2 * j - delta)
        rising *= (delta + 2 * j) * (delta + 2 * j + 1)
    for j in range(HEAD):
        total = total + delta * (y + j) ** (-delta - 1)
    return total


@dataclass(frozen=True)
class OdeClock:
    """T as a smooth function of n, equal to the sum of step sizes at every aggregation.

    In a round the reference client's updates are at fixed places after the round's start,
    so T is a sum, over those places, of one Hurwitz sum each. If every update has its own clock
    value (the usual case), they join into a single one.

    A schedule of another shape (warm-up, cosine) is summed round by round until it settles:
    ``head`` holds those sums, between which T is a monotone spline.
    """

    scale: float
    delta: float
    unit: float  # how far n moves between two terms of a sum
    places: Array  # first argument of each sum
    counts: Array  # how often it stands
    head: Array | None = None  # T after each round until the schedule has settled
    period: float = 1.0  # how far n moves in a round
    farthest: float = math.inf  # beyond it T is not known

    @classmethod
    def of(cls, experiment: Experiment) -> OdeClock:
        """The clock of an experiment's reference client."""
        e, i = experiment, experiment.reference
        schedule = e.schedules[i].limit
        values = e.clock_values(0, 1)[0, : e.steps[i]]
        values = values[:, 0 if values.shape[1] == 1 else i]
        places, counts = np.unique(values, return_counts=True)
        unit = float(e.period)
        if np.array_equal(values, np.arange(1, e.period + 1)):
            places, counts, unit = np.ones(1), np.ones(1, dtype=np.int64), 1.0
        return cls(
            scale=schedule.c * unit**-schedule.delta,
            delta=schedule.delta,
            unit=unit,
            places=(places + schedule.offset) / unit,
            counts=counts.astype(np.float64),
            head=_head(e, i),
            period=float(e.period),
            farthest=_farthest(e, i),
        )

    @cached_property
    def _spline(self) -> Any:
        from scipy.interpolate import PchipInterpolator

        assert self.head is not None
        if not np.all(np.isfinite(self.head)):
            raise FedtaperError("the sum of these step sizes is too large for a number")
        return PchipInterpolator(np.arange(len(self.head)) * self.period, self.head)

    @property
    def _settled(self) -> float:
        """The clock value at which the head ends."""
        return 0.0 if self.head is None else (len(self.head) - 1) * self.period

    def t(self, n: ArrayLike) -> Any:
        """The ODE's time when the clock stands at n (0 before the first update)."""
        n = np.asarray(n, dtype=np.float64)
        if not np.all(n >= 0):
            raise FedtaperError(f"the clock n starts at 1; {np.min(n):g} is not a clock value")
        if self.head is None:
            return self._tail(n)
        self._refuse_beyond(float(np.max(n, initial=0.0)), self.farthest)
        far = np.maximum(n, self._settled)
        late = self.head[-1] + self._tail(far) - self._tail(np.array(self._settled))
        return _plain(np.where(n < self._settled, self._spline(np.minimum(n, self._settled)), late))

    def _tail(self, n: Array) -> Any:
        """T of the limit."""
        y = n[..., None] / self.unit + self.places
        sums = power_sum(y, self.delta) - power_sum(self.places, self.delta)
        return _plain(self.scale * (sums @ self.counts))

    def slope(self, n: ArrayLike) -> Any:
        """The derivative of t by n: about the reference client's step size at n."""
        n = np.asarray(n, dtype=np.float64)
        if self.head is None:
            return self._tail_slope(n)
        early = self._spline(np.minimum(n, self._settled), 1)
        late = self._tail_slope(np.maximum(n, self._settled))
        return _plain(np.where(n < self._settled, early, late))

    def _tail_slope(self, n: Array) -> Any:
        y = n[..., None] / self.unit + self.places
        slopes = power_sum_slope(y, self.delta)
        return _plain(self.scale / self.unit * (slopes @ self.counts))

    def n(self, t: ArrayLike) -> Any:
        """The inverse: where the clock stands at the ODE's time t."""
        t = np.asarray(t, dtype=np.float64)
        if not np.all(t >= 0):
            raise FedtaperError(f"the ODE's time starts at 0, not {np.min(t):g}")
        if self.head is None:
            return self._tail_inverse(t)
        known = self.head[-1] if math.isfinite(self.farthest) else math.inf
        self._refuse_beyond(float(np.max(t, initial=0.0)), known * (1 + 1e-12))
        behind = self._tail(np.array(self._settled)) - self.head[-1]
        late = self._tail_inverse(np.maximum(t, self.head[-1]) + behind)
        return _plain(np.where(t < self.head[-1], self._head_inverse(t), late))

    def _refuse_beyond(self, asked: float, known: float) -> None:
        if asked > known:
            raise FedtaperError(
                "the reference client's schedule has no clock value from which it equals its "
                f"limit, so nothing is known beyond the run's end (n = {self.farthest:g}): give "
                "one with Shaped(..., after=n)"
            )

    def _head_inverse(self, t: Array) -> Array:
        """By bisection in the spline."""
        low, high = np.zeros_like(t), np.full_like(t, self._settled)
        for _ in range(80):
            middle = (low + high) / 2
            above = self._spline(middle) > t
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return (low + high) / 2

    def _tail_inverse(self, t: Array) -> Any:
        """Of the limit's T, by Newton in log n."""
        self._refuse_never(t)
        middle, short = float(self.places @ self.counts / self.counts.sum()), 1 - self.delta
        goal = t / (self.scale * self.counts.sum())
        start = np.expm1(short * math.log(middle)) / short if short else math.log(middle)
        reached = np.maximum(short * (goal + start), -1 + 1e-15)
        log = np.log1p(reached) / short if short else goal + start
        for _ in range(100):
            y = np.exp(np.minimum(log, math.log(_FARTHEST)))
            n = self.unit * np.maximum(y - middle, 0.0)
            move = np.clip((self._tail(n) - t) / (self._tail_slope(n) * self.unit * y), -2.0, 2.0)
            log = np.maximum(log - move, math.log(middle))
            if np.all(np.abs(move) < 1e-15 * np.maximum(1, np.abs(log))):
                break
        if np.any(log > math.log(_FARTHEST)):
            raise FedtaperError(f"the ODE's time {np.max(t):g} lies beyond n = {_FARTHEST:g}")
        return _plain(self.unit * np.maximum(np.exp(log) - middle, 0.0))

    def _refuse_never(self, t: Array) -> None:
        if self.delta <= 1:
            return
        total = -power_sum(self.places, self.delta) + 1 / (self.delta - 1)
        end = self.scale * float(total @ self.counts)
        if not np.all(t < end):
            raise FedtaperError(
                f"the ODE's time never reaches {np.max(t):g}: with delta = {self.delta:g} the "
                f"step sizes sum to {end:.6g}; use delta of at most 1"
            )


def _farthest(e: Experiment, client: int) -> float:
    settles = e.schedules[client].settles
    return math.inf if math.isfinite(settles) else float(e.rounds * e.period)


def _head(e: Experiment, client: int) -> Array | None:
    """T after each round, from 0, until the client's schedule settles; None if it does at once."""
    schedule = e.schedules[client]
    if schedule.settles <= 1:
        return None
    until = schedule.settles if math.isfinite(schedule.settles) else e.rounds * e.period
    rounds = math.ceil(until / e.period)
    if rounds > LONGEST_HEAD:
        raise FedtaperError(
            f"the schedule {schedule.formula} settles only after {rounds:,} rounds: too many to "
            "sum for the ODE's clock"
        )
    step = max(1, 2**22 // int(e.steps.max()))
    spans = [(low, min(low + step, rounds)) for low in range(0, rounds, step)]
    sums = [e.step_sizes(low, high)[:, :, client].sum(axis=1) for low, high in spans]
    return np.concatenate([[0.0], np.cumsum(np.concatenate(sums))])


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
