"""How much each client counts (Eqn7): the limit p, p_n at a clock value, and the effective one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers, check_number, per_client, taken
from fedtaper.core.errors import AssumptionWarning, FedtaperError, warn
from fedtaper.core.protocols import checked_schedule, is_schedule
from fedtaper.core.schedules import Schedule, step_sizes
from fedtaper.core.tables import html, label, plain


def reference_client(schedules: Sequence[Schedule], rates: ArrayLike | None = None) -> int:
    """The client whose step sizes are the largest in the limit (the paper's client 1).

    The slowest taper wins; among equal tapers the largest scale; then the first. With ``rates``
    of participation, a client that never takes part is skipped if another one does.
    """
    absent = np.zeros(len(schedules), dtype=bool) if rates is None else np.asarray(rates) == 0
    return min(
        range(len(schedules)),
        key=lambda i: (bool(absent[i]), schedules[i].delta, -schedules[i].c, i),
    )


def influence(schedules: Sequence[Schedule], n: ArrayLike | None = None) -> NDArray[np.float64]:
    r"""Influence of each client, relative to the reference client.

    .. math:: p^{(i)} = \lim_n a_n^{(i)} / a_n^{(1)}, \qquad p_n^{(i)} = a_n^{(i)} / a_n^{(1)}

    Args:
        schedules: one per client. The reference (the paper's client 1) is the client with the
            largest step sizes in the limit.
        n: a clock value or an array of them; without it, the limit. With an array of shape
            s the result has shape (*s, clients). At finite n an influence may exceed 1: a
            client that vanishes in the limit can be ahead for a very long time.

    >>> from fedtaper import Power
    >>> slow, fast = Power(c=0.1, delta=0.76), Power(c=0.1, delta=1.0)
    >>> influence([fast, slow])
    array([0., 1.])
    >>> influence([slow, fast], n=25_000).round(3)
    array([1.   , 0.088])
    """
    schedules = checked_schedules(schedules)
    deltas = {s.delta for s in schedules}
    if 0.0 in deltas and len(deltas) > 1:
        warn(
            "constant and tapering step sizes are mixed: assumption A2 fails, and in the limit "
            "only the clients with a constant step count",
            AssumptionWarning,
        )
    reference = reference_client(schedules)
    if n is None:
        top = schedules[reference]
        return np.array([s.c / top.c if s.delta == top.delta else 0.0 for s in schedules])
    a = step_sizes(schedules, as_numbers("n", n)[..., None])
    return a / a[..., reference, None]


def checked_schedules(schedules: Sequence[Schedule] | Schedule) -> list[Schedule]:
    """The schedules as a list, refused when empty or of the wrong kind."""
    try:
        found = [schedules] if is_schedule(schedules) else taken("schedules", schedules)
    except TypeError:
        found = [checked_schedule("schedules, one for all or one per client,", schedules)]
    if not found:
        raise FedtaperError("no schedules: give one per client, such as Power(c=0.1, delta=0.76)")
    seen: set[int] = set()  # thousands of clients may share one object
    for i, s in enumerate(found):
        if id(s) not in seen:
            checked_schedule(f"schedule {i}", s)
            seen.add(id(s))
    return found


@dataclass(frozen=True, repr=False)
class Influence:
    """How much each client moves the shared model in one round, and the factors of that.

    ``effective`` is ``server_weight * participation * step_sum * gain`` over the same of the
    reference client. ``step_sum`` is the sum of the client's step sizes in the round: about
    ``step_size * local_steps``. ``participation`` is the share of rounds in which the client
    takes part; with ``average_over="present"``, by how much that changes its weight. ``gain``
    is what momentum multiplies steps by, 1 without.
    """

    step_size: NDArray[np.float64]
    local_steps: NDArray[np.float64]
    step_sum: NDArray[np.float64]
    server_weight: NDArray[np.float64]
    participation: NDArray[np.float64]
    reference: int
    gain: NDArray[np.float64] | float = 1.0
    names: tuple[str, ...] = ()  # of the clients, where they have any

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first: the effective influence, then its factors."""
        head = ["client", "effective", "share", "step size", "steps", "step sum"]
        rows = [[*head, "weight", "rate", "gain"]]
        count = len(self.step_size)
        gain = np.broadcast_to(self.gain, count)
        columns = [self.effective, self.share, self.step_size, self.local_steps, self.step_sum]
        columns += [self.server_weight, self.participation, gain]
        for i in range(count):
            rows.append([label(self.names, i), *(f"{column[i]:.4g}" for column in columns)])
        return rows

    def __repr__(self) -> str:
        each = (f"{label(self.names, i)} {p:.3g}" for i, p in enumerate(self.effective))
        return f"Influence({', '.join(each):.200})"

    def __str__(self) -> str:
        return "\n".join(plain(self.rows()))

    def _repr_html_(self) -> str:
        return html("Influence", self.rows())

    @property
    def raw(self) -> NDArray[np.float64]:
        """The weight of each client's mean field in the expected step of the shared model."""
        return self.server_weight * self.participation * self.step_sum * self.gain

    @property
    def effective(self) -> NDArray[np.float64]:
        """Relative to the reference client."""
        return self.raw / self.raw[self.reference]

    @property
    def share(self) -> NDArray[np.float64]:
        """As a share of all clients' influence: sums to 1."""
        return self.raw / self.raw.sum()


def effective_influence(
    schedules: Sequence[Schedule],
    n: float,
    *,
    local_steps: ArrayLike = 1,
    server_weight: ArrayLike | None = None,
    participation: ArrayLike = 1.0,
) -> Influence:
    """Effective influence at clock n, and each of its factors.

    Args:
        schedules: one per client.
        n: the clock value.
        local_steps: the number of local updates of each client in a round.
        server_weight: the server's weight of each client (default: equal).
        participation: the share of rounds in which each client takes part.

    >>> from fedtaper import Power
    >>> same = [Power(c=0.1, delta=0.76)] * 2
    >>> effective_influence(same, n=100, local_steps=[33, 72]).effective.round(2)
    array([1.  , 2.18])
    """
    schedules = checked_schedules(schedules)
    count = len(schedules)
    weight = np.full(count, 1 / count) if server_weight is None else server_weight
    check_number("n", n, above=0.0)
    a = step_sizes(schedules, np.array([[float(n)]]))[0]
    steps = per_client("local_steps", local_steps, count, low=1)
    return Influence(
        step_size=a,
        local_steps=steps,
        step_sum=a * steps,
        server_weight=per_client("server_weight", weight, count, low=0),
        participation=per_client("participation", participation, count, low=0, high=1),
        reference=reference_client(schedules),
    )


@dataclass(frozen=True)
class ClientGroup:
    """Clients with the same schedule and the same influence, in the experiment's last round."""

    clients: tuple[int, ...]
    schedule: Schedule
    step_sum: float
    server_weight: float
    participation: float
    effective: float
    limit: float
    names: tuple[str, ...] = ()  # of the clients, where they have any

    @property
    def who(self) -> str:
        """The clients in words: their names, or "client 0", or "clients 2 to 9"."""
        if self.names:
            return ", ".join(self.names)
        if len(self.clients) == 1:
            return f"client {self.clients[0]}"
        if self.clients[-1] - self.clients[0] == len(self.clients) - 1:
            return f"clients {self.clients[0]} to {self.clients[-1]}"
        return f"clients {', '.join(str(i) for i in self.clients)}"

    @property
    def taper(self) -> str:
        """The step size as a formula, such as "0.1 / n^0.76"."""
        return self.schedule.formula
