"""Updates that arrive late: made from the shared model of some rounds ago.

A delay is a frozen dataclass with ``most``, the longest delay in rounds, and two methods:
``rounds(u)`` turns uniform numbers into delays, and ``law()`` gives the chance of each delay
0, 1, ..., most. The longest delay decides how many old models a run keeps in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import as_tuple, check_memory, check_whole, per_client
from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
CELLS = 1024  # of [0, 1), a power of two: where a search for a delay begins
_APART = np.uint64(1 << 40)  # keeps these draws away from those of the mini-batches


@runtime_checkable
class Delay(Protocol):
    """How many rounds late a client's updates are."""

    @property
    def most(self) -> int:
        """The longest delay, in rounds."""
        ...

    def rounds(self, u: Array) -> NDArray[np.int64]:
        """Delays from uniform numbers in [0, 1)."""
        ...

    def law(self) -> Array:
        """The chance of each delay from 0 to ``most``."""
        ...


@dataclass(frozen=True)
class FixedDelay:
    """Always the same delay."""

    most: int

    def __post_init__(self) -> None:
        _check_most("delay", self.most)

    def rounds(self, u: Array) -> NDArray[np.int64]:
        """The same for every draw."""
        return np.full(u.shape, self.most, dtype=np.int64)

    def law(self) -> Array:
        """All at one delay."""
        found = np.zeros(self.most + 1)
        found[-1] = 1.0
        return found


@dataclass(frozen=True)
class RandomDelay:
    """A geometric delay with this mean (before it is cut at ``most``).

    >>> RandomDelay(mean=2.0).rounds(np.array([0.0, 0.5, 0.9]))
    array([0, 1, 5])
    """

    mean: float
    most: int = 100

    def __post_init__(self) -> None:
        per_client("mean", self.mean, 1, low=0)
        _check_most("most", self.most)

    def _below(self, t: Array) -> Array:
        """The chance of a delay of less than t rounds."""
        return np.asarray(1.0 - (self.mean / (1.0 + self.mean)) ** t)

    def rounds(self, u: Array) -> NDArray[np.int64]:
        """By the inverse of the distribution."""
        return _inverted(self._below, self.most, u)

    def law(self) -> Array:
        """The chances; what lies beyond ``most`` is added to the last one."""
        return _law(self._below, self.most)


@dataclass(frozen=True)
class HeavyDelay:
    """A delay with a heavy tail: P(delay >= t) = (1 + t)^-tail (before it is cut at ``most``).

    Without the cut, a tail of 1 or less has no mean.
    """

    tail: float
    most: int = 1000

    def __post_init__(self) -> None:
        per_client("tail", self.tail, 1, low=1e-9)
        _check_most("most", self.most)

    def _below(self, t: Array) -> Array:
        return np.asarray(1.0 - (1.0 + t) ** -self.tail)

    def rounds(self, u: Array) -> NDArray[np.int64]:
        """By the inverse of the distribution."""
        return _inverted(self._below, self.most, u)

    def law(self) -> Array:
        """The chances; what lies beyond ``most`` is added to the last one."""
        return _law(self._below, self.most)


def _check_most(name: str, most: Any) -> None:
    """Refuse delays so long that the old models and the chances do not fit in memory."""
    check_whole(name, most, low=0)
    check_memory(f"a delay of up to {most:,} rounds", 3.0 * most)


def _inverted(below: Callable[[Array], Array], most: int, u: Array) -> NDArray[np.int64]:
    """The delay t with below(t) <= u < below(t + 1), at most ``most``."""
    edges = below(np.arange(1, most + 1, dtype=np.float64))
    first = np.searchsorted(edges, np.arange(CELLS) / CELLS, side="right").astype(np.int64)
    out = first[(u * CELLS).astype(np.int64)]  # right unless an edge lies between
    left = np.append(edges, np.inf)[out] <= u
    out[left] = np.searchsorted(edges, u[left], side="right")
    return np.asarray(out)


def _law(below: Callable[[Array], Array], most: int) -> Array:
    edges = below(np.arange(most + 1, dtype=np.float64))
    return np.diff(np.append(edges, 1.0))


def as_delays(
    value: int | Delay | Sequence[int | Delay] | None, num_clients: int
) -> tuple[Delay, ...] | None:
    """One delay per client, from one for all or one for each."""
    if value is None:
        return None
    given = as_tuple(value)
    if not isinstance(given, tuple):
        return (_as_delay(0, given),) * num_clients
    if len(given) != num_clients:
        raise FedtaperError(
            f"{len(given)} delays for {num_clients} clients; give one per client, or one for all"
        )
    return tuple(_as_delay(i, one) for i, one in enumerate(given))


def _as_delay(client: int, value: Any) -> Delay:
    if isinstance(value, Delay) and not isinstance(value, type):
        return value
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))
    if whole and value >= 0:
        return FixedDelay(int(value))
    raise FedtaperError(
        f"the delay of client {client} is {value!r}; give a number of rounds of at least 0, or a "
        "delay such as RandomDelay(mean=5)"
    )


def drawn(delays: Sequence[Delay], present: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """How late each update of the first rounds is, (rounds, L); 0 for absent clients."""
    rounds = np.arange(len(present))
    with np.errstate(over="ignore"):
        clients = np.arange(len(delays), dtype=np.uint64) + _APART
        key = draws.stream_key(np.uint64(seed), clients, rounds.astype(np.uint64)[:, None])
    u = (draws.mix(key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    if all(delay is delays[0] for delay in delays):
        out = delays[0].rounds(u)
    else:
        out = np.stack([delay.rounds(u[:, i]) for i, delay in enumerate(delays)], axis=1)
    return np.minimum(out, rounds[:, None]) * present  # the first model is the oldest
