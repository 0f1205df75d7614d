"""What is to be run: the problem, the step sizes, the rules and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import getattr_static
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_whole, per_client
from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.influence import Influence, checked_schedules, influence, reference_client
from fedtaper.core.protocols import LocalRule, Problem, ProblemKind, ServerRule, Unit
from fedtaper.core.schedules import Schedule, step_sizes
from fedtaper.rules import arrivals
from fedtaper.rules.asynchronous import Asynchronous
from fedtaper.rules.behaviours import Behaviour, checked
from fedtaper.rules.delays import Delay, as_delays
from fedtaper.rules.local import Sgd
from fedtaper.rules.server import Average
from fedtaper.rules.staleness import Staleness, Undiscounted

Array = NDArray[np.float64]
CLOCKS = get_args(Unit)
KINDS = get_args(ProblemKind)


class _PerClient:
    """The field ``schedules``: takes one schedule or one per client, gives one per client."""

    def __get__(self, experiment: Experiment | None, owner: Any = None) -> tuple[Schedule, ...]:
        if experiment is None:
            raise AttributeError("schedules")  # so that the field has no default
        found: tuple[Schedule, ...] = experiment.__dict__["schedules"]
        return found

    def __set__(self, experiment: Experiment, value: Sequence[Schedule] | Schedule) -> None:
        _check_problem(experiment.problem)
        given = tuple(checked_schedules(value))
        alone = isinstance(value, Schedule)
        experiment.__dict__["schedules"] = given * experiment.num_clients if alone else given


class _ByClient:
    """The field ``behaviours``: takes a mapping or pairs, gives sorted pairs."""

    def __get__(
        self, experiment: Experiment | None, owner: Any = None
    ) -> tuple[tuple[int, Behaviour], ...]:
        if experiment is None:
            return ()  # the default
        found: tuple[tuple[int, Behaviour], ...] = experiment.__dict__["behaviours"]
        return found

    def __set__(
        self,
        experiment: Experiment,
        value: Mapping[int, Behaviour] | tuple[tuple[int, Behaviour], ...],
    ) -> None:
        experiment.__dict__["behaviours"] = checked(value, experiment.num_clients)


def _check_problem(problem: Any) -> None:
    # the one place that looks at an unknown object: what it says of itself, nothing else
    if isinstance(problem, type) or getattr_static(problem, "kind", None) not in KINDS:
        raise FedtaperError(
            f"problem must be one such as LinearRegression() or Custom(...), not {problem!r:.80}; "
            "a problem of your own fulfils fedtaper.core.protocols.Problem"
        )


@dataclass(frozen=True)
class Experiment:
    """A federation to simulate: problem, step sizes, rules and their sizes.

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
            moves on by the largest.
        participation: chance that a client takes part in a round: one, or one for each. The
            server's weights stay as they are, so an absent client adds nothing.
        behaviours: what clients do that do not send what they declared, by client, such as
            ``{3: Idle()}``, to test an audit against. Schedules and influence stay those that
            are declared.
        delays: by how many rounds the clients' updates are late, made from the model of that
            many rounds ago: a number or such as ``RandomDelay(mean=5)``, one or one for each.
        asynchronous: a server that waits for nobody, such as ``Asynchronous(buffer=3)``. A round
            is then an aggregation.
        staleness: what an update that was made from an older model still weighs.
        own_clock: whether a client's clock counts its own rounds and not the federation's.
        seed: of the run: first model, mini-batches, participation, delays, arrivals.

    >>> import fedtaper as ft
    >>> e = ft.Experiment(ft.LinearRegression(), ft.Power(0.1, 0.76), rounds=10, local_steps=5)
    >>> e.clock_values(2, 3)[0, :, 0]
    array([11., 12., 13., 14., 15.])
    """

    problem: Problem
    schedules: _PerClient = _PerClient()
    rounds: int  # type: ignore[misc]  # schedules has no default either
    local_steps: int | tuple[int, ...] | None = None
    local_epochs: int | None = None
    batch_size: int = 50
    local: LocalRule = field(default_factory=Sgd)
    server: ServerRule = field(default_factory=Average)
    clock: Unit | None = None
    participation: float | tuple[float, ...] = 1.0
    behaviours: _ByClient = _ByClient()
    delays: int | Delay | tuple[int | Delay, ...] | None = None
    asynchronous: Asynchronous | None = None
    staleness: Staleness = field(default_factory=Undiscounted)
    own_clock: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_parts()
        for name in ("local_steps", "participation"):
            value = getattr(self, name)
            if isinstance(value, (list, np.ndarray)):
                object.__setattr__(self, name, tuple(np.asarray(value).tolist()))
        check_whole("rounds", self.rounds)
        check_whole("batch_size", self.batch_size)
        check_whole("seed", self.seed, low=0)
        if (self.local_steps is None) == (self.local_epochs is None):
            raise FedtaperError("give either local_steps or local_epochs, and not both")
        name = "local_epochs" if self.local_steps is None else "local_steps"
        for value in np.atleast_1d(np.asarray(getattr(self, name))).tolist():
            check_whole(name, value)
        if self.clock is None:
            own = self.problem.default_clock if self.local_epochs else "update"
            object.__setattr__(self, "clock", own)
        if self.clock not in CLOCKS:
            raise FedtaperError(f"clock must be one of {', '.join(CLOCKS)}, not {self.clock!r}")
        if self.clock == "epoch" and self.local_epochs is None:
            raise FedtaperError('clock = "epoch" needs local_epochs in place of local_steps')
        per_client("participation", self.participation, self.num_clients, low=0, high=1)
        self._check_arrivals()
        small = int(np.argmin(self.problem.sizes))
        if self.batch_size > self.problem.sizes[small]:
            raise FedtaperError(
                f"batch_size {self.batch_size} is larger than the data of client {small} "
                f"({self.problem.sizes[small]} samples)"
            )

    def _check_parts(self) -> None:
        """Wrong kinds of problem, rules or schedules, found before anything else is looked at."""
        if len(self.schedules) != self.num_clients:
            raise FedtaperError(
                f"{len(self.schedules)} schedules for {self.num_clients} clients; give one per "
                "client, or a single one for all"
            )
        parts: tuple[tuple[str, Any, type, str], ...] = (
            ("local", self.local, LocalRule, "Sgd() or Proximal(mu=0.1)"),
            ("server", self.server, ServerRule, "Average() or Adam()"),
        )
        for name, rule, kind, such in parts:
            if isinstance(rule, type) or not isinstance(rule, kind):
                raise FedtaperError(
                    f"{name} must be a rule such as {such}, not {rule!r}; published methods are "
                    "in ft.PRESETS, and a rule of your own subclasses ft.Memoryless"
                )

    def _check_arrivals(self) -> None:
        if self.delays is not None:
            object.__setattr__(self, "delays", as_delays(self.delays, self.num_clients))
        if isinstance(self.staleness, type) or not isinstance(self.staleness, Staleness):
            raise FedtaperError(
                f"staleness must be such as Polynomial(0.5), not {self.staleness!r}"
            )
        for i in np.flatnonzero(self.rates == 0):
            warn(f"client {i} never takes part (participation 0): it has no influence")
        if self.asynchronous is None:
            return
        if not isinstance(self.asynchronous, Asynchronous):
            raise FedtaperError(
                f"asynchronous must be such as Asynchronous(buffer=3), not {self.asynchronous!r}"
            )
        self.asynchronous.check(self.num_clients)
        if self.delays is not None:
            raise FedtaperError("an asynchronous server has delays of its own: leave out delays")
        if np.any(self.rates < 1):
            raise FedtaperError(
                "at an asynchronous server clients come and go by mean_on and mean_off: leave "
                "participation = 1"
            )

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return int(self.problem.num_clients)

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
        """By how much the clock moves on in a round (N, in the clock's unit)."""
        if self.clock == "round":
            return 1
        if self.clock == "epoch":
            assert self.local_epochs is not None
            return self.local_epochs
        return int(self.steps.max())

    def clock_values(self, first: int, last: int) -> Array:
        """N of each local update in rounds first to last - 1 (counted from 0).

        Shape (rounds, updates, 1), or (rounds, updates, L) where clients differ.
        """
        return self._clock_from(np.arange(first, last, dtype=np.float64) * self.period)

    def _clock_from(self, start: Array) -> Array:
        """The same for rounds before which the clock stood at ``start``."""
        start = start[:, None, None] if start.ndim == 1 else start[:, None, :]
        update = np.arange(int(self.steps.max()))[None, :, None]
        if self.clock == "round":
            return start + 1 + 0 * update
        if self.clock == "epoch":
            own = np.minimum(update // self._batches[None, None, :], self.period - 1)
            return start + 1 + own
        return start + 1 + update

    def step_sizes(self, first: int, last: int) -> Array:
        """a_n of each local update in those rounds, (rounds, updates, L); 0 where none is made."""
        return self._steps_at(self.clock_values(first, last))

    def round_step_sizes(self, n: float) -> Array:
        """a_n of each local update of a round before which the clock stands at n, (updates, L)."""
        return self._steps_at(self._clock_from(np.array([float(n)])))[0]

    def _steps_at(self, clock: Array) -> Array:
        a = step_sizes(self.schedules, clock)
        made = np.arange(a.shape[1])[:, None] < self.steps[None, :]
        return a if made.all() else a * made

    def step_sums(self, first: int, last: int) -> Array:
        """Sum of each client's step sizes in each of those rounds, (rounds, L)."""
        return self.step_sizes(first, last).sum(axis=1)

    def field_weights(self, n: ArrayLike) -> Array:
        """What each client's mean field weighs in the ODE's right side at clock n, (..., L).

        Server weight times participation times step sum, over the reference client's step
        sum: (1/L) p_n for the plain mean. It is that of a round centred at n, so it needs no
        table of rounds and serves any n, however far.
        """
        sums = self._steps_around(n).sum(axis=1)
        pace = self._steps_around(n, own=False).sum(axis=1)[:, self.reference, None]
        found = self.server_weights(sums) * self.weighted_counts * sums / pace
        return found.reshape(*np.shape(n), self.num_clients)

    def local_drift(self, n: ArrayLike) -> Array:
        """How far, in step sizes, a client's own updates have moved it when it updates, (..., L).

        The mean over a round's updates, each counted by its step size, of the sum of the step
        sizes before it: about half of the round's sum.
        """
        a = self._steps_around(n)
        sums = a.sum(axis=1)
        return ((sums - (a * a).sum(axis=1) / sums) / 2).reshape(*np.shape(n), self.num_clients)

    def _steps_around(self, n: ArrayLike, own: bool = True) -> Array:
        """Step sizes of a round that is centred at clock n, (len(n), updates, L).

        A client with a clock of its own has seen its share of n.
        """
        clock = np.asarray(n, dtype=np.float64).ravel()
        start = np.maximum(clock - self.period / 2, 0.0)
        if self.own_clock and own:
            return self._steps_at(self._clock_from(start[:, None] * self.counts))
        return self._steps_at(self._clock_from(start))

    def server_weights(self, step_sums: Array) -> Array:
        """The server's weight of each client in rounds with these step sums, (rounds, L)."""
        samples = np.asarray(self.problem.sizes, dtype=np.float64)
        return self.server.weights(samples, self.steps.astype(np.float64), step_sums)

    def present(self, first: int, last: int, seed: int) -> NDArray[np.bool_]:
        """Who takes part in those rounds, (rounds, L)."""
        out = np.ones((last - first, self.num_clients), dtype=bool)
        for i in np.flatnonzero(self.rates < 1):
            out[:, i] = draws.uniform_rounds(seed, int(i), first, last) < self.rates[i]
        return out

    @cached_property
    def rates(self) -> Array:
        """Participation of each client."""
        return per_client("participation", self.participation, self.num_clients)

    @property
    def in_step(self) -> bool:
        """Whether every update is made from its own round's model and clock."""
        return self.delays is None and self.asynchronous is None and not self.own_clock

    def arrivals(self, seed: int) -> arrivals.Arrivals:
        """Which updates every round adds, from which models."""
        discount, own = self.staleness, self.own_clock
        if self.asynchronous is not None:
            count, rounds = self.num_clients, self.rounds
            return arrivals.arriving(self.asynchronous, count, rounds, discount, own, seed)
        present = self.present(0, self.rounds, seed)
        return arrivals.late(present, as_delays(self.delays, self.num_clients), discount, own, seed)

    @cached_property
    def counts(self) -> Array:
        """How many updates of each client a round adds in the long run, (L,)."""
        if self.asynchronous is not None:
            return self.asynchronous.arrival_rates(self.num_clients)
        return self.rates

    @cached_property
    def weighted_counts(self) -> Array:
        """The same, each update counted by what its staleness leaves of its weight, (L,)."""
        if self.asynchronous is not None:
            mean = arrivals.mean_factors(self.asynchronous, self.num_clients, self.staleness)
        else:
            delays = as_delays(self.delays, self.num_clients)
            mean = arrivals.mean_factors_late(delays, self.staleness, self.num_clients)
        return self.counts * mean

    @property
    def reference(self) -> int:
        """The client with the largest step sizes in the limit (the paper's client 1)."""
        return reference_client(self.schedules)

    def effective_influence(self, first: int, last: int) -> Array:
        """Effective influence in rounds first to last - 1 (counted from 0), (rounds, L).

        Server weight times participation times sum of step sizes, over the same of the
        reference client: what weighs the clients' mean fields in the ODE at finite n.
        """
        middle = (np.arange(first, last) + 0.5) * self.period
        sums = self._steps_around(middle).sum(axis=1)
        raw = self.server_weights(sums) * self.weighted_counts * sums
        return raw / raw[:, self.reference, None]

    @property
    def limit_influence(self) -> Array:
        """The limit of :meth:`effective_influence`: p with the other factors, (L,)."""
        p = self.limit_field_weights / self.limit_field_weights[self.reference]
        return np.asarray(p, dtype=np.float64)

    @property
    def limit_field_weights(self) -> Array:
        """The limit of :meth:`field_weights`: (1/L) p for the plain mean, (L,)."""
        vanished = 1e-200  # stands for a vanishing step size, so that ratios stay defined
        ratios = np.maximum(influence(self.schedules), vanished) * self.steps
        sums = np.asarray(ratios, dtype=np.float64)[None, :] / ratios[self.reference]
        if self.own_clock:  # a client that comes at rate r is at clock r n
            sums = sums * self.counts ** -np.array([s.delta for s in self.schedules])
        raw = (self.server_weights(sums) * self.weighted_counts * sums)[0]
        return np.where(raw < 1e-150, 0.0, raw)

    def influence(self, round: int | None = None) -> Influence:
        """Effective influence in one round (counted from 1; default the last), factors apart."""
        k = self.rounds if round is None else round
        check_whole("round", k)
        sums = self._steps_around([(k - 0.5) * self.period]).sum(axis=1)
        return Influence(
            step_size=sums[0] / self.steps,
            local_steps=self.steps.astype(np.float64),
            step_sum=sums[0],
            server_weight=self.server_weights(sums)[0],
            participation=self.weighted_counts,
            reference=self.reference,
        )

    def groups(self) -> list[ClientGroup]:
        """Clients that cannot be told apart by their influence, for tables and legends."""
        effect, limit = self.influence(), self.limit_influence
        found: dict[Any, list[int]] = {}
        for i, schedule in enumerate(self.schedules):
            factors = (effect.step_sum[i], effect.server_weight[i], effect.participation[i])
            key = (schedule, *factors, effect.effective[i], limit[i])
            found.setdefault(key, []).append(i)
        return [ClientGroup(tuple(who), *key) for key, who in found.items()]


@dataclass(frozen=True)
class ClientGroup:
    """Clients with one schedule and one influence, in the experiment's last round."""

    clients: tuple[int, ...]
    schedule: Schedule
    step_sum: float
    server_weight: float
    participation: float
    effective: float
    limit: float

    @property
    def who(self) -> str:
        """The clients in words, such as "client 0" or "clients 2 to 9"."""
        if len(self.clients) == 1:
            return f"client {self.clients[0]}"
        if self.clients[-1] - self.clients[0] == len(self.clients) - 1:
            return f"clients {self.clients[0]} to {self.clients[-1]}"
        return f"clients {', '.join(str(i) for i in self.clients)}"

    @property
    def taper(self) -> str:
        """The step size as a formula, such as "0.1 / n^0.76"."""
        return self.schedule.formula
