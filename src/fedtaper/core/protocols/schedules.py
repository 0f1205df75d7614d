"""What a schedule promises."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike


@runtime_checkable
class Schedule(Protocol):
    """A client's step sizes. Hashable and immutable: a frozen dataclass.

    ``c`` and ``delta`` are its limit: a_n n^delta -> c. They decide the limiting influence;
    ``__call__`` decides everything at finite n.
    """

    @property
    def c(self) -> float:
        """The scale in the limit."""
        ...

    @property
    def delta(self) -> float:
        """The exponent in the limit; 0 for a step that does not taper."""
        ...

    @property
    def formula(self) -> str:
        """The step size in words for tables, such as ``0.1 / n^0.76``."""
        ...

    def __call__(self, n: ArrayLike) -> Any:
        """The step size at clock n (at least 1): a number, or an array of n's shape."""
        ...
