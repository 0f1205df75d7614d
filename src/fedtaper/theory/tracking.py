"""How closely a run follows the ODE: windows along the run (Eqn18, left side of Eqn35)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import (
    as_numbers,
    check_number,
    check_type,
    check_whole,
    one_of,
    whole_list,
)
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_quadratic, is_quadratic
from fedtaper.core.tables import Brief
from fedtaper.experiment import Experiment
from fedtaper.results import Run, check_recorded
from fedtaper.theory.ode import KINDS, Kind, LimitOde, limit_ode

Array = NDArray[np.float64]
PARTS = 4  # looks at the distance in every round: its largest value may lie within


@dataclass(frozen=True)
class Fit:
    """A power law in the round, error ~ k^exponent, with a 95 % interval."""

    exponent: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Tracking(Brief):
    """The largest distance to the ODE in each window, for every seed.

    Attributes:
        window: the windows' length in the ODE's time.
        round: the round after which each window starts.
        n, step: the clock and the reference client's step size there.
        limit, finite: distances to the ODE with p and with p_n, (seeds, windows).
        theory: the exponent that the noise alone gives: half the taper, -delta / 2, since
            the distance is of the order of the square root of the step size.
    """

    window: float
    round: NDArray[np.int64]
    n: Array
    step: Array
    limit: Array
    finite: Array
    theory: float

    def band(self, kind: Kind = "finite", shares: Sequence[float] = (0.1, 0.5, 0.9)) -> Array:
        """Quantiles over the seeds, one row per share, (shares, windows)."""
        one_of("kind", kind, KINDS)
        levels = as_numbers("shares", shares)
        if levels.ndim > 1 or not np.all((levels >= 0) & (levels <= 1)):
            raise FedtaperError(f"shares must lie between 0 and 1, not {shares!r:.80}")
        return np.quantile(getattr(self, kind), levels, axis=0)

    def fall(self, early: tuple[int, int], late: tuple[int, int], kind: Kind = "finite") -> float:
        """How many times smaller late windows' median is than early ones' (pairs of rounds)."""
        median = self.band(kind, [0.5])[0]
        middle = []
        for span in (early, late):
            low, high = (*whole_list("rounds from, to", span), None, None)[:2]
            if low is None or high is None:
                raise FedtaperError(
                    f"early and late must be pairs of rounds (from, to), not {span!r:.80}"
                )
            inside = median[(self.round >= low) & (self.round <= high)]
            if not len(inside):
                raise FedtaperError(f"no window starts in rounds {low} to {high}")
            middle.append(float(np.median(inside)))
        return middle[0] / middle[1]

    def fit(self, kind: Kind = "finite", after: int = 0) -> Fit:
        """The decay against the round, over windows that start after a given one."""
        one_of("kind", kind, KINDS)
        check_whole("after", after, low=0)
        keep = self.round > after
        return power_law(self.round[keep], getattr(self, kind)[:, keep])


def power_law(rounds: NDArray[Any], values: Array) -> Fit:
    """Exponent of values ~ rounds^exponent: the mean over seeds of their log-log slopes.

    Values are (seeds, rounds). Seeds are independent, so the interval is Student's over
    their slopes; with one seed it is that of the straight line.

    >>> round(power_law(np.array([1, 10, 100]), np.array([[1.0, 0.1, 0.01]] * 2)).exponent, 6)
    -1.0
    """
    from scipy.stats import t as student

    x = np.log(np.asarray(rounds, dtype=np.float64))
    if len(x) < 3:
        raise FedtaperError(f"a fit needs at least 3 windows, not {len(x)}")
    y = np.log(np.maximum(values, 1e-300))
    y = y[np.all(np.isfinite(y), axis=1)]
    if not len(y):
        raise FedtaperError("no seed stayed finite: there is nothing to fit")
    x = x - x.mean()
    slopes = y @ x / (x @ x)
    if len(slopes) > 1:
        error = slopes.std(ddof=1) / math.sqrt(len(slopes))
        freedom = len(slopes) - 1
    else:
        rest = y[0] - y[0].mean() - slopes[0] * x
        freedom = len(x) - 2
        error = math.sqrt(float(rest @ rest) / freedom / float(x @ x))
    middle, half = float(slopes.mean()), float(student.ppf(0.975, freedom) * error)
    return Fit(middle, middle - half, middle + half)


def tracking_error(
    run: Run, window: float | None = None, *, starts: Iterable[int] | None = None
) -> Tracking:
    """Largest distance, in windows [T_k, T_k + window], between the run and the ODE.

    The ODE starts at the run's own model after round k. Both the ODE with p and the one with
    p_n are followed, for every seed.

    Args:
        run: a run that recorded every round.
        window: length in the ODE's time; by default half of what the run's last tenth of
            rounds takes.
        starts: the rounds k; by default 40 of them, evenly spaced in log k.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> e = ft.Experiment(problem, ft.Power(0.1, 0.76, offset=20), rounds=500, local_steps=5)
    >>> found = ft.tracking_error(ft.run(e, seeds=range(5)), window=0.1)
    >>> bool(found.band()[1, 0] > found.band()[1, -1])
    True
    """
    check_type("tracking_error", run, Run)
    w, t = round_record(run)
    length = window_length(t, window)
    chosen = window_starts(t, length, starts)
    found = {}
    for kind in KINDS:
        ode = limit_ode(run.experiment, kind)
        follow = _Linear(ode, t) if is_quadratic(run.experiment.problem) else _Any(ode, t)
        found[kind] = np.stack([_farthest(follow, w, t, k, length) for k in chosen], axis=-1)
    reference = run.experiment.schedules[run.experiment.reference]
    n = (chosen * run.experiment.period).astype(np.float64)
    return Tracking(
        length, chosen, n, reference(n), found["limit"], found["finite"], -reference.delta / 2
    )


def round_record(run: Run) -> tuple[Array, Array]:
    """All shared models (seeds, rounds + 1, d) and times T_0, T_1, ...; first those before 1."""
    check_recorded(run)
    if run.w is None or run.w0 is None:
        raise FedtaperError(
            "the run kept no trajectory of its model, so it cannot be compared with the ODE"
        )
    if len(run.round) != run.round[-1]:
        raise FedtaperError("the run recorded only some rounds: run it again with thin=1")
    w, first = (run.w, run.w0) if run.many else (run.w[None], run.w0[None])
    return np.concatenate([first[:, None], w], axis=1), np.concatenate([[0.0], run.t])


def window_length(t: Array, window: float | None) -> float:
    """The window's length: by default half of the ODE's time of the last tenth of the rounds."""
    if window is not None:
        check_number("window", window, above=0)
        return float(window)
    return float(t[-1] - t[-1 - max(1, (len(t) - 1) // 10)]) / 2


def window_starts(t: Array, window: float, starts: Iterable[int] | None) -> NDArray[np.int64]:
    """The rounds at which windows start, checked against the run's length."""
    if not (math.isfinite(window) and window > 0):
        raise FedtaperError(f"window must be a length above 0 of the ODE's time, not {window!r}")
    if t[-1] + window == t[-1]:
        raise FedtaperError(f"a window of {window:g} is lost in rounding: use a longer one")
    last = int(np.searchsorted(t, t[-1] - window * (1 - 1e-12), side="right")) - 1
    if last < 1:
        raise FedtaperError(
            f"the window of {window:g} is longer than the run, which after round 1 covers "
            f"{t[-1] - t[min(1, len(t) - 1)]:.4g} of the ODE's time: shorten it or run more rounds"
        )
    if starts is None:
        return np.unique(np.geomspace(min(10, last), last, 40).astype(np.int64))
    chosen = np.array(sorted(set(whole_list("starts", starts))), dtype=np.int64)
    if not len(chosen) or chosen[0] < 0 or chosen[-1] > last:
        raise FedtaperError(
            f"windows of {window:g} can start after rounds 0 to {last} of this run, not "
            f"{chosen.tolist()}"
        )
    return chosen


def _farthest(follow: Any, w: Array, t: Array, k: int, window: float) -> Array:
    """The largest distance between run and ODE in one window, for every seed."""
    stop = t[k] + window
    last = min(int(np.searchsorted(t, stop)), len(t) - 1)  # the round that holds the end
    inner = np.arange(1, PARTS + 1) / PARTS
    times = np.minimum((t[k:last, None] + np.diff(t[k : last + 1])[:, None] * inner).ravel(), stop)
    rounds = np.repeat(np.arange(k, last), PARTS)
    share = ((times - t[rounds]) / (t[rounds + 1] - t[rounds]))[:, None]
    path = w[:, rounds] * (1 - share) + w[:, rounds + 1] * share  # Eqn18
    apart = np.linalg.norm(path - follow(w[:, k], t[k], times, rounds), axis=-1)
    return np.max(np.where(np.isnan(apart), np.inf, apart), axis=1)  # NaN: it diverged


class _Any:
    """The ODE of any objective, seed by seed."""

    def __init__(self, ode: LimitOde, t: Array) -> None:
        self.ode = ode

    def __call__(self, w: Array, start: float, times: Array, rounds: NDArray[np.int64]) -> Array:
        out = np.full((len(w), len(times), w.shape[1]), np.inf)
        for s in np.flatnonzero(np.all(np.isfinite(w), axis=1)):
            out[s] = self.ode.solve(w[s], start=start, end=float(times[-1]), rtol=1e-7)(times)
        return out


class _Linear:
    """The linear ODE of regression, for all seeds at once.

    In each round w' = b - A w is solved exactly with the weights at the round's middle, which
    are those of the round's step sums: the exponential midpoint rule, exact for the ODE with p.
    """

    def __init__(self, ode: LimitOde, t: Array) -> None:
        e = ode.experiment
        self.a, self.b = flow(e, round_weights(ode, len(t) - 1))
        self.values, self.vectors = np.linalg.eigh(self.a)

    def __call__(self, w: Array, start: float, times: Array, rounds: NDArray[np.int64]) -> Array:
        lengths = np.diff(times, prepend=start)
        x = self.values[rounds] * lengths[:, None]
        small = np.abs(x) < 1e-12
        grown = lengths[:, None] * np.where(small, 1.0, -np.expm1(-x) / np.where(small, 1.0, x))
        vectors = self.vectors[rounds]
        back = vectors.transpose(0, 2, 1)
        keep = (vectors * np.exp(-x)[:, None, :]) @ back
        push = ((vectors * grown[:, None, :]) @ back @ self.b[rounds][..., None])[..., 0]
        out = np.empty((len(times), *w.shape))
        for j in range(len(times)):
            w = w @ keep[j].T + push[j]
            out[j] = w
        return out.transpose(1, 0, 2)


def round_weights(ode: LimitOde, rounds: int) -> Array:
    """The weights of the mean fields in each round, (rounds, L)."""
    e = ode.experiment
    if ode.influence == "limit":
        return np.broadcast_to(e.limit_field_weights, (rounds, e.num_clients))
    return e.field_weights((np.arange(rounds) + 0.5) * e.period)


def flow(experiment: Experiment, weights: Array) -> tuple[Array, Array]:
    """A (rounds, d, d) and b (rounds, d) of w' = b - A w, regression's right side."""
    a, b, _ = as_quadratic(experiment.problem).moments
    return np.tensordot(weights, a, axes=1), weights @ b
