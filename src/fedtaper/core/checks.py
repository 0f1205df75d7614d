"""Checks of what a user hands in, one place for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError


def per_client(
    name: str, value: ArrayLike, count: int, low: float = -np.inf, high: float = np.inf
) -> NDArray[np.float64]:
    """One number for all clients, or one for each, as an array of length ``count``."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise FedtaperError(
            f"{name} must be a number, or one per client, not {value!r:.80}"
        ) from None
    if array.ndim > 1 or (array.ndim == 1 and len(array) != count):
        raise FedtaperError(
            f"{name} has {array.size} values for {count} clients; give one, or one per client"
        )
    if not np.all((array >= low) & (array <= high)):  # catches NaN too
        limits = f"at least {low:g}" + (f" and at most {high:g}" if np.isfinite(high) else "")
        raise FedtaperError(f"{name} must be {limits}, not {value!r}")
    return np.broadcast_to(array, count).copy()


def check_whole(name: str, value: Any, low: int = 1) -> None:
    """Refuse what is not a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise FedtaperError(f"{name} must be a whole number of at least {low}, not {value!r}")


def check_number(
    name: str, value: Any, low: float = -np.inf, above: float = -np.inf, below: float = np.inf
) -> None:
    """Refuse what is not a finite number of at least ``low``, above ``above``, below ``below``."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not (number and np.isfinite(value) and value >= low and value > above and value < below):
        limits = [f"at least {low:g}"] if np.isfinite(low) else []
        limits += [f"above {above:g}"] if np.isfinite(above) else []
        limits += [f"below {below:g}"] if np.isfinite(below) else []
        raise FedtaperError(f"{name} must be a number {' and '.join(limits)}, not {value!r}")
