"""Numbers for a page: short, finite or null, and no more than a screen shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 500  # of a curve: half of them evenly over the rounds, half evenly over their logarithm


def number(value: Any, digits: int = 7) -> float | None:
    """A number with a few digits; None if it is not finite, since JSON cannot express that.

    >>> number(1 / 3), number(float("nan"))
    (0.3333333, None)
    """
    found = float(value)
    return float(f"{found:.{digits}g}") if math.isfinite(found) else None


def numbers(values: Any, digits: int = 7) -> Any:
    """An array's numbers with a few digits, as nested lists.

    >>> numbers(np.array([[1.0, np.inf]]))
    [[1.0, None]]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 1:
        return [number(v, digits) for v in array.tolist()]
    return [numbers(row, digits) for row in array]


def picked(length: int, most: int = POINTS) -> NDArray[np.int64]:
    """Which of so many places to draw: all, or some that suit both linear and log axes.

    >>> picked(3)
    array([0, 1, 2])
    >>> len(picked(100_000)) <= POINTS
    True
    """
    if length <= most:
        return np.arange(length)
    even = np.linspace(0, length - 1, most // 2)
    early = np.geomspace(1, length, most // 2) - 1
    return np.unique(np.concatenate([even, early]).round().astype(np.int64))


def curve(values: NDArray[np.float64], places: NDArray[np.int64]) -> dict[str, Any]:
    """A metric at those rounds; for several seeds (the first axis) the median and a band."""
    some = np.asarray(values, dtype=np.float64)[..., places]
    if some.ndim == 1:
        return {"values": numbers(some)}
    if len(some) == 1:
        return {"values": numbers(some[0])}
    with np.errstate(all="ignore"):
        low, middle, high = (np.nanquantile(_known(some), q, axis=0) for q in (0.1, 0.5, 0.9))
    return {"values": numbers(middle), "low": numbers(low), "high": numbers(high)}


def _known(some: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without rounds that no seed has: a quantile of nothing warns."""
    return np.where(np.isnan(some).all(axis=0), np.inf, some)
