"""What is to be run: the problem, the step sizes, the rules and their sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import check_whole, per_client
from fedtaper.core.errors import FedtaperError
from fedtaper.core.influence import ClientGroup, Influence, reference_client
from fedtaper.core.participation import Chances, Participation
from fedtaper.core.protocols import LocalRule, Problem, ServerRule, Unit, is_stream
from fedtaper.core.schedules import step_sizes
from fedtaper.core.sums import summed
from fedtaper.core.tables import html
from fedtaper.experiment import checks, influences
from fedtaper.rules import arrivals
from fedtaper.rules.asynchronous import Asynchronous
from fedtaper.rules.challenges import Challenges
from fedtaper.rules.delays import Delay, as_delays
from fedtaper.rules.fields import ByClient, PerClient
from fedtaper.rules.local import Sgd
from fedtaper.rules.server import Average
from fedtaper.rules.staleness import Staleness, Undiscounted
from fedtaper.rules.steering import Steering

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Experiment:
    """A federation to simulate: problem, step sizes, rules and sizes.

    Args:
        problem: what the clients minimise.
        schedules: one per client, or a single one for all.
        rounds: how many aggregations.
        local_steps: local updates of a client between two aggregations (N): one, or one for
            each. Or ``local_epochs``, passes over the client's own data.
        batch_size: samples in a mini-batch (m).
        local: a client's rule.
        server: the server's rule.
        clock: what the schedules' n counts: local updates ("update"), local epochs ("epoch",
            the default for networks with local_epochs) or rounds ("round"). It never
            restarts. Where clients make different numbers of updates in a round, the clock
            advances by the largest.
        participation: chance that a client takes part in a round: one, or one for each; or a
            pattern such as ``Exactly(k)``.
        average_over: "all" clients, so that an absent client adds nothing and the shared model
            moves less (as in the theorem); or those "present", the mean over participants
            that is usual for FedAvg.
        behaviours: for clients that do not send what they declared, what they do instead, such
            as ``{3: Idle()}``, to test an audit. Schedules and influence are still the declared
            ones.
        challenges: earlier models that are sent again, so that an audit works for any model.
        delays: by how many rounds the clients' updates are late (made from the model of that
            many rounds ago): a number or a delay such as ``RandomDelay(mean=5)``, one or one for
            each.
        asynchronous: a server that waits for nobody, such as ``Asynchronous(buffer=3)``. A round
            is then an aggregation.
        staleness: how much an update counts that was made from an older model.
        own_clock: whether a client's clock counts its own rounds instead of the federation's.
        steering: scales that move during training, towards a fairness goal.
        seed: of the run: first model, mini-batches, participation, delays, arrivals.
        names: of the clients, one each, for tables, plots and files.

    >>> import fedtaper as ft
    >>> e = ft.Experiment(ft.LinearRegression(), ft.Power(0.1, 0.76), rounds=10, local_steps=5)
    >>> e.clock_values(2, 3)[0, :, 0]
    array([11., 12., 13., 14., 15.])
    """

    problem: Problem
    schedules: PerClient = PerClient()  # noqa: RUF009 (a descriptor)
    rounds: int  # type: ignore[misc]  # schedules has no default either
    local_steps: int | tuple[int, ...] | None = None
    local_epochs: int | None = None
    batch_size: int = 50
    local: LocalRule = field(default_factory=Sgd)
    server: ServerRule = field(default_factory=Average)
    clock: Unit | None = None
    participation: float | tuple[float, ...] | Participation = 1.0
    behaviours: ByClient = ByClient()  # noqa: RUF009
    challenges: Challenges | None = None
    delays: int | Delay | tuple[int | Delay, ...] | None = None
    asynchronous: Asynchronous | None = None
    staleness: Staleness = field(default_factory=Undiscounted)
    own_clock: bool = False
    seed: int = 0
    average_over: Literal["all", "present"] = "all"
    names: tuple[str, ...] | None = None
    steering: Steering | None = None

    def __post_init__(self) -> None:
        checks.prepare(self)

    def __repr__(self) -> str:
        """The experiment in one line; ``ft.to_toml`` gives every setting."""
        epochs = f"{self.local_epochs} epoch{'s' * (self.local_epochs != 1)}"
        work = epochs if self.local_steps is None else "local steps"
        if isinstance(self.local_steps, int):
            work = f"{self.local_steps} steps"
        tapers = list(dict.fromkeys(schedule.formula for schedule in self.schedules))
        more = f" and {len(tapers) - 2} more" if len(tapers) > 2 else ""
        problem = type(self.problem).__name__
        return (
            f"Experiment({problem}, {self.num_clients} clients, {self.rounds} rounds of {work}, "
            f"batches of {self.batch_size}, a = {', '.join(tapers[:2])}{more}, {self.local!r}, "
            f"{self.server!r})"
        )

    def _repr_html_(self) -> str:
        rows = [["clients", "step size", "influence", "in the limit"]]
        rows += [[g.who, g.taper, f"{g.effective:.4g}", f"{g.limit:.4g}"] for g in self.groups()]
        return html(repr(self), rows)

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return int(self.problem.num_clients)

    def name(self, client: int) -> str:
        """A client in words: its name, or "client 3"."""
        return f"client {client}" if self.names is None else self.names[client]

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Local updates of each client in a round."""
        if self.local_epochs is not None:
            return self.local_epochs * self._batches
        assert self.local_steps is not None
        return per_client("local_steps", self.local_steps, self.num_clients).astype(np.int64)

    @cached_property
    def _batches(self) -> NDArray[np.int64]:
        """Mini-batches in an epoch of each client."""
        return -(-np.asarray(self.problem.sizes) // self.batch_size)

    @property
    def period(self) -> int:
        """By how much the clock advances in a round (N, in the clock's unit)."""
        if self.clock == "round":
            return 1
        if self.clock == "epoch":
            assert self.local_epochs is not None
            return self.local_epochs
        return int(self.steps.max())

    def clock_values(self, first: int, last: int) -> Array:
        """The clock n of each local update in rounds first to last - 1 (counted from 0).

        Shape (rounds, updates, 1), or (rounds, updates, L) where clients differ.
        """
        return self._clock_from(np.arange(first, last, dtype=np.float64) * self.period)

    def _clock_from(self, start: Array) -> Array:
        """The clock of each local update in rounds before which it stood at ``start``."""
        start = start[:, None, None] if start.ndim == 1 else start[:, None, :]
        update = np.arange(int(self.steps.max()))[None, :, None]
        if self.clock == "round":
            return start + 1 + 0 * update
        if self.clock == "epoch":
            own = np.minimum(update // self._batches[None, None, :], self.period - 1)
            return start + 1 + own
        return start + 1 + update

    def step_sizes(self, first: int, last: int) -> Array:
        """a_n of each local update in those rounds, (rounds, updates, L); 0 for no update."""
        return self._steps_at(self.clock_values(first, last))

    def round_step_sizes(self, n: float) -> Array:
        """a_n of each local update of a round before which the clock stands at n, (updates, L)."""
        return self._steps_at(self._clock_from(np.array([float(n)])))[0]

    def _steps_at(self, clock: Array) -> Array:
        a = step_sizes(self.schedules, clock)
        made = np.arange(a.shape[1])[:, None] < self.steps[None, :]
        return a if made.all() else a * made

    def steps_around(self, n: ArrayLike, own: bool = True) -> Array:
        """Step sizes of a round that is centred at clock n, (len(n), updates, L).

        A client with its own clock has counted only its share of n.
        """
        clock = np.asarray(n, dtype=np.float64).ravel()
        start = np.maximum(clock - self.period / 2, 0.0)
        if self.own_clock and own:
            return self._steps_at(self._clock_from(start[:, None] * self.counts))
        return self._steps_at(self._clock_from(start))

    def step_sums(self, first: int, last: int) -> Array:
        """Sum of each client's step sizes in each of those rounds, (rounds, L)."""
        many = influences.CHUNK
        parts = [(k, min(k + many, last)) for k in range(first, last, many)] or [(first, first)]
        return np.concatenate([summed(self.step_sizes(*part)) for part in parts])

    def server_weights(self, step_sums: Array) -> Array:
        """The server's weight of each client in rounds with these step sums, (rounds, L)."""
        samples = np.asarray(self.problem.sizes, dtype=np.float64)
        return self.server.weights(samples, self.steps.astype(np.float64), step_sums)

    def round_weights(self, first: int, last: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
        """The server's weights as they are used in those rounds, and who takes part."""
        weights = self.server_weights(self.step_sums(first, last))
        present = self.present(first, last, seed)
        if self.average_over == "present" and not present.all():
            there = (weights * present).sum(axis=1, keepdims=True)
            weights = weights * weights.sum(axis=1, keepdims=True) / np.where(there > 0, there, 1.0)
        return weights, present

    def present(self, first: int, last: int, seed: int) -> NDArray[np.bool_]:
        """Who takes part in those rounds, (rounds, L)."""
        return self.pattern.present(first, last, seed, self.num_clients)

    @cached_property
    def pattern(self) -> Participation:
        """Who takes part, as a pattern."""
        given = self.participation
        if isinstance(given, type):
            raise FedtaperError(
                f"participation must be a chance, or a pattern such as Exactly(3), not {given!r}"
            )
        return given if isinstance(given, Participation) else Chances(given)

    @cached_property
    def rates(self) -> Array:
        """Participation of each client: the share of rounds in which it takes part."""
        return self.pattern.rates(self.num_clients)

    @cached_property
    def batch_sizes(self) -> NDArray[np.int64]:
        """Samples in each client's mini-batches: at most all it has; a stream never runs out."""
        if is_stream(self.problem):  # sizes are nominal there
            return np.full(self.num_clients, self.batch_size)
        return np.minimum(self.batch_size, np.asarray(self.problem.sizes))

    @property
    def in_step(self) -> bool:
        """Whether every update is made from its own round's model and clock."""
        return self.delays is None and self.asynchronous is None and not self.own_clock

    @cached_property
    def late_by(self) -> tuple[Delay, ...] | None:
        """Each client's delay, if ``delays`` are given."""
        return as_delays(self.delays, self.num_clients)

    def arrivals(self, seed: int) -> arrivals.Arrivals:
        """Which updates every round adds, from which models."""
        discount, own = self.staleness, self.own_clock
        if self.asynchronous is not None:
            count, rounds = self.num_clients, self.rounds
            return arrivals.arriving(self.asynchronous, count, rounds, discount, own, seed)
        present = self.present(0, self.rounds, seed)
        return arrivals.late(present, self.late_by, discount, own, seed)

    @cached_property
    def counts(self) -> Array:
        """How many updates of each client a round adds in the long run, (L,)."""
        if self.asynchronous is not None:
            return self.asynchronous.arrival_rates(self.num_clients)
        return self.rates

    @cached_property
    def weighted_counts(self) -> Array:
        """Like :attr:`counts`, each update times its staleness weight, (L,)."""
        if self.asynchronous is not None:
            mean = arrivals.mean_factors(self.asynchronous, self.num_clients, self.staleness)
        else:
            mean = arrivals.mean_factors_late(self.late_by, self.staleness, self.num_clients)
        return self.counts * mean

    @property
    def reference(self) -> int:
        """Of the clients that take part, the one with the largest step sizes in the limit."""
        return reference_client(self.schedules, self.counts)

    def field_weights(self, n: ArrayLike) -> Array:
        """The weight of each client's mean field in the ODE's right side at clock n, (..., L).

        Server weight times participation times step sum, over the reference client's step
        sum: (1/L) p_n for the plain mean.
        """
        return influences.field_weights(self, n)

    @property
    def limit_field_weights(self) -> Array:
        """The limit of :meth:`field_weights`: (1/L) p for the plain mean, (L,)."""
        return influences.limit_field_weights(self)

    def local_drift(self, n: ArrayLike) -> Array:
        """How far, in step sizes, a client has moved by itself when it updates, (..., L).

        The mean over a round's updates, each weighted by how much its gradient counts, of the
        sum of the step sizes before it: about half of the round's sum. With momentum each step
        size is multiplied by the velocity that gradients of 1 have built up until then.
        """
        return influences.local_drift(self, n)

    def effective_influence(self, first: int, last: int) -> Array:
        """Effective influence in rounds first to last - 1 (counted from 0), (rounds, L).

        Server weight times participation times sum of step sizes, divided by the same of the
        reference client: the weights of the clients' mean fields in the ODE at finite n.
        """
        return influences.effective_influence(self, np.arange(first, last))

    @property
    def limit_influence(self) -> Array:
        """The limit of :meth:`effective_influence`: p with the other factors, (L,)."""
        p = self.limit_field_weights / self.limit_field_weights[self.reference]
        return np.asarray(p, dtype=np.float64)

    def influence(self, round: int | None = None) -> Influence:
        """Effective influence in one round (from 1; default the last), and each of its factors."""
        k = self.rounds if round is None else round
        check_whole("round", k)
        return influences.in_round(self, k)

    def groups(self, round: int | None = None) -> list[ClientGroup]:
        """Groups of clients with the same influence in one round (from 1; default the last)."""
        return influences.groups(self, round)
