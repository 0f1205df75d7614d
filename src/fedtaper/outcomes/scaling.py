"""Intervals from the path of the averaged model alone, by random scaling.

The Polyak-Ruppert average of the shared models, divided by the size of its own fluctuations, has
a limit law without unknowns (Lee et al. 2022; for local updates Li et al. 2022): neither
Hessians nor gradient noise are needed, and any number of parameters costs no more than one
pass over the record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
# Quantiles of |B(1)| / (integral of (B(r) - r B(1))^2 dr)^(1/2), B a Brownian motion
# (Abadir and Paruolo 1997).
CRITICAL = {0.8: 3.875, 0.9: 5.323, 0.95: 6.747, 0.98: 8.613}
BURN_IN = 0.1  # of the recorded rounds, left out
FEWEST = 50  # recorded rounds
ENOUGH = 50  # memory times of the path, for an interval that covers nearly what it says


def critical(level: float) -> float:
    """The half width of an interval, in units of the scale."""
    if level not in CRITICAL:
        known = ", ".join(f"{one:g}" for one in CRITICAL)
        raise FedtaperError(f"level must be {known} for random scaling, not {level!r}")
    return CRITICAL[level]


def average(path: Array, rounds: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    r"""The average of a path (..., rounds, d), its scale, and its memory times, all (..., d).

    .. math:: \hat V = \frac1{n^2} \sum_s \frac{s^2}{n^2} (\bar w_s - \bar w_n)^2 \, \Delta s

    with s counting rounds from the end of the burn-in; rounds may be unevenly recorded. If a
    path's correlation fades with a memory time that is a share x of its length, this is too
    small by the factor 1 - 5 x, and the average's variance by 1 - x; both are corrected.
    """
    first = int(len(rounds) * BURN_IN)
    if len(rounds) - first < FEWEST:
        raise FedtaperError(
            f"random scaling needs at least {FEWEST / (1 - BURN_IN):.0f} recorded rounds, "
            f"not {len(rounds)}"
        )
    start = rounds[first - 1] if first else 0
    width = np.diff(np.concatenate([[start], rounds[first:]])).astype(np.float64)[:, None]
    sums = np.cumsum(path[..., first:, :] * width, axis=-2)
    count = np.cumsum(width, axis=0)
    total = count[-1, 0]
    mean = sums[..., -1, :] / total
    apart = sums - count * mean[..., None, :]
    x = _memory(path[..., first:, :] - mean[..., None, :])
    scale = np.sqrt((apart**2 * width).sum(axis=-2) / total**3)
    short = np.minimum(x, 0.15)
    return mean, scale * np.sqrt((1 - short) / (1 - 5 * short)), 1 / x


def _memory(errors: Array) -> Array:
    """The time in which correlation falls by the factor e, as a share of the path's length."""
    count = errors.shape[-2]
    both = (errors[..., 1:, :] * errors[..., :-1, :]).sum(axis=-2)
    found = both / np.maximum((errors**2).sum(axis=-2), 1e-300)
    found = np.clip(found + (1 + 3 * found) / count, 1e-3, 1 - 1e-6)  # its bias (Kendall 1954)
    return np.asarray(-1 / np.log(found) / count)
