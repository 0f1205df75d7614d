"""More patterns of participation: in turn, on and off, by a list.

Each fulfils :class:`fedtaper.core.participation.Participation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import as_numbers, as_tuple, check_whole, per_client
from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
_APART = 1 << 42  # keeps these draws away from those of the mini-batches


@dataclass(frozen=True)
class Cyclic:
    """The clients take turns: client i is there in rounds i, i + groups, i + 2 groups, ...

    Args:
        groups: how many groups take turns. Clients i and i + groups are in the same one.

    >>> Cyclic(2).present(0, 3, seed=0, num_clients=3).astype(int)
    array([[1, 0, 1],
           [0, 1, 0],
           [1, 0, 1]])
    """

    groups: int

    def __post_init__(self) -> None:
        check_whole("groups", self.groups)

    def rates(self, num_clients: int) -> Array:
        """One round in ``groups``."""
        if self.groups > num_clients:
            raise FedtaperError(
                f"Cyclic({self.groups}) has more groups than there are clients ({num_clients}): "
                "some rounds would have nobody"
            )
        return np.full(num_clients, 1 / self.groups)

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """The group whose turn it is."""
        turn = np.arange(first, last)[:, None] % self.groups
        return np.asarray(turn == np.arange(num_clients) % self.groups)


@dataclass(frozen=True)
class OnOff:
    """Clients come and go: a Markov chain, independent for each client.

    Args:
        rate: the share of rounds in which a client takes part: one, or one for each.
        mean_on: how many rounds in a row it stays, on average: one, or one for each.

    >>> there = OnOff(rate=0.25, mean_on=10).present(0, 400_000, seed=0, num_clients=1)
    >>> round(float(there.mean()), 2)
    0.25
    """

    rate: float | tuple[float, ...]
    mean_on: float | tuple[float, ...] = 10.0

    def __post_init__(self) -> None:
        for name in ("rate", "mean_on"):
            value = getattr(self, name)
            if isinstance(value, (list, np.ndarray)):
                object.__setattr__(self, name, as_tuple(as_numbers(name, value)))

    def rates(self, num_clients: int) -> Array:
        """The rates, as given."""
        self._chances(num_clients)
        return per_client("rate", self.rate, num_clients)

    def _chances(self, num_clients: int) -> tuple[Array, Array]:
        """The chance of being on after a round off, and after a round on."""
        rate = per_client("rate", self.rate, num_clients, low=1e-9, high=1)
        stay = 1 - 1 / per_client("mean_on", self.mean_on, num_clients, low=1)
        come = np.where(rate < 1, (1 - stay) * rate / np.maximum(1 - rate, 1e-12), 1.0)
        stay = np.where(rate < 1, stay, 1.0)
        if np.any(come > stay):
            worst = int(np.argmax(come - stay))
            raise FedtaperError(
                f"client {worst}: a rate of {rate[worst]:g} needs a mean_on of at least "
                f"{1 / (1 - rate[worst]):g}"
            )
        return come, stay

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """Any stretch of rounds, computed by itself.

        A draw below the chance to come puts a client on, one above the chance to stay puts it
        off; between the two it stays as it was. So it is enough to look back to the last draw
        outside the two.
        """
        come, stay = self._chances(num_clients)
        rate = self.rates(num_clients)
        out = np.empty((last - first, num_clients), dtype=bool)
        for i in range(num_clients):
            back = 64
            while True:
                begin = max(first - back, 0)
                u = draws.uniform_table(seed, [i + _APART], begin, last)[:, 0]
                low = np.where(np.arange(begin, last) == 0, rate[i], come[i])  # round 0: the mean
                high = np.where(np.arange(begin, last) == 0, rate[i], stay[i])
                decided = np.where((u < low) | (u >= high), np.arange(len(u)), -1)
                latest = np.maximum.accumulate(decided)[first - begin :]
                if begin == 0 or not len(latest) or latest[0] >= 0:
                    out[:, i] = (u < low)[latest]
                    break
                back *= 4
        return out


@dataclass(frozen=True)
class Listed:
    """Who takes part, round by round; after the last entry the list starts again.

    >>> Listed([[0, 1], [2]]).rates(3)
    array([0.5, 0.5, 0.5])
    """

    rounds: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        try:
            rounds = tuple(tuple(int(i) for i in one) for one in self.rounds)
        except (TypeError, ValueError):
            raise FedtaperError(
                "Listed needs one list of clients per round, such as [[0, 1], [2]]"
            ) from None
        if not rounds:
            raise FedtaperError("the list of rounds is empty: give at least one list of clients")
        object.__setattr__(self, "rounds", rounds)

    def _table(self, num_clients: int) -> NDArray[np.bool_]:
        table = np.zeros((len(self.rounds), num_clients), dtype=bool)
        for k, clients in enumerate(self.rounds):
            for i in clients:
                if not 0 <= i < num_clients:
                    raise FedtaperError(
                        f"round {k + 1} of the list names client {i}; the clients are 0 to "
                        f"{num_clients - 1}"
                    )
                table[k, i] = True
        return table

    def rates(self, num_clients: int) -> Array:
        """The share of the listed rounds in which each client is named."""
        return np.asarray(self._table(num_clients).mean(axis=0))

    def present(self, first: int, last: int, seed: int, num_clients: int) -> NDArray[np.bool_]:
        """As listed."""
        return self._table(num_clients)[np.arange(first, last) % len(self.rounds)]
