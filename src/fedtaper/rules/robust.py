"""Robust means: server rules that look at each client's update, so that no client decides alone.

A weighted mean follows any single update as far as it goes. These rules bound that, and the
price is paid in influence: step sizes give a client more influence by making its updates
larger, and a robust mean distrusts large updates. ``erases_influence`` states this, and
``docs/flower.md`` reports measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedtaper.core.checks import check_number, check_whole, one_of
from fedtaper.core.rules import PlainServer
from fedtaper.rules.server import Array, _shares


class _Coordinates(PlainServer):
    """A mean taken coordinate by coordinate: no weights, so no planned influence."""

    rescales: ClassVar[bool] = True
    erases_influence: ClassVar[bool] = True  # type: ignore[misc]  # a constant, and no field of a dataclass

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Equal shares: how much a client would count if no update stood out."""
        return np.broadcast_to(_shares("uniform", samples), step_sums.shape)


@dataclass(frozen=True)
class Median(_Coordinates):
    """The median of the clients' updates in every coordinate.

    Fewer than half of the clients, whatever they send, cannot move a coordinate beyond what
    the others sent. Clients with larger steps count no more than others.

    >>> Median().combine(np.array([[1.0, 0.0], [2.0, 0.0], [1e9, 0.0]]), None)
    array([2., 0.])
    """

    def combine(self, updates: Any, weights: Any) -> Any:
        """The median of (clients, d) over the clients."""
        return np.median(updates, axis=0)


@dataclass(frozen=True)
class Trimmed(_Coordinates):
    """The mean of every coordinate without its ``each`` largest and ``each`` smallest values.

    Up to ``each`` clients, whatever they send, cannot move a coordinate beyond what the others
    sent (Yin et al. 2018). Where too few clients answer, fewer are cut, so that one is left.

    >>> Trimmed(each=1).combine(np.array([[1.0], [2.0], [3.0], [1e9]]), None)
    array([2.5])
    """

    each: int = 1

    def __post_init__(self) -> None:
        check_whole("each", self.each)

    def combine(self, updates: Any, weights: Any) -> Any:
        """The trimmed mean of (clients, d) over the clients."""
        cut = min(self.each, (len(updates) - 1) // 2)
        return np.sort(updates, axis=0)[cut : len(updates) - cut].mean(axis=0)


@dataclass(frozen=True)
class Clipped(PlainServer):
    """The mean of the updates, each scaled down to ``norm`` if it is larger.

    One client moves the model by at most its weight times the norm. Without ``norm`` it is
    the median of the round's sizes: clients with larger steps than the median client's then
    lose what those steps would give them. With a norm above the honest sizes nothing changes.

    >>> Clipped(norm=1.0).combine(np.array([[0.5], [100.0]]), np.array([0.5, 0.5]))
    array([0.75])
    """

    norm: float | None = None
    by: Literal["uniform", "samples"] = "uniform"

    def __post_init__(self) -> None:
        one_of("by", self.by, ("uniform", "samples"))
        if self.norm is not None:
            check_number("norm", self.norm, above=0.0)

    @property
    def erases_influence(self) -> bool:  # type: ignore[override]  # computed from a field
        """A norm that follows the median size caps what step sizes give."""
        return self.norm is None

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Equal shares, or shares of the samples."""
        return np.broadcast_to(_shares(self.by, samples), step_sums.shape)

    def combine(self, updates: Any, weights: Any) -> Any:
        """The weighted sum of the clipped updates."""
        sizes = np.linalg.norm(updates.astype(np.float64), axis=1)
        limit = float(np.median(sizes)) if self.norm is None else self.norm
        scale = np.divide(limit, sizes, out=np.ones_like(sizes), where=sizes > limit)
        return (np.asarray(weights) * scale) @ updates
