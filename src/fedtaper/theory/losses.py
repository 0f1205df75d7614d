"""Every client's loss on all its samples, with gradients and curvatures, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Problem, as_linear, checked_problem, is_network, is_quadratic
from fedtaper.problems.quadratic import losses
from fedtaper.theory.convexity import refuse_bent, refuse_random
from fedtaper.theory.network_losses import TorchLosses, loss_spread, sample_covariance

Array = NDArray[np.float64]
LARGEST = 2000  # parameters: Newton's method keeps their square in memory


class Functions(Protocol):
    """One function of the shared model w, (d,), per client: all that a solver asks."""

    @property
    def clients(self) -> int:
        """How many clients."""
        ...

    @property
    def dim(self) -> int:
        """How many parameters."""
        ...

    def values(self, w: Array) -> Array:
        """Each client's loss, (L,)."""
        ...

    def gradients(self, w: Array) -> Array:
        """Each client's gradient, (L, d)."""
        ...

    def hessian(self, w: Array, weights: Array) -> Array:
        """The Hessian of sum weights_i f_i, (d, d)."""
        ...


class Losses(Functions, Protocol):
    """The clients' losses as functions of the shared model, and how their samples scatter."""

    def hessians(self, w: Array) -> Array:
        """Each client's Hessian, (L, d, d)."""
        ...

    def noise(self, w: Array) -> Array:
        """Covariance of the gradient of one sample drawn at random, (L, d, d)."""
        ...

    def spread(self, w: Array) -> tuple[Array, Array]:
        """Variance of one sample's loss, (L,), and its covariance with the gradient, (L, d)."""
        ...

    def accuracies(self, w: Array) -> Array | None:
        """Each client's share of correct answers, if the problem has one, (L,)."""
        ...


def losses_of(problem: Problem) -> Losses:
    """The losses of a problem: in closed form where they are quadratic, by torch otherwise."""
    checked_problem("problem", problem)
    if is_quadratic(problem):
        return QuadraticLosses(problem)
    _refuse_recorded(problem)
    if not is_network(problem):
        raise FedtaperError(
            f"outcomes need the clients' losses: {type(problem).__name__} is neither quadratic "
            "nor has it a torch module; use LinearRegression or Custom"
        )
    if problem.dim > LARGEST:
        raise FedtaperError(
            f"a model of {problem.dim:,} parameters is too large to solve exactly "
            f"(at most {LARGEST:,})"
        )
    found = TorchLosses(problem)
    first = np.asarray(problem.initial(0), dtype=np.float64)
    refuse_random(found, first)
    refuse_bent(found, first)
    return found


def evaluated(problem: Problem) -> QuadraticLosses | TorchLosses:
    """The losses of any model, convex or not, in evaluation mode: to be evaluated, not solved."""
    if is_quadratic(problem):
        return QuadraticLosses(problem)
    _refuse_recorded(problem)
    if not is_network(problem):
        raise FedtaperError(
            f"this needs the clients' losses: {type(problem).__name__} is neither quadratic nor "
            "has it a torch module"
        )
    return TorchLosses(problem, evaluating=True)


def _refuse_recorded(problem: Problem) -> None:
    if problem.kind == "recorded":
        raise FedtaperError(
            "the clients' losses are needed, and of a model and data of your own a run folder "
            "holds only the sizes: pass the problem, ft.load(folder, problem=...)"
        )


@dataclass(frozen=True)
class QuadraticLosses:
    """w'A w / 2 - b'w + c / 2 for each client."""

    problem: Any

    @property
    def clients(self) -> int:
        """How many clients."""
        return int(self.problem.num_clients)

    @property
    def dim(self) -> int:
        """How many parameters."""
        return int(self.problem.dim)

    def values(self, w: Array) -> Array:
        """Each client's loss: (..., L) for models (..., d)."""
        return losses(self.problem.moments, w)

    def gradients(self, w: Array) -> Array:
        """A w - b."""
        a, b, _ = self.problem.moments
        return np.asarray(a @ w - b)

    def hessian(self, w: Array, weights: Array) -> Array:
        """The weighted sum of A."""
        return np.asarray(np.tensordot(weights, self.problem.moments[0], axes=1))

    def hessians(self, w: Array) -> Array:
        """A."""
        return np.asarray(self.problem.moments[0])

    def noise(self, w: Array) -> Array:
        """Covariance of x (x'w - y) over a client's samples."""
        return np.stack([sample_covariance(x * (x @ w - y)[:, None]) for x, y in self._samples()])

    def spread(self, w: Array) -> tuple[Array, Array]:
        """Of (x'w - y)^2 / 2 over a client's samples."""
        off = [(x, x @ w - y) for x, y in self._samples()]
        return loss_spread([0.5 * r**2 for _, r in off], [x * r[:, None] for x, r in off])

    def _samples(self) -> list[tuple[Array, Array]]:
        """Each client's samples; for a stream, some that represent its population."""
        problem = self.problem
        if problem.kind == "stream":
            if np.any(problem.rhos > 0):
                raise FedtaperError(
                    "the samples of this stream depend on those before them (rho above 0), which "
                    'a plug-in covariance does not know: use --method scaling (method="scaling")'
                )
            return [problem.every_sample(i) for i in range(self.clients)]
        cuts = np.cumsum(problem.sizes)[:-1]
        parts = np.split(as_linear(problem).rows, cuts)
        return [(part[:, :-1], part[:, -1]) for part in parts]

    def accuracies(self, w: Array) -> Array | None:
        """None: regression has no answers to be correct."""
        return None
