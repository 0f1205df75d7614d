"""Which updates each round adds, from which models: one table for every engine.

A round has slots. Where everyone waits for everyone, slot i is client i, with the delay of its
update. At an asynchronous server the slots are the arrivals, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtaper.rules.asynchronous import Asynchronous
from fedtaper.rules.delays import Delay, drawn
from fedtaper.rules.staleness import Staleness, Undiscounted

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
AGAIN = 1 << 32  # further draws for a client that gets the same model twice
LOOKED_AT = 1_000_000  # arrivals from which a mean staleness weight is taken


@dataclass(frozen=True)
class Arrivals:
    """The updates of some rounds of one seed, each array (rounds, slots).

    Attributes:
        client: whose update; -1 for an empty slot.
        base: the round (from 0) that began with the model it was made from.
        behind: its staleness: by how many rounds the model had moved on; 0 in empty slots.
        draw: the round that its mini-batches are drawn for.
        row: the round whose step sizes it was made with.
        factor: the factor that its staleness puts on its weight.
        time: simulated time at the end of each round, (rounds,); NaN where there is none.
        reach: by how many rounds an update may be behind, now or when the run is extended.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("client", "base", "behind", "draw", "row", "factor", "time")

    client: Whole
    base: Whole
    behind: Whole
    draw: Whole
    row: Whole
    factor: Array
    time: Array
    reach: int

    def __getitem__(self, rounds: slice) -> Arrivals:
        """Some of the rounds."""
        return Arrivals(
            self.client[rounds], self.base[rounds], self.behind[rounds], self.draw[rounds],
            self.row[rounds], self.factor[rounds], self.time[rounds], self.reach,
        )  # fmt: skip


def late(
    present: NDArray[np.bool_], delays: Sequence[Delay] | None, discount: Staleness,
    own_clock: bool, seed: int,
) -> Arrivals:  # fmt: skip
    """Every client once per round in which it is present, with its delay. Rounds count from 0."""
    rounds, clients = present.shape
    k = np.arange(rounds)[:, None]
    client = np.arange(1, clients + 1) * present - 1
    behind = drawn(delays, present, seed) if delays else np.zeros((rounds, clients), np.int64)
    base = k - behind
    row = np.cumsum(present, axis=0) - present if own_clock else base
    reach = max(delay.most for delay in delays) if delays else 0
    factor = np.asarray(discount(np.arange(reach + 1)), dtype=np.float64)[behind]
    draw = np.broadcast_to(k, client.shape).copy()
    return Arrivals(client, base, behind, draw, row, factor, np.full(rounds, np.nan), reach)


def arriving(
    rule: Asynchronous, num_clients: int, rounds: int, discount: Staleness, own_clock: bool,
    seed: int,
) -> Arrivals:  # fmt: skip
    """The first rounds of an asynchronous server."""
    from fedtaper.rules.events import simulate

    client, base, again, time, reach = simulate(rule, num_clients, rounds, seed)
    behind = np.arange(rounds)[:, None] - base
    factor = np.asarray(discount(behind), dtype=np.float64)
    row = _own_count(client, num_clients) if own_clock else base
    return Arrivals(client, base, behind, drawn_by(base, again), row, factor, time, reach)


def drawn_by(base: Any, again: Any) -> Any:
    """The round that a job's mini-batches are drawn for: its model's, or a fresh one.

    A client that is sent the same model ``again`` draws other mini-batches. The simulated server
    and Flower's buffered one share this rule.
    """
    return base + again * AGAIN


def drawn_in(draw: Any) -> Any:
    """The round whose population those mini-batches are drawn from, where it moves."""
    return draw % AGAIN


def _own_count(client: Whole, num_clients: int) -> Whole:
    """How many updates of the same client came before each one."""
    flat = client.ravel()
    out = np.empty_like(flat)
    for i in range(num_clients):
        mine = flat == i
        out[mine] = np.arange(mine.sum())
    return out.reshape(client.shape)


def mean_factors(rule: Asynchronous, num_clients: int, discount: Staleness) -> Array:
    """The mean staleness weight of each client's updates, from a simulated stretch of arrivals.

    The first tenth is left out, while the clients are still in step.
    """
    if isinstance(discount, Undiscounted):
        return np.ones(num_clients)
    rounds = LOOKED_AT // rule.buffer
    made = arriving(rule, num_clients, rounds, discount, False, 0)[slice(rounds // 10, None)]
    who = made.client.ravel()
    count = np.bincount(who, minlength=num_clients)
    total = np.bincount(who, weights=made.factor.ravel(), minlength=num_clients)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), 1.0))


def mean_factors_late(
    delays: Sequence[Delay] | None, discount: Staleness, num_clients: int
) -> Array:
    """The mean staleness weight of each client's updates, from the law of their delays."""
    if delays is None:
        return np.full(num_clients, float(discount(0)))
    return np.array([d.law() @ discount(np.arange(d.most + 1)) for d in delays])
