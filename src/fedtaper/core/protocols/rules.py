"""What the clients' and the server's rules promise."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from fedtaper.core.protocols.problems import Array

Memory = tuple[Any, ...]  # what a rule remembers: arrays of the model's shape
Keeps = Literal["nothing", "round", "run"]


@runtime_checkable
class LocalRule(Protocol):
    """What a client does with a mini-batch gradient. Plain arithmetic: NumPy and torch alike.

    A rule without memory needs only ``direction``; subclass :class:`fedtaper.Memoryless` to
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
        """How long a client's memory lasts: not at all, for a round, or for the run."""
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
        """The memory at the start of a round, with the vectors that the server sent."""
        ...

    def step(
        self, w: Any, gradient: Any, anchor: Any, a: Any, memory: Memory
    ) -> tuple[Any, Memory]:
        """One local update with step size a; ``anchor`` is the model the round started from."""
        ...

    def finish(self, w: Any, anchor: Any, step_sum: float, memory: Memory) -> Memory:
        """The memory to keep after a round that ended at w."""
        ...

    def counts(self, a: Array) -> Array:
        """How much each gradient of a round counts in total; ``a`` is (..., updates, L)."""
        ...

    def influence(self, weight: Array, rate: Array, sums: Array) -> Array:
        """The weight of each client's mean field in the expected step, (..., L).

        Computed from the server's weights, the rates of participation, and the sums of
        :meth:`counts`.
        """
        ...


@runtime_checkable
class ServerRule(Protocol):
    """What the server does with the clients' updates: weights first, then one step.

    Subclass :class:`fedtaper.PlainServer` to have all but ``weights`` filled in.
    """

    @property
    def rescales(self) -> bool:
        """Whether steps are scaled coordinate by coordinate (FedAdam and the like)."""
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
        """How many vectors of its memory (the first ones) are sent along with the model."""
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
        """The memory after a round (after :meth:`step`), for rules that need more than that.

        ``step_sum`` is the weighted sum of the participants' step sums, ``share`` the share of
        all clients' influence that took part.
        """
        ...


@runtime_checkable
class CombiningRule(ServerRule, Protocol):
    """A server rule that needs each client's update, not only their sum, such as a median.

    It is no weighted mean, so there is no limit ODE, and no interval, price or contribution.
    """

    def combine(self, updates: Any, weights: Any) -> Any:
        """The update that ``step`` gets, from the participants' updates, (clients, d)."""
        ...


def is_combining(rule: ServerRule) -> TypeGuard[CombiningRule]:
    """Whether the rule needs every client's update."""
    return isinstance(rule, CombiningRule)
