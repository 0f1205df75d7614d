"""Local rules that remember gradients: momentum (Polyak, Nesterov) and AdamW at the client.

The memory is kept from round to round, or reset at the start of each round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedtaper.core.checks import check_number
from fedtaper.core.protocols import Array, Keeps, Memory
from fedtaper.core.rules import Remembering
from fedtaper.rules.server import velocity


@dataclass(frozen=True)
class Momentum(Remembering):
    r"""Gradient steps with momentum, as in PyTorch's SGD.

    .. math:: v \leftarrow \beta v + g, \qquad w \leftarrow w - a v
              \quad (\text{Nesterov: } w \leftarrow w - a (g + \beta v))

    Each gradient counts 1 / (1 - beta) times in total. With ``reset`` the last gradients of a
    round count less, because the round ends before they are used up. Clients that make few local
    updates then lose influence; every table takes that into account.

    Args:
        beta: at least 0 and below 1.
        nesterov: look ahead.
        reset: start every round without velocity, instead of keeping it for the run.

    >>> rule = Momentum(beta=0.5)
    >>> rule.step(1.0, 2.0, anchor=1.0, a=0.1, memory=(1.0,))
    (0.75, (2.5,))
    """

    beta: float = 0.9
    nesterov: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        check_number("beta", self.beta, low=0.0, below=1.0)

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]  # computed from a field
        """For the run, unless it is reset."""
        return "round" if self.reset else "run"

    @property
    def gain(self) -> float:  # type: ignore[override]  # computed from a field
        """What a long run of equal gradients is multiplied by."""
        return 1 / (1 - self.beta)

    def init(self, w: Any) -> Memory:
        """No velocity."""
        return (w * 0.0,)

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """Update the velocity, then make a step along it."""
        v = velocity(memory[0], gradient, self.beta)
        return w - a * (gradient + self.beta * v if self.nesterov else v), (v,)

    def counts(self, a: Array) -> Array:
        """Each gradient also counts in the updates after it, less and less each time."""
        if not self.reset:
            return a * self.gain
        later = np.zeros_like(a)
        left = np.zeros_like(a[..., 0, :])
        for step in reversed(range(a.shape[-2])):
            left = a[..., step, :] + self.beta * left
            later[..., step, :] = left
        return a + self.beta * later if self.nesterov else later


@dataclass(frozen=True)
class AdamW(Remembering):
    r"""AdamW at the client (Loshchilov and Hutter 2019), as in PyTorch.

    .. math:: m \leftarrow b_1 m + (1 - b_1) g, \quad v \leftarrow b_2 v + (1 - b_2) g^2, \quad
              w \leftarrow (1 - a \lambda) w - a \hat m / (\sqrt{\hat v} + \epsilon)

    Every coordinate is rescaled by its own gradients, so influence in the sense of the theorem
    (a weight of the client's mean field) is not defined: tables show what the step sizes say,
    and theory is refused.
    """

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.01
    reset: bool = False
    rescales: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("b1", self.b1, low=0.0, below=1.0)
        check_number("b2", self.b2, low=0.0, below=1.0)
        check_number("epsilon", self.epsilon, low=0.0)
        check_number("decay", self.decay, low=0.0)

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]  # computed from a field
        """For the run, unless it is reset."""
        return "round" if self.reset else "run"

    def init(self, w: Any) -> Memory:
        """Both moments 0, and no step made."""
        return w * 0.0, w * 0.0, w[:1] * 0.0

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """Update both moments, then make the scaled step."""
        m, v, made = memory
        made = made + 1
        m = self.b1 * m + (1 - self.b1) * gradient
        v = self.b2 * v + (1 - self.b2) * gradient * gradient
        mean, square = m / (1 - self.b1**made), v / (1 - self.b2**made)
        return (1 - a * self.decay) * w - a * mean / (square**0.5 + self.epsilon), (m, v, made)
