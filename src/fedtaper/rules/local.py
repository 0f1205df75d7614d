"""One client's update (Eqn3, first line): w <- w - a * direction(gradient, w, anchor).

A local rule is a frozen dataclass with one method, ``direction``, written in plain
arithmetic so that it works on NumPy arrays and torch tensors alike. To add one, write such a
class; the reference engine can run it at once (see CONTRIBUTING.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedtaper.core.checks import check_number
from fedtaper.core.rules import Memoryless


def proximal_direction(gradient: Any, w: Any, anchor: Any, mu: float) -> Any:
    """The gradient of f(w) + mu/2 |w - anchor|^2 (FedProx); plain SGD where mu = 0."""
    return gradient + mu * (w - anchor)


@dataclass(frozen=True)
class Sgd(Memoryless):
    """Plain mini-batch gradient steps: FedSGD, FedAvg, FedNova."""

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """The gradient itself."""
        return gradient


@dataclass(frozen=True)
class Proximal(Memoryless):
    """FedProx: the gradient plus a pull, mu times as strong as the distance, to the anchor.

    >>> Proximal(mu=0.5).direction(1.0, w=3.0, anchor=1.0)
    2.0
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        check_number("mu", self.mu, low=0.0)

    @property
    def added_curvature(self) -> float:  # type: ignore[override]  # computed from a field
        """The pull to the anchor is a quadratic of curvature mu."""
        return float(self.mu)

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """The gradient of the client's loss with the proximal term."""
        return proximal_direction(gradient, w, anchor, self.mu)
