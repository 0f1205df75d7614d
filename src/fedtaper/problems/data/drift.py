"""Clients whose labels drift: the same samples, drawn in shares that change over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_list, check_number, check_whole
from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LabelDrift:
    """Each client's class shares move from those of its data to others.

    Args:
        rounds: how many rounds the change takes; 1 is an abrupt change.
        start: after which round it begins.
        to: the shares at the end, one row of class shares per client; by default equal shares
            of all classes that the client holds.

    >>> drift = LabelDrift(rounds=10)
    >>> drift.shares(np.array([30, 10, 0]), client=0, round_=5)
    array([0.625, 0.375, 0.   ])
    """

    rounds: int
    start: int = 0
    to: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds)
        check_whole("start", self.start, low=0)
        if self.to is None:
            return
        listed = [as_list("a row of to", row) for row in as_list("to", self.to)]
        for share in (share for row in listed for share in row):
            check_number("to", share, low=0)
        rows = tuple(tuple(float(v) for v in row) for row in listed)
        if not all(sum(row) > 0 for row in rows):
            raise FedtaperError("to must be rows of class shares, each at least 0 and not all 0")
        object.__setattr__(self, "to", rows)

    def shares(self, held: NDArray[np.int64], client: int, round_: int) -> Array:
        """Class shares of a client's mini-batches in a round (from 0); ``held`` counts its data."""
        own = held / held.sum()
        target = np.where(held > 0, 1.0, 0.0)
        if self.to is not None:
            if client >= len(self.to) or len(self.to[client]) != len(held):
                raise FedtaperError(
                    f"to needs a row of {len(held)} class shares for client {client}"
                )
            target = np.array(self.to[client])
        missing = np.flatnonzero((target > 0) & (held == 0))
        if missing.size:
            raise FedtaperError(
                f"client {client} holds no sample of class {missing[0]}, but its labels drift to "
                "that class: give it some, or change to"
            )
        moved = np.clip((round_ - self.start) / self.rounds, 0.0, 1.0)
        return np.asarray((1 - moved) * own + moved * target / target.sum())

    def order(
        self, labels: NDArray[np.int64], held: NDArray[np.int64], client: int, round_: int
    ) -> Callable[[int], NDArray[np.int64]]:
        """A sampler of the client's data in a round (with replacement)."""
        chance = (self.shares(held, client, round_) / np.maximum(held, 1))[labels]

        def drawn(key: int) -> NDArray[np.int64]:
            rng = np.random.default_rng(int(key))
            return rng.choice(len(labels), size=len(labels), p=chance / chance.sum())

        return drawn
