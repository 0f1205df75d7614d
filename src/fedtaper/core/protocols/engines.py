"""What an engine promises, and the records that pass between it and the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.protocols.problems import Array, ProblemKind

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment


PRECISIONS = ("bf16", "float32")


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
    steering: bool = False  # scales that move while it trains, by the clients' losses
    precisions: tuple[str, ...] = ()  # besides the default; () where there is no choice
    devices: tuple[str, ...] = ("cpu",)
    memory_at_sites: bool = False  # clients' memories stay where they are made
    ways: tuple[str, ...] = ()  # of training a network's clients; () where there is no choice
    statistics: bool = False  # averages BatchNorm's running statistics with the weights
    saves_each_round: bool = False  # rounds too dear to lose one: a checkpoint after each


@dataclass(frozen=True)
class Options:
    """What a caller of ``run`` asks of an engine, besides the experiment."""

    updates: bool = False
    many_seeds: bool = False
    precision: str | None = None
    device: str | None = None
    way: str | None = None


@dataclass(frozen=True)
class Way:
    """How a network engine trains the clients, where it has a choice: a resumed run keeps it.

    >>> Way.read(str(Way("stacked", 5, "as asked", "float32")))
    Way(name='stacked', lanes=5, why='as asked', precision='float32')
    """

    name: str
    lanes: int = 1  # that are trained at once
    why: str = ""
    precision: str = ""  # if that is not the engine's usual one

    def __str__(self) -> str:
        """One line, as checkpoints have it."""
        exact = f" in {self.precision}" if self.precision else ""
        return f"{self.name} {self.lanes} {self.why}{exact}"

    @classmethod
    def read(cls, text: str) -> Way:
        """The way that a checkpoint has; without lanes if it is none."""
        name, lanes, why = [*text.split(" ", 2), "", ""][:3]
        words, _, precision = why.rpartition(" in ")
        if precision not in PRECISIONS:
            words, precision = why, ""
        return cls(name, int(lanes) if lanes.isdigit() else 0, words, precision)


@dataclass
class State:
    """The state of a batch of runs: all that the next round needs, and nothing else."""

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
    sites: NDArray[np.int64] | None = None  # or, (seeds, L, 3), which ones the sites have kept
    way: Way | None = None  # of training the clients, once it is chosen


@dataclass
class Block:
    """What an engine returns for a stretch of rounds."""

    w: Array | None  # (seeds, rounds, d); None where the model is large
    update_norms: Array  # (seeds, rounds, L)
    metrics: dict[str, Array] | None = None  # each (seeds, rounds); None: computed from w
    updates: Array | None = None  # (seeds, rounds, L, d), if asked for
    notes: dict[str, Array] = field(default_factory=dict)  # further metrics, in either case


class Session(Protocol):
    """An experiment under way on an engine."""

    def advance(self, rounds: int) -> Block:
        """Advance every seed by this many rounds."""
        ...

    def answers(self, s: int, clients: list[int], model: Array, round_: int, a: Array) -> Array:
        """What clients send back for any model, (len(clients), d), for the seed in row s.

        Each makes one local update per row of ``a`` (updates, L), with the mini-batches of round
        ``round_`` (from 0); 0 is no update. NaN where nothing came back. The State is not
        changed. Called only on engines whose capabilities include challenges.
        """
        ...

    def sync(self) -> None:
        """Bring the :class:`State` up to date with what is held elsewhere."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


@runtime_checkable
class Steerable(Protocol):
    """What a session also does if its engine's capabilities include steering."""

    def losses(self, s: int) -> Array:
        """Every client's loss on its own samples at the shared model of row s, (L,).

        NaN where a client did not report one.
        """
        ...

    def steer(self, experiment: Experiment) -> None:
        """Continue with this experiment, which differs only in its schedules.

        They are :class:`fedtaper.core.scaled.Scaled`: the old ones, times a factor from the
        next round on.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """A way to run an experiment."""

    name: str
    capabilities: Capabilities

    def check(self) -> None:
        """Raise a :class:`FedtaperError` if the engine is not installed or has no device."""
        ...

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """How many rounds to make between two looks at the clock: a fraction of a second."""
        ...

    def open(self, experiment: Experiment, state: State, options: Options) -> Session:
        """Start a session that advances ``state``."""
        ...
