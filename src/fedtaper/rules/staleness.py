"""How much an update still counts when it was made from an older model.

A weight is a frozen dataclass that is called with the staleness: the number of rounds by which
the shared model has moved on since the client received it. It multiplies the server's own
weight, whatever the server's rule is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import per_client

Array = NDArray[np.float64]


@runtime_checkable
class Staleness(Protocol):
    """A weight between 0 and 1 for every staleness 0, 1, 2, ..."""

    def __call__(self, staleness: ArrayLike) -> Any:
        """The weight: a number, or an array of the same shape."""
        ...


@dataclass(frozen=True)
class Undiscounted:
    """An old update counts as much as a new one.

    >>> Undiscounted()([0, 5])
    array([1., 1.])
    """

    def __call__(self, staleness: ArrayLike) -> Any:
        """1."""
        return np.ones(np.shape(staleness))


@dataclass(frozen=True)
class Polynomial:
    """``(1 + staleness) ** -power``.

    >>> Polynomial(0.5)([0, 3])
    array([1. , 0.5])
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        per_client("power", self.power, 1, low=0)

    def __call__(self, staleness: ArrayLike) -> Any:
        """The weight."""
        return (1.0 + np.asarray(staleness, dtype=np.float64)) ** -self.power


@dataclass(frozen=True)
class Hinge:
    """1 up to ``grace`` rounds, then ``1 / (1 + slope (staleness - grace))``.

    >>> Hinge(grace=2, slope=1.0)([0, 2, 3])
    array([1. , 1. , 0.5])
    """

    grace: float = 4.0
    slope: float = 10.0

    def __post_init__(self) -> None:
        per_client("grace", self.grace, 1, low=0)
        per_client("slope", self.slope, 1, low=0)

    def __call__(self, staleness: ArrayLike) -> Any:
        """The weight."""
        over = np.maximum(np.asarray(staleness, dtype=np.float64) - self.grace, 0.0)
        return 1.0 / (1.0 + self.slope * over)
