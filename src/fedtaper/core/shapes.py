"""Step sizes of other shapes, each of which becomes a plain schedule in the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtaper.core.checks import as_list, as_numbers, check_number
from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import checked_schedule
from fedtaper.core.tapers import Constant, Power, clock_values, like


class Shape:
    """Base of all schedules of other shapes: their limiting influence is that of their limit."""

    limit: Any

    @property
    def c(self) -> float:
        """The limit's scale."""
        return self.limit.c

    @property
    def delta(self) -> float:
        """The limit's exponent."""
        return self.limit.delta

    @property
    def offset(self) -> float:
        """The limit's offset."""
        return self.limit.offset


@dataclass(frozen=True)
class Cosine(Shape):
    """Half a cosine from ``a`` down to ``end`` at clock ``over``, then ``end`` for good.

    Its limit is the constant ``end`` (by default a hundredth of ``a``). Plan the rounds so
    that they end there: beyond, the step no longer tapers.

    >>> Cosine(a=0.1, over=100, end=0.02)([1, 50, 100, 1000]).round(4)
    array([0.1  , 0.0606, 0.02 , 0.02 ])
    """

    a: float
    over: float
    end: float | None = None

    def __post_init__(self) -> None:
        check_number("a", self.a, above=0.0)
        check_number("over", self.over, above=1.0, hint="; the clock starts at 1")
        if self.end is None:
            object.__setattr__(self, "end", self.a / 100)
        check_number("end", self.end, above=0.0, hint="; a client whose steps reach 0 would stop")

    @property
    def limit(self) -> Constant:
        """A constant step."""
        return Constant(self.end)  # type: ignore[arg-type]  # set in __post_init__

    @property
    def settles(self) -> float:
        """Where the cosine ends."""
        return float(self.over)

    @property
    def formula(self) -> str:
        """The step size in words."""
        return f"cosine from {self.a:g} to {self.end:g} at n = {self.over:g}"

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n."""
        assert self.end is not None
        part = np.minimum((clock_values(n) - 1) / (self.over - 1), 1.0)
        return like(n, self.end + (self.a - self.end) * (1 + np.cos(np.pi * part)) / 2)


@dataclass(frozen=True)
class WarmUp(Shape):
    """Another schedule, approached from below: times n / ``over`` until clock ``over``.

    >>> WarmUp(Power(0.1, 1.0), over=10)([1, 10, 20])
    array([0.01 , 0.01 , 0.005])
    """

    schedule: Any
    over: float

    def __post_init__(self) -> None:
        checked_schedule("schedule", self.schedule)
        check_number("over", self.over, above=0.0)

    @property
    def limit(self) -> Power | Constant:
        """The limit of the schedule."""
        return self.schedule.limit

    @property
    def settles(self) -> float:
        """The clock value at which the warm-up ends, or the schedule settles."""
        return max(float(self.over), self.schedule.settles)

    @property
    def formula(self) -> str:
        """The step size in words."""
        return f"{self.schedule.formula}, warm-up to n = {self.over:g}"

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n."""
        return like(
            n, self.schedule(clock_values(n)) * np.minimum(clock_values(n) / self.over, 1.0)
        )


@dataclass(frozen=True)
class Piecewise(Shape):
    """One schedule after another: ``pieces`` are pairs of a clock value and a schedule.

    Each schedule holds from its clock value on; a number stands for a constant. The first piece
    starts at 1. Each is a function of the clock n itself, which never restarts.

    >>> Piecewise(((1, 0.1), (100, 0.01)))([1, 99, 100])
    array([0.1 , 0.1 , 0.01])
    """

    pieces: tuple[tuple[float, Any], ...]

    def __post_init__(self) -> None:
        made = []
        for piece in as_list("pieces", self.pieces):
            if not isinstance(piece, (tuple, list)) or len(piece) != 2:
                raise FedtaperError(f"a piece is a clock value and a schedule, not {piece!r:.80}")
            start, what = piece
            check_number("where a piece starts", start)
            number = isinstance(what, (int, float, np.number)) and not isinstance(what, bool)
            made.append((float(start), Constant(float(what)) if number else what))
            checked_schedule("a piece", made[-1][1])
        starts = [start for start, _ in made]
        if not made or starts[0] != 1 or starts != sorted(set(starts)):
            where = "pieces must start at increasing clock values, the first at 1"
            raise FedtaperError(f"{where}, not {starts}")
        object.__setattr__(self, "pieces", tuple(made))

    @property
    def limit(self) -> Power | Constant:
        """The limit of the last piece."""
        return self.pieces[-1][1].limit

    @property
    def settles(self) -> float:
        """The clock value at which the last piece begins, or settles."""
        return max(self.pieces[-1][0], self.pieces[-1][1].settles)

    @property
    def formula(self) -> str:
        """The step size in words."""
        return "; ".join(f"{what.formula} from n = {start:g}" for start, what in self.pieces)

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n."""
        clock = clock_values(n)
        out = np.zeros_like(clock)
        for start, what in self.pieces:
            out = np.where(clock >= start, what(clock), out)
        return like(n, out)


@dataclass(frozen=True)
class Shaped(Shape):
    """Any function of n, with a declared limit.

    Args:
        shape: the step size as a function of an array of clock values.
        limit: the :class:`Power` or :class:`Constant` whose ratio to the function tends to 1 for
            large n. It decides the limiting influence; at finite n the function itself does.
        after: the clock value from which the function equals the limit, if there is one.
            Without it, forecasts reach only as far as the clock values can be summed.

    >>> wave = Shaped(lambda n: 0.1 / n * (1 + 1 / n), limit=Power(0.1, 1.0))
    >>> round(wave(10), 4)
    0.011
    """

    shape: Callable[[Any], Any]
    limit: Any
    after: float = math.inf

    def __post_init__(self) -> None:
        if not callable(self.shape):
            raise FedtaperError(f"shape must be a function of n, not {self.shape!r}")
        if not isinstance(self.limit, (Power, Constant)):
            raise FedtaperError(f"limit must be a Power or a Constant, not {self.limit!r}")
        check_number("after", self.after, finite=False)
        if not self.after >= 1:
            raise FedtaperError(f"after must be a clock value of at least 1, not {self.after!r}")
        far = min(1e12, 2 * self.after)
        ratio = self(far) / self.limit(far)
        if not 0.9 < ratio < 1.1:
            warn(f"at n = {far:g} the shape is {ratio:.3g} times its declared limit")

    @property
    def settles(self) -> float:
        """The declared clock value from which it equals the limit."""
        return float(self.after)

    @property
    def formula(self) -> str:
        """The step size in words."""
        # functions have a name, callable objects their class's
        name = getattr(self.shape, "__name__", type(self.shape).__name__)
        return f"{name}(n), in the limit {self.limit.formula}"

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n."""
        clock = clock_values(n)
        found = as_numbers("what shape returns", self.shape(clock))
        if found.shape != clock.shape:
            raise FedtaperError(
                f"shape must return one step size per n: it gave shape {found.shape} for "
                f"{clock.shape}; write it with NumPy"
            )
        if not np.all(np.isfinite(found) & (found > 0)):
            bad = clock[~(np.isfinite(found) & (found > 0))].ravel()[0]
            raise FedtaperError(
                f"shape gives {self.shape(bad)} at n = {bad:g}; a step size must be finite and "
                "above 0"
            )
        return like(n, found)
