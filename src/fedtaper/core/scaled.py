"""A schedule whose scale changes during the run: what steering declares and records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Schedule
from fedtaper.core.tapers import Constant, Power


@dataclass(frozen=True)
class Scaled:
    """Another schedule, times factors that each hold from a clock value on.

    Args:
        schedule: the step sizes before any factor.
        factors: pairs of a clock value and the factor that holds from it, the first at 1.

    >>> from fedtaper.core.schedules import Power
    >>> Scaled(Power(0.1, 1.0), ((1, 1.0), (6, 2.0)))([5, 10])
    array([0.02, 0.02])
    """

    schedule: Schedule
    factors: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        made = tuple((float(start), float(factor)) for start, factor in self.factors)
        starts = [start for start, _ in made]
        if not made or starts[0] != 1 or starts != sorted(set(starts)):
            raise FedtaperError(
                f"factors must start at increasing clock values, the first at 1, not {starts}"
            )
        if not all(math.isfinite(factor) and factor > 0 for _, factor in made):
            raise FedtaperError("factors must be finite numbers above 0")
        object.__setattr__(self, "factors", made)

    @property
    def limit(self) -> Power | Constant:
        """The limit of the schedule, times the last factor."""
        found = self.schedule.limit
        c = found.c * self.factors[-1][1]
        return replace(found, c=c) if isinstance(found, Power) else Constant(c)

    @property
    def settles(self) -> float:
        """The clock value at which the last factor begins, or the schedule settles."""
        return max(self.factors[-1][0], float(self.schedule.settles))

    @property
    def c(self) -> float:
        """The limit's scale."""
        return float(self.schedule.c) * self.factors[-1][1]

    @property
    def delta(self) -> float:
        """The limit's exponent."""
        return float(self.schedule.delta)

    @property
    def offset(self) -> float:
        """The limit's offset."""
        return float(self.schedule.offset)

    @property
    def formula(self) -> str:
        """The step size in words."""
        return f"{self.schedule.formula}, times {self.factors[-1][1]:.3g} in the end"

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        return np.array(self.factors)

    def factor(self, n: ArrayLike) -> NDArray[np.float64]:
        """The factor that holds at clock n."""
        starts, values = self._table.T
        place = np.searchsorted(starts, np.asarray(n, dtype=np.float64), side="right") - 1
        return np.asarray(values[np.maximum(place, 0)])

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n."""
        found = np.asarray(self.schedule(n)) * self.factor(n)
        return float(found) if np.ndim(n) == 0 else found
