"""What "with probability one" says, over many seeds: the later error never exceeds eps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_list, check_number, check_type
from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.core.tables import Brief
from fedtaper.results import Run, check_recorded

Array = NDArray[np.float64]
EPS = (1.0, 0.3, 0.1, 0.03)


@dataclass(frozen=True, repr=False)
class ProbabilityOne(Brief):
    """Share of seeds whose error, in some round from here on, exceeds eps.

    Attributes:
        eps: the thresholds.
        round: the recorded rounds.
        share: for each eps and round, (eps, rounds); ``low`` and ``high`` its 95 % interval.
        seeds: how many.
    """

    eps: tuple[float, ...]
    round: NDArray[np.int64]
    share: Array
    low: Array
    high: Array
    seeds: int

    def at(self, eps: float, round: int) -> tuple[float, float, float]:
        """Share, low and high for one eps, at the first recorded round from ``round`` on."""
        check_number("eps", eps)
        check_number("round", round)
        if eps not in self.eps:
            raise FedtaperError(f"eps = {eps:g} is not among {self.eps}")
        j, k = self.eps.index(eps), int(np.searchsorted(self.round, round))
        if k == len(self.round):
            raise FedtaperError(f"the run ends before round {round}")
        return float(self.share[j, k]), float(self.low[j, k]), float(self.high[j, k])


def probability_one(run: Run, eps: Sequence[float] = EPS, metric: str = "error") -> ProbabilityOne:
    r"""Curves of :math:`P(\sup_{j \ge k} \|\bar w_j - w^*\| > \epsilon)` against the round k.

    Convergence with probability one means that they all go to 0; convergence in the mean does
    not imply it, and a constant step leaves them at 1. The sup ends with the run, so do not
    rely on a curve's last rounds.

    Args:
        run: a run of many seeds (1,000 show a share of 0.01 with some certainty).
        eps: thresholds of the error.
        metric: "error", to w*(p_n), or "error_limit", to w*(p). Seeds that diverged exceed
            every threshold.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> e = ft.Experiment(problem, ft.Power(0.1, 0.9, offset=20), rounds=300, local_steps=5)
    >>> curves = ft.probability_one(ft.run(e, seeds=range(20)), eps=[10.0])
    >>> curves.at(10.0, round=1)[0] > 0.3, curves.at(10.0, round=300)[0]
    (True, 0.0)
    """
    check_type("probability_one", run, Run)
    check_recorded(run)
    if not isinstance(metric, str) or metric not in run.metrics:
        known, near = ", ".join(run.metrics), nearest(str(metric), run.metrics)
        raise FedtaperError(f"the run has no metric {metric!r:.80} (it has {known}){near}")
    values = run.metrics[metric] if run.many else run.metrics[metric][None]
    given = as_list("eps", eps)
    for one in given:
        check_number("eps", one, above=0)
    thresholds = tuple(float(one) for one in given)
    if not thresholds:
        raise FedtaperError("eps is empty: give thresholds above 0")
    later = np.where(np.isnan(values), np.inf, values)
    later = np.maximum.accumulate(later[:, ::-1], axis=1)[:, ::-1]
    count = np.stack([(later > one).sum(axis=0) for one in thresholds])
    low, high = binomial_interval(len(values))
    return ProbabilityOne(
        thresholds, run.round, count / len(values), low[count], high[count], len(values)
    )


def binomial_interval(trials: int) -> tuple[Array, Array]:
    """Exact (Clopper-Pearson) 95 % limits of a share, for each count from 0 to ``trials``.

    >>> low, high = binomial_interval(1000)
    >>> bool(low[0] == 0), round(float(high[0]), 5)
    (True, 0.00368)
    """
    from scipy.stats import beta

    count = np.arange(trials + 1)
    low = np.nan_to_num(beta.ppf(0.025, count, trials - count + 1), nan=0.0)
    high = np.nan_to_num(beta.ppf(0.975, count + 1, trials - count), nan=1.0)
    low[0], high[-1] = 0.0, 1.0
    return low, high
