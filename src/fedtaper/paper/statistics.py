"""Intervals for verdicts: they come from many seeds, never from one curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtaper.paper.claim import Check

Array = NDArray[np.float64]
_RESAMPLES = 1000


def median_interval(values: Array) -> tuple[float, float, float]:
    """Median of (problems, seeds) values with a 95 % bootstrap interval.

    Whole problems are resampled, then seeds within them: seeds on one problem share its
    data, so they are worth less than as many problems would be.

    >>> median_interval(np.full((5, 4), 2.0))
    (2.0, 2.0, 2.0)
    """
    rng = np.random.default_rng(0)
    problems, seeds = values.shape
    rows = rng.integers(problems, size=(_RESAMPLES, problems, 1))
    columns = rng.integers(seeds, size=(_RESAMPLES, problems, seeds))
    medians = np.median(values[rows, columns].reshape(_RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def share_interval(hits: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Share of True with Wilson's 95 % interval; of nothing, nothing is known.

    >>> [round(v, 3) for v in share_interval(np.array([True] * 100))]
    [1.0, 0.963, 1.0]
    >>> share_interval(np.array([], dtype=bool))
    (nan, 0.0, 1.0)
    """
    z = 1.959963984540054
    n = hits.size
    if n == 0:
        return float("nan"), 0.0, 1.0
    share = float(hits.mean())
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return share, float(low), float(high)


def above(name: str, values: Array, limit: float) -> Check:
    """The median, with its whole interval, lies above the limit."""
    value, low, high = median_interval(values)
    return Check(name, value, low, high, f"interval above {limit:g}", low > limit)


def below(name: str, values: Array, limit: float) -> Check:
    """The median, with its whole interval, lies below the limit."""
    value, low, high = median_interval(values)
    return Check(name, value, low, high, f"interval below {limit:g}", high < limit)


def nearly_all(name: str, hits: NDArray[np.bool_], share: float = 0.95) -> Check:
    """At least this share of the seeds do."""
    value, low, high = share_interval(hits)
    return Check(name, value, low, high, f"at least {share:g} of the seeds", value >= share)
