"""Step sizes a_n (assumption A2): the dial for a client's influence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        _positive("c", self.c)
        _positive("delta", self.delta, hint="; for a step that does not taper use Constant(a)")
        if not (math.isfinite(self.offset) and self.offset >= 0):
            raise FedtaperError(f"offset must be a number of at least 0, not {self.offset!r}")
        if self.delta <= 0.75:
            warn(
                f"delta = {self.delta:g} is outside {A2}: the noise terms of the proof need "
                "delta > 3/4; convergence with probability one is not guaranteed",
                AssumptionWarning,
            )
        elif self.delta > 1:
            warn(
                f"delta = {self.delta:g} is outside {A2}: the step sizes have a finite sum, "
                "so the client stops moving before it has arrived",
                AssumptionWarning,
            )

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n (a number of at least 1, or an array of them)."""
        clock = _clock(n)
        return _like(n, self.c / (clock + self.offset) ** self.delta)


@dataclass(frozen=True)
class Constant:
    """A step size that does not taper, ``a_n = a``: what FedAvg and its kin use.

    >>> Constant(0.05)([1, 1000])
    array([0.05, 0.05])
    """

    a: float

    def __post_init__(self) -> None:
        _positive("a", self.a)

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

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n: the same at each."""
        return _like(n, np.full_like(_clock(n), self.a))


Schedule = Power | Constant


def step_sizes(schedules: Sequence[Schedule], n: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Step sizes of all clients, clients on the last axis.

    ``n`` either has the clients on its last axis already (shape (..., L)), each at a clock
    value of its own, or has last axis 1, one clock for all. Equal schedules that share a
    clock are computed once.
    """
    n = np.asarray(n, dtype=np.float64)
    if n.shape[-1] != 1:
        return np.stack([schedule(n[..., i]) for i, schedule in enumerate(schedules)], axis=-1)
    kinds = list(dict.fromkeys(schedules))
    distinct = np.concatenate([schedule(n) for schedule in kinds], axis=-1)
    return distinct[..., [kinds.index(schedule) for schedule in schedules]]


def _clock(n: ArrayLike) -> NDArray[np.float64]:
    clock = np.asarray(n, dtype=np.float64)
    if not np.all(clock >= 1):  # catches NaN too
        bad = clock.ravel()[~(clock.ravel() >= 1)][0]
        raise FedtaperError(f"the clock n starts at 1; {bad:g} is not a clock value")
    return clock


def _like(n: ArrayLike, a: NDArray[np.float64]) -> Any:
    return float(a) if np.ndim(n) == 0 else a


def _positive(name: str, value: float, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise FedtaperError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise FedtaperError(f"{name} must be a finite number above 0, not {value!r}{hint}")
