"""What a schedule promises."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from numpy.typing import ArrayLike

from fedtaper.core.checks import shown
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols.problems import missing_parts

if TYPE_CHECKING:
    from fedtaper.core.tapers import Constant, Power


@runtime_checkable
class Schedule(Protocol):
    """A client's step sizes. Hashable and immutable: a frozen dataclass.

    ``limit`` decides the limiting influence, ``__call__`` everything at finite n, and ``settles``
    how far a forecast reaches. Any function of n is a schedule as
    :class:`fedtaper.Shaped`, where all that follows from the limit is filled in.
    """

    @property
    def c(self) -> float:
        """The scale in the limit: a_n n^delta -> c."""
        ...

    @property
    def delta(self) -> float:
        """The exponent in the limit; 0 for a step that does not taper."""
        ...

    @property
    def offset(self) -> float:
        """By how much the limit's clock is shifted; 0 for a constant."""
        ...

    @property
    def limit(self) -> Power | Constant:
        """The plain schedule whose ratio to this one tends to 1."""
        ...

    @property
    def settles(self) -> float:
        """The clock value from which it equals its limit; infinity if that is not known."""
        ...

    @property
    def formula(self) -> str:
        """The step size in words for tables, such as ``0.1 / n^0.76``."""
        ...

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n (at least 1): a number, or an array of n's shape."""
        ...

    def __hash__(self) -> int:
        """Equal schedules are computed once."""
        ...


def is_schedule(value: Any) -> TypeGuard[Schedule]:
    """Whether it is a schedule, and not the class of one."""
    return not isinstance(value, type) and isinstance(value, Schedule)


def checked_schedule(name: str, value: Any) -> Schedule:
    """The value, or an error that says what it lacks to be a schedule."""
    if is_schedule(value):
        return value
    more = ""
    if callable(value) and not isinstance(value, type):
        lacks = missing_parts(value, Schedule)
        lacks += [] if isinstance(value, Hashable) else ["hash"]
        more = (
            f", which has no {', '.join(lacks)}; a schedule of your own must fulfil "
            "fedtaper.core.protocols.Schedule, and any function of n is Shaped(f, limit=...)"
        )
    raise FedtaperError(
        f"{name} must be a schedule such as Power(c=0.1, delta=0.76), not {shown(value)}{more}"
    )
