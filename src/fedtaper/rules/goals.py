"""Goals of fairness: functions phi of the clients' losses.

``slopes`` is dphi/df, ``bend`` its derivative. Every goal is increasing and convex, so its
minimiser over convex losses is w*(p) with p proportional to ``slopes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import check_number, per_client
from fedtaper.core.errors import FedtaperError, nearest

Array = NDArray[np.float64]


class Goal(Protocol):
    """An increasing convex function of the losses."""

    name: ClassVar[str]
    worst: ClassVar[bool]  # whether it is the largest loss, which has no slope where two are equal

    def value(self, f: Array) -> float:
        """The goal at losses f."""
        ...

    def slopes(self, f: Array) -> Array:
        """The derivative dphi/df."""
        ...

    def bend(self, f: Array) -> Array:
        """The second derivative, (L, L)."""
        ...

    def allows(self, f: Array) -> bool:
        """Whether the goal has a value at these losses."""
        ...

    def scaled(self, scale: float) -> Goal:
        """The same goal for losses divided by ``scale``, up to a constant factor."""
        ...


@dataclass(frozen=True)
class Total:
    """The weighted sum of the losses: what influences p minimise."""

    p: Array
    name: ClassVar[str] = "total"
    worst: ClassVar[bool] = False

    def value(self, f: Array) -> float:
        """The weighted sum p'f."""
        return float(self.p @ f)

    def slopes(self, f: Array) -> Array:
        """The weights."""
        return self.p

    def bend(self, f: Array) -> Array:
        """0."""
        return np.zeros((len(f), len(f)))

    def allows(self, f: Array) -> bool:
        """Always."""
        return True

    def scaled(self, scale: float) -> Total:
        """Itself: it has no scale."""
        return self


@dataclass(frozen=True)
class MinMax:
    """The worst client's loss."""

    name: ClassVar[str] = "minmax"
    worst: ClassVar[bool] = True

    def value(self, f: Array) -> float:
        """The largest loss."""
        return float(np.max(f))

    def slopes(self, f: Array) -> Array:
        """1 at the worst client (one of the slopes, where several are worst)."""
        return np.eye(len(f))[int(np.argmax(f))]

    def bend(self, f: Array) -> Array:
        """0."""
        return np.zeros((len(f), len(f)))

    def allows(self, f: Array) -> bool:
        """Always."""
        return True

    def scaled(self, scale: float) -> MinMax:
        """Itself: it has no scale."""
        return self


@dataclass(frozen=True)
class QFair:
    r"""q-FFL (Li et al. 2020): mean of f^(q+1) / (q+1); p is proportional to f^q."""

    q: float = 1.0
    name: ClassVar[str] = "q"
    worst: ClassVar[bool] = False

    def value(self, f: Array) -> float:
        """The mean of f^(q+1) / (q+1)."""
        return float(np.mean(f ** (self.q + 1)) / (self.q + 1))

    def slopes(self, f: Array) -> Array:
        """Powers f^q / L."""
        return f**self.q / len(f)

    def bend(self, f: Array) -> Array:
        """Powers q f^(q-1) / L."""
        return np.diag(self.q * f ** (self.q - 1) / len(f))

    def allows(self, f: Array) -> bool:
        """Losses above 0."""
        return bool(np.all(f > 0))

    def scaled(self, scale: float) -> QFair:
        """Itself: a power has no scale."""
        return self


@dataclass(frozen=True)
class Tilt:
    """TERM (Li et al. 2021): log mean exp(t f) / t; p is proportional to exp(t f)."""

    t: float = 1.0
    name: ClassVar[str] = "tilt"
    worst: ClassVar[bool] = False

    def value(self, f: Array) -> float:
        """The tilted mean."""
        top = float(np.max(f))
        return top + float(np.log(np.mean(np.exp(self.t * (f - top))))) / self.t

    def slopes(self, f: Array) -> Array:
        """The softmax of t f."""
        raw = np.exp(self.t * (f - np.max(f)))
        return raw / raw.sum()

    def bend(self, f: Array) -> Array:
        """The derivative of the softmax: t (diag p - p p')."""
        p = self.slopes(f)
        return self.t * (np.diag(p) - np.outer(p, p))

    def allows(self, f: Array) -> bool:
        """Always."""
        return True

    def scaled(self, scale: float) -> Tilt:
        """With t in units of the scaled losses."""
        return Tilt(self.t * scale)


@dataclass(frozen=True)
class Proportional:
    """Proportional fairness (Zhang et al. 2022): maximise the sum of log(baseline - f).

    At the solution, a move to any other model changes the clients' gains over their baselines by
    percentages whose sum is at most 0; p is proportional to 1 / (baseline - f).
    """

    baseline: Array
    name: ClassVar[str] = "proportional"
    worst: ClassVar[bool] = False

    def value(self, f: Array) -> float:
        """Minus the mean of log(baseline - f)."""
        return -float(np.mean(np.log(self.baseline - f)))

    def slopes(self, f: Array) -> Array:
        """1 / (baseline - f) / L."""
        return 1 / (self.baseline - f) / len(f)

    def bend(self, f: Array) -> Array:
        """1 / (baseline - f)^2 / L."""
        return np.diag((self.baseline - f) ** -2.0 / len(f))

    def allows(self, f: Array) -> bool:
        """Losses below the baseline."""
        return bool(np.all(f < self.baseline))

    def scaled(self, scale: float) -> Proportional:
        """With the baseline in units of the scaled losses."""
        return Proportional(self.baseline / scale)


GOALS = ("minmax", "q", "tilt", "proportional")


def goal_of(name: str, equal: Array, q: float, t: float, baseline: ArrayLike | None) -> Goal:
    """A goal by name; ``equal`` are the losses under equal influence."""
    if not isinstance(name, str) or name not in GOALS:
        raise FedtaperError(
            f"goal must be one of {', '.join(GOALS)}, not {name!r}{nearest(str(name), GOALS)}"
        )
    if name == "q":
        check_number("q", q, low=0)
        if np.any(equal <= 0):
            raise FedtaperError('the goal "q" needs losses above 0: use "tilt" or "minmax" instead')
        return QFair(float(q))
    if name == "tilt":
        check_number("t", t, above=0)
        return Tilt(float(t))
    if name == "proportional":
        worst = np.max(equal)
        given = worst + abs(worst) if baseline is None else baseline  # above negative losses too
        return Proportional(per_client("baseline", given, len(equal)))
    return MinMax()
