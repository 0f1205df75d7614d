"""SCAFFOLD and FedDyn: clients that correct their drift with vectors kept beside the model.

Both are generalised to step sizes that differ between clients and taper. With one step size
for all they are the published methods. With unequal ones they keep the influence that the
step sizes give; the plain methods would erase it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedtaper.core.checks import check_number
from fedtaper.core.protocols import Array, Keeps, Memory
from fedtaper.core.rules import Remembering
from fedtaper.rules.server import Average, Normalised, OfMean


@dataclass(frozen=True)
class Scaffold(Remembering):
    r"""SCAFFOLD's client (Karimireddy et al. 2020): the gradient minus its drift.

    .. math:: w \leftarrow w - a (g - c_i + c), \qquad
              c_i \leftarrow c_i - c - u_i / S_i \text{ after the round}

    where u_i is the client's update and S_i the sum of its step sizes in the round (K times
    the step size, in the paper). Needs ``server=Controlled()``, which keeps c and sends it
    along with the model.
    """

    keeps: ClassVar[Keeps] = "run"  # type: ignore[misc]  # a constant, and no field of a dataclass
    receives: ClassVar[int] = 1

    def init(self, w: Any) -> Memory:
        """No correction."""
        return (w * 0.0,)

    def begin(self, memory: Memory, sent: Memory) -> Memory:
        """The server's c for this round, beside the client's own."""
        return memory[0], sent[0]

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """One step against the corrected gradient."""
        own, shared = memory
        return w - a * (gradient - own + shared), memory

    def finish(self, w: Any, anchor: Any, step_sum: float, memory: Memory) -> Memory:
        """The mean gradient of the round becomes the client's own correction."""
        own, shared = memory
        return (own - shared + (anchor - w) / step_sum,)

    def influence(self, weight: Array, rate: Array, sums: Array) -> Array:
        """Server weights times step sizes; how often a client takes part does not matter."""
        usual = weight * sums
        pace = (usual * rate).sum(axis=-1, keepdims=True) / usual.sum(axis=-1, keepdims=True)
        return usual * pace


@dataclass(frozen=True)
class Controlled(OfMean):
    r"""SCAFFOLD's server: the mean, and c, the clients' mean gradient.

    .. math:: c \leftarrow (1 - s) c - s D / S

    where D is the weighted sum of the updates, S the same sum of the participants' step sums
    and s their share of all clients' influence. This is the mean of the clients' c_i weighted
    by their influence: the plain mean would make every client count the same whatever its
    step sizes.
    """

    mean: Average | Normalised = field(default_factory=Average)
    travels: ClassVar[int] = 1

    def init(self, w: Any) -> Memory:
        """No mean gradient is known yet."""
        return (w * 0.0,)

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """Move by the weighted sum of the updates."""
        return w + update, memory

    def learn(self, update: Any, step_sum: float, share: float, memory: Memory) -> Memory:
        """The mean gradient of the round takes the place of the old one."""
        return ((1 - share) * memory[0] - share / step_sum * update,) if share else memory


@dataclass(frozen=True)
class Dynamic(Remembering):
    r"""FedDyn's client (Acar et al. 2021): a pull to the anchor and a linear term of its own.

    .. math:: w \leftarrow w - a (g - h_i + \alpha (w - \bar w)), \qquad
              h_i \leftarrow h_i - \alpha u_i \text{ after the round}

    Needs ``server=DynamicServer(alpha)`` with the same alpha. Step sizes decide how quickly a
    client gets there, not where: influence comes from the server's weights, which
    :class:`DynamicServer` makes proportional to the sums of the step sizes.
    """

    alpha: float = 0.1
    keeps: ClassVar[Keeps] = "run"  # type: ignore[misc]  # a constant, and no field of a dataclass

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0.0)

    @property
    def added_curvature(self) -> float:  # type: ignore[override]  # computed from a field
        """The pull to the anchor is a quadratic of curvature alpha."""
        return self.alpha

    def init(self, w: Any) -> Memory:
        """No linear term."""
        return (w * 0.0,)

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """One step against the gradient of the regularised loss."""
        return w - a * (gradient - memory[0] + self.alpha * (w - anchor)), memory

    def finish(self, w: Any, anchor: Any, step_sum: float, memory: Memory) -> Memory:
        """The linear term follows the client's own gradient."""
        return (memory[0] - self.alpha * (w - anchor),)

    def influence(self, weight: Array, rate: Array, sums: Array) -> Array:
        """The server's weights alone."""
        pace = (weight * rate * sums).sum(axis=-1, keepdims=True)
        return weight / weight.sum(axis=-1, keepdims=True) * pace


@dataclass(frozen=True)
class DynamicServer(OfMean):
    r"""FedDyn's server: the mean, moved by the distance that all clients have gone so far.

    .. math:: h \leftarrow h - \alpha D, \qquad \bar w \leftarrow \bar w + D - h / \alpha
    """

    alpha: float = 0.1
    mean: Average | Normalised = field(default_factory=Average)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0.0)

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Shares of the samples or of the clients, times the step sums, adding up to 1."""
        usual = super().weights(samples, steps, step_sums) * step_sums
        return np.asarray(usual / usual.sum(axis=-1, keepdims=True))

    def init(self, w: Any) -> Memory:
        """Zero: nobody has moved yet."""
        return (w * 0.0,)

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """The mean and its correction."""
        h = memory[0] - self.alpha * update
        return w + update - h / self.alpha, (h,)
