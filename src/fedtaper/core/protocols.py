"""The contract: what problems, rules, schedules and engines promise one another.

Everything that can be exchanged is described here, and nowhere else. Nothing in the package
asks an object which attributes it happens to have: a problem says its ``kind``, a rule says
what it keeps, an engine says its ``capabilities``, and one gate (``engines/gate.py``) compares
what is asked with what can be done. ``fedtaper.testing`` checks an implementation against its
protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
Memory = tuple[Any, ...]  # what a rule remembers: arrays of the model's shape
ProblemKind = Literal["linear", "quadratic", "stream", "moving", "network", "gradient", "recorded"]
Keeps = Literal["nothing", "round", "run"]
Unit = Literal["update", "epoch", "round"]  # what a clock counts


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


@runtime_checkable
class Problem(Protocol):
    """What the clients minimise: enough for the reference engine to train on it.

    ``kind`` says which of the richer protocols it also fulfils: "linear"
    (:class:`LinearProblem`), "quadratic" (:class:`QuadraticProblem`), "network"
    (:class:`NetworkProblem`), "gradient" (this one alone), or "recorded" (sizes only: it can be
    reported, not trained).
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
        """All clients' samples below one another, one row (x, y) per sample."""
        ...


@runtime_checkable
class NetworkProblem(Problem, Protocol):
    """A torch module and data: what the network engines need to train it quickly."""

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
class CorrelatedProblem(Protocol):
    """A problem whose clients' samples depend on those before them."""

    @property
    def correlation(self) -> float:
        """Between two neighbouring samples of a client, 0 for independent ones."""
        ...


@runtime_checkable
class StreamProblem(Problem, Protocol):
    """Least squares on Gauss-Markov features that are made as they are needed.

    Kind "stream" where the population stays (it is then a :class:`QuadraticProblem` too), and
    "moving" where it does not.
    """

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
    """The problem as a stream, or a refusal in one line."""
    if problem.kind in ("stream", "moving") and isinstance(problem, StreamProblem):
        return problem
    raise FedtaperError(f"{type(problem).__name__} is not a stream, which this needs")


def is_quadratic(problem: Problem) -> TypeGuard[QuadraticProblem]:
    """Whether equilibria and curvatures have a closed form."""
    return problem.kind in ("linear", "quadratic", "stream")


def is_network(problem: Problem) -> TypeGuard[NetworkProblem]:
    """Whether the model is a torch module."""
    return problem.kind == "network"


def as_quadratic(problem: Problem) -> QuadraticProblem:
    """The problem as a quadratic one, or a refusal in one line."""
    if is_quadratic(problem):
        return problem
    raise FedtaperError(
        f"{type(problem).__name__} has no closed-form equilibrium: this needs linear regression"
    )


def as_linear(problem: Problem) -> LinearProblem:
    """The problem as least squares on rows, or a refusal in one line."""
    if problem.kind == "linear" and isinstance(problem, LinearProblem):
        return problem
    raise FedtaperError(f"{type(problem).__name__} is not linear regression, which this needs")


def as_network(problem: Problem) -> NetworkProblem:
    """The problem as a torch module and data, or a refusal in one line."""
    if is_network(problem):
        return problem
    raise FedtaperError(f"{type(problem).__name__} has no torch module, which this needs")


@runtime_checkable
class LocalRule(Protocol):
    """What a client does with a mini-batch gradient. Plain arithmetic: NumPy and torch alike.

    A rule without memory needs ``direction`` alone; subclass :class:`fedtaper.Memoryless` to
    have the rest filled in, or :class:`fedtaper.Remembering` for a rule with memory.
    """

    @property
    def added_curvature(self) -> float:
        """What the rule adds to a client's curvature (FedProx: mu)."""
        ...

    @property
    def gain(self) -> float:
        """What a long run of equal gradients is multiplied by (momentum: 1 / (1 - beta))."""
        ...

    @property
    def keeps(self) -> Keeps:
        """How long a client's memory lives: not at all, for a round, or for the run."""
        ...

    @property
    def rescales(self) -> bool:
        """Whether steps are scaled coordinate by coordinate (AdamW)."""
        ...

    @property
    def receives(self) -> int:
        """How many vectors the server sends along with the model (SCAFFOLD: 1)."""
        ...

    def init(self, w: Any) -> Memory:
        """A client's memory before its first update."""
        ...

    def begin(self, memory: Memory, sent: Memory) -> Memory:
        """The memory as a round starts, with what the server sent along."""
        ...

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """One local update with step size a; ``anchor`` is the model the round started from."""
        ...

    def finish(self, w: Any, anchor: Any, step_sum: float, memory: Memory) -> Memory:
        """The memory that is kept after a round that ended at w."""
        ...

    def counts(self, a: Array) -> Array:
        """How much each gradient of a round counts in all, from step sizes (..., updates, L)."""
        ...

    def influence(self, weight: Array, rate: Array, sums: Array) -> Array:
        """What weighs each client's mean field in the expected step, (..., L).

        From the server's weights, the rates of participation, and the sums of :meth:`counts`.
        """
        ...


@runtime_checkable
class ServerRule(Protocol):
    """What the server does with the clients' updates: weights first, then one step.

    Subclass :class:`fedtaper.PlainServer` to have all but ``weights`` filled in.
    """

    @property
    def rescales(self) -> bool:
        """Whether steps are scaled coordinate by coordinate (FedAdam and its kin)."""
        ...

    @property
    def erases_influence(self) -> bool:
        """Whether the weights undo the step sizes (FedNova by step sums)."""
        ...

    @property
    def gain(self) -> float:
        """What a long run of equal updates is multiplied by (server momentum: 1 / (1 - beta))."""
        ...

    @property
    def travels(self) -> int:
        """How many vectors of its memory, the first ones, are sent along with the model."""
        ...

    def weights(self, samples: Array, steps: Array, step_sums: Array) -> Array:
        """Each client's weight per round; ``step_sums`` is (rounds, L), and so is the result."""
        ...

    def init(self, w: Any) -> Memory:
        """The server's memory before round 1."""
        ...

    def step(self, w: Any, update: Any, memory: Memory) -> tuple[Any, Memory]:
        """The next model from the weighted sum of the clients' updates."""
        ...

    def learn(self, update: Any, step_sum: float, share: float, memory: Memory) -> Memory:
        """The memory after a round (after :meth:`step`), for rules that need to know more.

        ``step_sum`` is the weighted sum of the participants' step sums, ``share`` how much of
        all clients' influence took part.
        """
        ...


@runtime_checkable
class CombiningRule(ServerRule, Protocol):
    """A server rule that looks at the single updates, such as a median, not only at their sum."""

    def combine(self, updates: Any, weights: Any) -> Any:
        """What ``step`` gets, from the updates of those who take part, (clients, d)."""
        ...


def is_combining(rule: ServerRule) -> TypeGuard[CombiningRule]:
    """Whether the rule needs every client's update."""
    return isinstance(rule, CombiningRule)


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do, as data: the gate and ``fedtaper engines`` read it."""

    problems: frozenset[ProblemKind]
    local_rules: frozenset[type] | None = None  # None: any rule in plain arithmetic
    server_rules: frozenset[type] | None = None
    stateful_rules: bool = False  # local rules with memory
    combining: bool = False  # server rules that look at single updates: robust means
    updates: bool = False  # records every client's update
    behaviours: bool = False  # simulates clients that misbehave
    participation: bool = True  # clients that are absent in some rounds
    many_seeds: bool = True  # several seeds in one call
    challenges: bool = False  # trains a client from a model of the past, beside the round
    delays: bool = False  # updates that arrive late, and asynchronous aggregation
    precisions: tuple[str, ...] = ()  # besides the default; () where there is no choice
    devices: tuple[str, ...] = ("cpu",)
    saves_each_round: bool = False  # rounds too dear to lose one: a checkpoint after each


@dataclass(frozen=True)
class Options:
    """What a caller of ``run`` asks of an engine, beside the experiment."""

    updates: bool = False
    many_seeds: bool = False
    precision: str | None = None
    device: str | None = None


@dataclass
class State:
    """Where a batch of runs stands: all that the next round needs, and nothing else."""

    round: int
    seeds: NDArray[np.int64]
    w: Array  # (seeds, d)
    memory: tuple[Array, ...]  # the server rule's, each (seeds, d)
    dead_round: NDArray[np.int64]  # (seeds,), 0 while finite, else the round (from 1)
    dead_client: NDArray[np.int64]
    last: Array | None = None  # the clients' last updates, (seeds, L, d), if a client copies them
    keep_updates: bool = False  # whether blocks hold every update
    history: Array | None = None  # models of the last rounds, (seeds, depth, d): k at k % depth
    clients: tuple[Array, ...] = ()  # the local rule's memories, each (seeds, L, ...), if kept


@dataclass
class Block:
    """What a stretch of rounds left behind."""

    w: Array | None  # (seeds, rounds, d); None where the model is large
    update_norms: Array  # (seeds, rounds, L)
    metrics: dict[str, Array] | None = None  # each (seeds, rounds); None: computed from w
    updates: Array | None = None  # (seeds, rounds, L, d), if asked for
    notes: dict[str, Array] = field(default_factory=dict)  # further metrics, in either case


class Session(Protocol):
    """An experiment under way on an engine."""

    def advance(self, rounds: int) -> Block:
        """Move every seed on by so many rounds."""
        ...

    def answers(self, s: int, clients: list[int], model: Array, round_: int, a: Array) -> Array:
        """What clients send back for any model, (len(clients), d), for the seed in row s.

        Each makes one local update per row of ``a`` (updates, L), with the mini-batches of round
        ``round_`` (from 0); 0 is no update. NaN where nothing came back. The State stays as it
        is. Only engines whose capabilities name challenges are asked.
        """
        ...

    def sync(self) -> None:
        """Bring the :class:`State` up to date with what is held elsewhere."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A way to run an experiment."""

    name: str
    capabilities: Capabilities

    def check(self) -> None:
        """Raise a :class:`FedtaperError` where the engine is not installed or has no device."""
        ...

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """How many rounds to make between two looks at the clock: a fraction of a second."""
        ...

    def open(self, experiment: Experiment, state: State, options: Options) -> Session:
        """Get ready to move ``state`` on."""
        ...
