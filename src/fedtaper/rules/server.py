"""Aggregation (Eqn3, second line, and fedopt): what the server does with the clients' updates.

Every rule here has two parts. ``weights`` says how much each client's update counts in a
round; ``init`` and ``step`` turn the weighted sum D of the updates into the next model, state
in, state out. Average and Normalised differ only in their weights, and the FedOpt family only
in its step, so the optimisers take any of the former as their ``mean``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_number, one_of
from fedtaper.core.protocols import Memory
from fedtaper.core.rules import PlainServer

Array = NDArray[np.float64]


def _shares(by: str, samples: Array) -> Array:
    return samples / samples.sum() if by == "samples" else np.full(len(samples), 1 / len(samples))


@dataclass(frozen=True)
class Average(PlainServer):
    """The mean of the clients' models, with equal weights or weights by number of samples."""

    by: Literal["uniform", "samples"] = "uniform"

    def __post_init__(self) -> None:
        one_of("by", self.by, ("uniform", "samples"))

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Equal shares, or shares of the samples; the same every round."""
        return np.broadcast_to(_shares(self.by, samples), step_sums.shape)


@dataclass(frozen=True)
class Normalised(PlainServer):
    """FedNova: each update divided by its number of local steps, times the mean number.

    With equal numbers this is exactly :class:`Average`. ``over="step_sums"`` divides by the
    sum of the step sizes instead: every client then counts the same whatever its schedule,
    which erases the influence that step sizes give.
    """

    by: Literal["uniform", "samples"] = "uniform"
    over: Literal["steps", "step_sums"] = "steps"

    def __post_init__(self) -> None:
        one_of("by", self.by, ("uniform", "samples"))
        one_of("over", self.over, ("steps", "step_sums"))

    @property
    def erases_influence(self) -> bool:  # type: ignore[override]  # computed from a field
        """Dividing by the sums of the step sizes undoes them."""
        return self.over == "step_sums"

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Shares times (mean of the measure) / (the client's own)."""
        share = _shares(self.by, samples)
        own = np.broadcast_to(steps, step_sums.shape) if self.over == "steps" else step_sums
        return share * (own @ share)[:, None] / own


class OfMean(PlainServer):
    """A server rule that weights the clients' updates as a mean does, and then does more.

    Each is a dataclass with ``mean`` as its last field: a field here would come before its others,
    in calls and in the settings that run folders hold.
    """

    mean: Average | Normalised

    @property
    def erases_influence(self) -> bool:  # type: ignore[override]  # computed from a field
        """Whether its mean does."""
        return self.mean.erases_influence

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """The weights of ``mean``."""
        return self.mean.weights(samples, steps, step_sums)


def adagrad(v: Any, update: Any, b2: float) -> Any:
    """The second moment grows by the square: v + D^2."""
    return v + update * update


def adam(v: Any, update: Any, b2: float) -> Any:
    """An exponential mean of the squares: b2 v + (1 - b2) D^2."""
    return b2 * v + (1 - b2) * update * update


def yogi(v: Any, update: Any, b2: float) -> Any:
    """Moves toward the square by a bounded amount: v - (1 - b2) D^2 sign(v - D^2)."""
    square = update * update
    sign = (v > square) * 1.0 - (v < square) * 1.0
    return v - (1 - b2) * square * sign


def momentum(m: Any, update: Any, b1: float) -> Any:
    """The first moment: b1 m + (1 - b1) D."""
    return b1 * m + (1 - b1) * update


def scaled_step(w: Any, m: Any, v: Any, eta: float, tau: float) -> Any:
    """W + eta m / (sqrt(v) + tau)."""
    return w + eta * m / (v**0.5 + tau)


@dataclass(frozen=True)
class _Optimiser(OfMean):
    """Both moments of the mean update D, then a scaled step (Reddi et al. 2021)."""

    eta: float = 0.1
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    mean: Average | Normalised = field(default_factory=Average)
    second: ClassVar[Any]
    rescales: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("eta", "tau"):
            check_number(name, getattr(self, name), above=0.0)
        for name in ("b1", "b2"):
            check_number(name, getattr(self, name), low=0.0, below=1.0)

    def init(self, w: Any) -> Memory:
        """First moment 0; second moment tau^2, as in the FedOpt paper."""
        return w * 0.0, w * 0.0 + self.tau**2

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """Update both moments, then make the scaled step."""
        m, v = memory
        m = momentum(m, update, self.b1)
        v = self.second(v, update, self.b2)
        return scaled_step(w, m, v, self.eta, self.tau), (m, v)


@dataclass(frozen=True)
class Adagrad(_Optimiser):
    """FedAdagrad: v += D^2, no momentum unless b1 is given."""

    b1: float = 0.0
    second = staticmethod(adagrad)


@dataclass(frozen=True)
class Adam(_Optimiser):
    """FedAdam: v = b2 v + (1 - b2) D^2."""

    second = staticmethod(adam)


@dataclass(frozen=True)
class Yogi(_Optimiser):
    """FedYogi: v -= (1 - b2) D^2 sign(v - D^2)."""

    second = staticmethod(yogi)


def velocity(v: Any, update: Any, beta: float) -> Any:
    """What momentum accumulates: beta v + update."""
    return beta * v + update


@dataclass(frozen=True)
class AverageMomentum(OfMean):
    """FedAvgM (Hsu et al. 2019): v = beta v + D, then w + v.

    The shared model moves 1 / (1 - beta) times as fast; ratios of influence do not change.
    """

    beta: float = 0.9
    mean: Average | Normalised = field(default_factory=Average)

    def __post_init__(self) -> None:
        check_number("beta", self.beta, low=0.0, below=1.0)

    @property
    def gain(self) -> float:  # type: ignore[override]  # computed from a field
        """What a long run of equal updates is multiplied by."""
        return 1 / (1 - self.beta)

    def init(self, w: Any) -> Memory:
        """No velocity."""
        return (w * 0.0,)

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """Update the velocity, then move along it."""
        v = velocity(memory[0], update, self.beta)
        return w + v, (v,)
