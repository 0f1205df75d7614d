"""Base classes for rules: subclass one of these, and write what is different.

A local rule without memory subclasses :class:`Memoryless` and writes ``direction``; one with
memory subclasses :class:`Remembering` and writes ``init`` and ``step``; a server rule subclasses
:class:`PlainServer` and writes ``weights``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedtaper.core.protocols import Array, Keeps, Memory


class Remembering:
    """A local rule with memory: override ``init`` and ``step``, and what else differs."""

    added_curvature: float = 0.0
    gain: float = 1.0
    keeps: Keeps = "run"
    rescales: ClassVar[bool] = False
    receives: ClassVar[int] = 0

    def init(self, w: Any) -> Memory:
        """A client's memory before its first update."""
        raise NotImplementedError(f"{type(self).__name__} needs a method init")

    def begin(self, memory: Memory, sent: Memory) -> Memory:
        """The memory, unchanged."""
        return memory

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """One local update."""
        raise NotImplementedError(f"{type(self).__name__} needs a method step")

    def finish(self, w: Any, anchor: Any, step_sum: float, memory: Memory) -> Memory:
        """The memory as the last update left it."""
        return memory

    def counts(self, a: Array) -> Array:
        """A gradient counts by the step size of its update, times the gain."""
        return a * self.gain if self.gain != 1.0 else a

    def influence(self, weight: Array, rate: Array, sums: Array) -> Array:
        """Server weight times participation times sum of the step sizes."""
        return np.asarray(weight * rate * sums)


class Memoryless(Remembering):
    """A local rule that remembers nothing: w <- w - a * direction(gradient, w, anchor)."""

    keeps: ClassVar[Keeps] = "nothing"  # type: ignore[misc]  # a constant, and no field of a dataclass

    def init(self, w: Any) -> Memory:
        """Nothing."""
        return ()

    def direction(self, gradient: Any, w: Any, anchor: Any) -> Any:
        """What the step size multiplies."""
        raise NotImplementedError(f"{type(self).__name__} needs a method direction")

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """Move against the direction."""
        return w - a * self.direction(gradient, w, anchor), memory


class PlainServer:
    """A server rule that moves by the weighted sum of the updates and remembers nothing."""

    rescales: ClassVar[bool] = False
    erases_influence: bool = False
    gain: float = 1.0
    travels: ClassVar[int] = 0

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Each client's weight per round."""
        raise NotImplementedError(f"{type(self).__name__} needs a method weights")

    def init(self, w: Any) -> Memory:
        """Nothing."""
        return ()

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """Move by the weighted sum of the updates."""
        return w + update, memory

    def learn(self, update: Any, step_sum: float, share: float, memory: Memory) -> Memory:
        """The memory as the step left it."""
        return memory


def restarted(rule: Any, w: Any, kept: Memory, sent: Memory) -> Memory:
    """A client's memory at the start of its round: kept from the last one, or new."""
    return rule.begin(kept if rule.keeps == "run" else rule.init(w), sent)
