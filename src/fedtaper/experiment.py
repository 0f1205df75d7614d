"""The two records: what is to be run, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core import draws
from fedtaper.core.checks import per_client, whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.influence import Influence, checked_schedules, influence, reference_client
from fedtaper.core.schedules import Schedule, step_sizes
from fedtaper.rules.behaviours import Behaviour, checked
from fedtaper.rules.local import LocalRule, Sgd
from fedtaper.rules.server import Average, ServerRule

Array = NDArray[np.float64]
Clock = Literal["update", "epoch", "round"]
CLOCKS = ("update", "epoch", "round")
SETTINGS = (  # what a file or a call may set, beside the problem, the schedules and the rules
    "rounds",
    "local_steps",
    "local_epochs",
    "batch_size",
    "clock",
    "participation",
    "seed",
)


@dataclass(frozen=True)
class Experiment:
    """A federation to simulate: problem, step sizes, rules and their sizes.

    Args:
        problem: what the clients minimise.
        schedules: one a client, or a single one for all.
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
        clients: behaviours of clients that do not send what they declared, by client, such as
            ``{3: Idle()}``, to test an audit against (see ``attackers.py``). Schedules and
            influence stay those that are declared.
        seed: of the run: first model, mini-batches, participation.

    >>> import fedtaper as ft
    >>> e = ft.Experiment(ft.LinearRegression(), ft.Power(0.1, 0.76), rounds=10, local_steps=5)
    >>> e.clock_values(2, 3)[0, :, 0]
    array([11., 12., 13., 14., 15.])
    """

    problem: Any
    schedules: Sequence[Schedule] | Schedule
    rounds: int
    local_steps: int | tuple[int, ...] | None = None
    local_epochs: int | None = None
    batch_size: int = 50
    local: LocalRule = field(default_factory=Sgd)
    server: ServerRule = field(default_factory=Average)
    clock: Clock | None = None
    participation: float | tuple[float, ...] = 1.0
    clients: Mapping[int, Behaviour] | tuple[tuple[int, Behaviour], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        given = checked_schedules(self.schedules)  # type: ignore[arg-type]
        if isinstance(self.schedules, Schedule):
            given = given * self.num_clients
        if len(given) != self.num_clients:
            raise FedtaperError(
                f"{len(given)} schedules for {self.num_clients} clients; give one a client, "
                "or a single one for all"
            )
        object.__setattr__(self, "schedules", tuple(given))
        for name in ("local_steps", "participation"):
            value = getattr(self, name)
            if isinstance(value, (list, np.ndarray)):
                object.__setattr__(self, name, tuple(np.asarray(value).tolist()))
        object.__setattr__(self, "clients", checked(self.clients, self.num_clients))
        whole("rounds", self.rounds)
        whole("batch_size", self.batch_size)
        whole("seed", self.seed, low=0)
        if (self.local_steps is None) == (self.local_epochs is None):
            raise FedtaperError("give either local_steps or local_epochs, and not both")
        name = "local_epochs" if self.local_steps is None else "local_steps"
        for value in np.atleast_1d(np.asarray(getattr(self, name))).tolist():
            whole(name, value)
        if self.clock is None:
            own = getattr(self.problem, "default_clock", "update")
            object.__setattr__(self, "clock", own if self.local_epochs else "update")
        if self.clock not in CLOCKS:
            raise FedtaperError(f"clock must be one of {', '.join(CLOCKS)}, not {self.clock!r}")
        if self.clock == "epoch" and self.local_epochs is None:
            raise FedtaperError('clock = "epoch" needs local_epochs in place of local_steps')
        per_client("participation", self.participation, self.num_clients, low=0, high=1)
        small = int(np.argmin(self.problem.sizes))
        if self.batch_size > self.problem.sizes[small]:
            raise FedtaperError(
                f"batch_size {self.batch_size} is larger than the data of client {small} "
                f"({self.problem.sizes[small]} samples)"
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
        start = start[:, None, None]
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
        a = step_sizes(self.schedules, clock)  # type: ignore[arg-type]
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
        found = self.server_weights(sums) * self.rates * sums / sums[:, self.reference, None]
        return found.reshape(*np.shape(n), self.num_clients)

    def local_drift(self, n: ArrayLike) -> Array:
        """How far, in step sizes, a client's own updates have moved it when it updates, (..., L).

        The mean over a round's updates, each counted by its step size, of the sum of the step
        sizes before it: about half of the round's sum.
        """
        a = self._steps_around(n)
        sums = a.sum(axis=1)
        return ((sums - (a * a).sum(axis=1) / sums) / 2).reshape(*np.shape(n), self.num_clients)

    def _steps_around(self, n: ArrayLike) -> Array:
        """Step sizes of a round that is centred at clock n, (len(n), updates, L)."""
        clock = np.asarray(n, dtype=np.float64).ravel()
        return self._steps_at(self._clock_from(np.maximum(clock - self.period / 2, 0.0)))

    def server_weights(self, step_sums: Array) -> Array:
        """The server's weight of each client in rounds with these step sums, (rounds, L)."""
        samples = np.asarray(self.problem.sizes, dtype=np.float64)
        return self.server.weights(samples, self.steps.astype(np.float64), step_sums)

    def present(self, first: int, last: int, seed: int) -> NDArray[np.bool_]:
        """Who takes part in those rounds, (rounds, L)."""
        out = np.ones((last - first, self.num_clients), dtype=bool)
        for i in np.flatnonzero(self.rates < 1):
            chance = (draws.uniform(seed, int(i), k) for k in range(first, last))
            out[:, i] = [u < self.rates[i] for u in chance]
        return out

    @cached_property
    def rates(self) -> Array:
        """Participation of each client."""
        return per_client("participation", self.participation, self.num_clients)

    @property
    def reference(self) -> int:
        """The client with the largest step sizes in the limit (the paper's client 1)."""
        return reference_client(self.schedules)  # type: ignore[arg-type]

    def effective_influence(self, first: int, last: int) -> Array:
        """Effective influence in rounds first to last - 1 (counted from 0), (rounds, L).

        Server weight times participation times sum of step sizes, over the same of the
        reference client: what weighs the clients' mean fields in the ODE at finite n.
        """
        sums = self.step_sums(first, last)
        raw = self.server_weights(sums) * self.rates * sums
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
        ratios = np.maximum(influence(self.schedules), vanished) * self.steps  # type: ignore[arg-type]
        sums = np.asarray(ratios, dtype=np.float64)[None, :] / ratios[self.reference]
        raw = (self.server_weights(sums) * self.rates * sums)[0]
        return np.where(raw < 1e-150, 0.0, raw)

    def influence(self, round: int | None = None) -> Influence:
        """Effective influence in one round (counted from 1; default the last), factors apart."""
        k = self.rounds if round is None else round
        whole("round", k)
        sums = self.step_sums(k - 1, k)
        return Influence(
            step_size=sums[0] / self.steps,
            local_steps=self.steps.astype(np.float64),
            step_sum=sums[0],
            server_weight=self.server_weights(sums)[0],
            participation=self.rates,
            reference=self.reference,
        )

    def groups(self) -> list[ClientGroup]:
        """Clients that cannot be told apart by their influence, for tables and legends."""
        effect, limit = self.influence(), self.limit_influence
        found: dict[Any, list[int]] = {}
        for i, schedule in enumerate(self.schedules):  # type: ignore[arg-type]
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
        s = self.schedule
        if s.delta == 0:
            return f"{s.c:g}"
        base = f"(n + {s.offset:g})" if s.offset else "n"
        return f"{s.c:g} / {base}^{s.delta:g}"


@dataclass(frozen=True)
class Divergence:
    """A run that left the finite numbers: when, at which client, and why."""

    seed: int
    round: int
    client: int
    reason: str

    def __str__(self) -> str:
        where = f"seed {self.seed} diverged in round {self.round} at client {self.client}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True)
class Run:
    """What came of an experiment. With many seeds every array has a leading axis of seeds.

    Attributes:
        experiment: what was run.
        seeds: the seeds, in order; ``many`` says whether there is a leading axis.
        round: the recorded rounds, counted from 1 (all of them unless thinned).
        n, t: the clock, and the ODE's time T_k (Eqn17), after each recorded round.
        w: trajectory of the shared model, (rounds, dim), or None where the model is large.
        w0: the shared model before round 1, or None where the model is large.
        metrics: name to array, one value a recorded round.
        update_norms: size of each client's update, (rounds, L); 0 where it was absent.
        updates: the updates themselves, (rounds, L, dim), where they were asked for.
        diverged: the seeds that left the finite numbers; their later rounds are NaN (one
            seed: cut off).
        engine, seconds: which engine, and how long it took.
        path: the run folder, if it was stored.
        model: the last shared model as one vector, where w is None.
    """

    experiment: Experiment
    seeds: tuple[int, ...]
    many: bool
    round: NDArray[np.int64]
    n: Array
    t: Array
    w: Array | None
    w0: Array | None
    metrics: dict[str, Array]
    update_norms: Array
    updates: Array | None = None
    diverged: tuple[Divergence, ...] = ()
    engine: str = ""
    seconds: float = 0.0
    path: Path | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    model: Array | None = None

    def __repr__(self) -> str:
        ends = f", {len(self.diverged)} diverged" if self.diverged else ""
        return (
            f"Run({len(self.round)} rounds x {len(self.seeds)} seeds, "
            f"metrics {', '.join(self.metrics)}{ends})"
        )
