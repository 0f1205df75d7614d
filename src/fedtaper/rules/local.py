"""One client's update (Eqn3, first line): w <- w - a * direction(gradient, w, anchor).

A local rule is a frozen dataclass with one method, ``direction``, written in plain
arithmetic so that it serves NumPy arrays and torch tensors alike. To add one, write such a
class; the reference engine runs it at once (see CONTRIBUTING.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from fedtaper.core.errors import FedtaperError


class LocalRule(Protocol):
    """What an engine asks of a local rule."""

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """What the step size multiplies; ``anchor`` is the model the round started from."""
        ...


def proximal_direction(gradient: Any, w: Any, anchor: Any, mu: float) -> Any:
    """The gradient of f(w) + mu/2 |w - anchor|^2 (FedProx); plain SGD where mu = 0."""
    return gradient + mu * (w - anchor)


@dataclass(frozen=True)
class Sgd:
    """Plain mini-batch gradient steps: FedSGD, FedAvg, FedNova."""

    mu: ClassVar[float] = 0.0

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """The gradient itself."""
        return gradient


@dataclass(frozen=True)
class Proximal:
    """FedProx: the gradient plus a pull, mu times as strong as the distance, to the anchor.

    >>> Proximal(mu=0.5).direction(1.0, w=3.0, anchor=1.0)
    2.0
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise FedtaperError(f"mu must be a finite number of at least 0, not {self.mu!r}")

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """The gradient of the client's loss with the proximal term."""
        return proximal_direction(gradient, w, anchor, self.mu)
