"""The two plain step sizes: one that tapers and one that does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers, check_number
from fedtaper.core.errors import AssumptionWarning, FedtaperError, warn

A2 = "assumption A2 (3/4 < delta <= 1)"


@dataclass(frozen=True)
class Power:
    """A tapering step size, ``a_n = c / (n + offset)**delta``.

    Args:
        c: the scale, above 0.
        delta: how fast it tapers. The theorem asks for 3/4 < delta <= 1; other positive
            values run, with a warning.
        offset: shifts the clock, so that the first steps are smaller. It changes neither
            the limit of a ratio of step sizes nor convergence; it avoids the climb of the
            first updates where c times the curvature is above 2.

    >>> Power(c=0.1, delta=1.0)(5)
    0.02
    >>> Power(c=1.0, delta=1.0, offset=9)([1, 11])
    array([0.1 , 0.05])
    """

    c: float
    delta: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_number("c", self.c, above=0.0)
        hint = "; for a step that does not taper use Constant(a)"
        check_number("delta", self.delta, above=0.0, hint=hint)
        check_number("offset", self.offset, low=0.0)
        if self.delta <= 0.75:
            warn(
                f"delta = {self.delta:g} is outside {A2}: the noise terms of the proof need "
                "delta > 3/4; convergence with probability one is not guaranteed",
                AssumptionWarning,
            )
        elif self.delta > 1:
            warn(
                f"delta = {self.delta:g} is outside {A2}: the step sizes have a finite sum, "
                "so the client stops moving before it has converged",
                AssumptionWarning,
            )

    @property
    def formula(self) -> str:
        """The step size in words, such as ``0.1 / n^0.76``."""
        base = f"(n + {self.offset:g})" if self.offset else "n"
        return f"{self.c:g} / {base}^{self.delta:g}"

    @property
    def limit(self) -> Power:
        """The limit for large n: itself."""
        return self

    @property
    def settles(self) -> float:
        """The clock value from which it equals its limit: the first."""
        return 1.0

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n (a number of at least 1, or an array of them)."""
        clock = clock_values(n)
        return like(n, self.c / (clock + self.offset) ** self.delta)


@dataclass(frozen=True)
class Constant:
    """A step size that does not taper, ``a_n = a``: what FedAvg and similar methods use.

    >>> Constant(0.05)([1, 1000])
    array([0.05, 0.05])
    """

    a: float

    def __post_init__(self) -> None:
        check_number("a", self.a, above=0.0)

    @property
    def c(self) -> float:
        """The scale, so that a constant reads as c / n**0."""
        return self.a

    @property
    def delta(self) -> float:
        """A constant tapers with exponent 0."""
        return 0.0

    @property
    def offset(self) -> float:
        """A constant has no clock to shift."""
        return 0.0

    @property
    def formula(self) -> str:
        """The step size in words, such as ``0.05``."""
        return f"{self.a:g}"

    @property
    def limit(self) -> Constant:
        """The limit for large n: itself."""
        return self

    @property
    def settles(self) -> float:
        """The clock value from which it equals its limit: the first."""
        return 1.0

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n: the same at each."""
        return like(n, np.full_like(clock_values(n), self.a))


def clock_values(n: ArrayLike) -> NDArray[np.float64]:
    """The clock as numbers, refused below 1."""
    clock = as_numbers("the clock n", n)
    if not np.all(clock >= 1):  # catches NaN too
        bad = clock.ravel()[~(clock.ravel() >= 1)][0]
        raise FedtaperError(f"the clock n starts at 1; {bad:g} is not a clock value")
    return clock


def like(n: ArrayLike, a: NDArray[np.float64]) -> Any:
    """A number where n is one, else the array."""
    return float(a) if np.ndim(n) == 0 else a
