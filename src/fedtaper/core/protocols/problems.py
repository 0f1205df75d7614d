"""What a problem promises, and what richer kinds of problem add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import getattr_static
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeGuard,
    get_args,
    runtime_checkable,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import shown
from fedtaper.core.errors import FedtaperError

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
ProblemKind = Literal["linear", "quadratic", "stream", "moving", "network", "gradient", "recorded"]
Unit = Literal["update", "epoch", "round"]  # what a clock counts


@runtime_checkable
class Problem(Protocol):
    """What the clients minimise: enough for the reference engine to train on it.

    ``kind`` states which of the richer protocols it also fulfils: "linear"
    (:class:`LinearProblem`), "quadratic" (:class:`QuadraticProblem`), "stream"
    (:class:`StreamProblem` and :class:`QuadraticProblem`), "moving" (:class:`StreamProblem`),
    "network" (:class:`NetworkProblem`), "gradient" (this one alone), or "recorded" (sizes only: it
    can be reported, not trained).
    """

    kind: ClassVar[ProblemKind]
    default_clock: ClassVar[Unit]  # what the clock counts where ``local_epochs`` are given

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        ...

    @property
    def dim(self) -> int:
        """How many parameters the model has."""
        ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many samples each client holds."""
        ...

    def initial(self, seed: int) -> Array:
        """The shared model before round 1, as one vector."""
        ...

    def batches(self, e: Experiment, seed: int, client: int, round_: int) -> Iterable[Any]:
        """One client's mini-batches in one round (from 0), drawn by (seed, client, round)."""
        ...

    def every_sample(self, client: int) -> Any:
        """All of a client's samples as one batch."""
        ...

    def gradient(self, client: int, w: Array, batch: Any) -> Array:
        """The gradient of the batch's mean loss at w, in double precision."""
        ...

    def metrics(self, w: Array, p_n: Array, p: Array) -> Mapping[str, Array]:
        """Named values along trajectories w, (seeds, rounds, dim) -> (seeds, rounds)."""
        ...


def missing_parts(thing: Any, protocol: type = Problem) -> list[str]:
    """The parts of a protocol that an object of the user's lacks, for a message.

    >>> missing_parts(3)[:2]
    ['kind', 'default_clock']
    """
    parts = [name for name in (*protocol.__annotations__, *vars(protocol)) if name[0] != "_"]
    nothing = object()
    looked = {part: getattr_static(thing, part, nothing) for part in parts}  # computes no property
    # not found so, it may still be passed on by the object's own __getattr__
    return [part for part in parts if looked[part] is nothing and not hasattr(thing, part)]


def checked_problem(what: str, value: Any) -> Problem:
    """The value, or an error that says what it lacks to be a problem."""
    # the one place that looks at an unknown object: what it says of itself, nothing else
    kind = getattr_static(value, "kind", None)
    if isinstance(value, type) or not (isinstance(kind, str) and kind in get_args(ProblemKind)):
        raise FedtaperError(
            f"{what} must be a problem such as LinearRegression() or Custom(...), not "
            f"{shown(value)}; a problem of your own must fulfil fedtaper.core.protocols.Problem"
        )
    missing = [] if kind == "recorded" else missing_parts(value)  # that one has only sizes
    if missing:
        raise FedtaperError(
            f"{what}: {type(value).__name__} is not a problem yet: it has no "
            f"{', '.join(missing[:3])}; a problem of your own must fulfil "
            "fedtaper.core.protocols.Problem"
        )
    found: Problem = value
    return found


@runtime_checkable
class QuadraticProblem(Problem, Protocol):
    """A problem whose clients' losses are quadratic, so that equilibria have a closed form."""

    @property
    def moments(self) -> tuple[Array, Array, Array]:
        """A (L, d, d), b (L, d) and c (L,): client i's loss is w'A w / 2 - b'w + c / 2."""
        ...

    @property
    def curvature(self) -> Array:
        """The largest eigenvalue of each client's A."""
        ...

    def mean_field(self, w: Array) -> Array:
        """Minus every client's gradient at w, (L, d)."""
        ...

    def equilibrium(self, p: ArrayLike) -> Array:
        """The minimiser of sum p_i f_i, (..., d) for influences (..., L)."""
        ...


@runtime_checkable
class LinearProblem(QuadraticProblem, Protocol):
    """Least squares on rows of numbers: what the compiled engine runs."""

    @property
    def rows(self) -> Array:
        """All clients' samples stacked, one row (x, y) per sample."""
        ...


@runtime_checkable
class NetworkProblem(Problem, Protocol):
    """A torch module and data: what the network engines need to train it fast."""

    @property
    def in_memory(self) -> bool:
        """Whether ``take`` picks rows of tensors in memory, so that it can take any number."""
        ...

    def module(self) -> Any:
        """A fresh ``torch.nn.Module``."""
        ...

    def take(self, client: int, batch: Any, dtype: Any = None) -> tuple[Any, ...]:
        """A mini-batch of ``batches`` as tensors."""
        ...

    def batch_loss(self, module: Any, *batch: Any) -> tuple[Any, Any]:
        """The batch's mean loss, and the share of correct answers or None."""
        ...

    def scores(self, module: Any) -> dict[str, float]:
        """Named numbers about the shared model, once per round."""
        ...


@runtime_checkable
class StreamProblem(Problem, Protocol):
    """Least squares on Gauss-Markov features that are made as they are needed.

    Kind "stream" where the population stays (it is then a :class:`QuadraticProblem` too), and
    "moving" where it does not.
    """

    @property
    def curvature(self) -> Array:
        """The largest curvature of each client's population."""
        ...

    @property
    def rhos(self) -> Array:
        """Each client's correlation from one sample to the next."""
        ...

    @property
    def spreads(self) -> Array:
        """Standard deviation of each client's features."""
        ...

    @property
    def noise(self) -> Array:
        """Standard deviation of each client's noise."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Samples in a block of each client's process."""
        ...

    def targets(self, first: int, last: int) -> Array:
        """True parameters in those rounds (from 0), (rounds, L, d), or (1, L, d) if they stay."""
        ...


def as_stream(problem: Problem) -> StreamProblem:
    """The problem as a stream, or an error."""
    if is_stream(problem) and isinstance(problem, StreamProblem):
        return problem
    raise FedtaperError(
        f"this needs a stream such as RegressionStream(), not {type(problem).__name__}"
    )


def is_stream(problem: Problem) -> TypeGuard[StreamProblem]:
    """Whether samples are made as they are needed, so that none is used twice."""
    return problem.kind in ("stream", "moving")


def is_quadratic(problem: Problem) -> TypeGuard[QuadraticProblem]:
    """Whether equilibria and curvatures have a closed form."""
    return problem.kind in ("linear", "quadratic", "stream")


def is_network(problem: Problem) -> TypeGuard[NetworkProblem]:
    """Whether the model is a torch module."""
    return problem.kind == "network"


def as_quadratic(problem: Problem) -> QuadraticProblem:
    """The problem as a quadratic one, or an error."""
    if is_quadratic(problem):
        return problem
    raise FedtaperError(
        f"{type(problem).__name__} has no closed-form equilibrium: this needs a quadratic problem "
        "such as LinearRegression()"
    )


def as_linear(problem: Problem) -> LinearProblem:
    """The problem as least squares on rows, or an error."""
    if problem.kind == "linear" and isinstance(problem, LinearProblem):
        return problem
    raise FedtaperError(f"this needs LinearRegression(), not {type(problem).__name__}")


def as_network(problem: Problem) -> NetworkProblem:
    """The problem as a torch module and data, or an error."""
    if is_network(problem):
        return problem
    raise FedtaperError(
        f"this needs a problem with a torch module such as Custom(...), not "
        f"{type(problem).__name__}"
    )
