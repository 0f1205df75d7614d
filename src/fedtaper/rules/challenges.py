"""Challenges: the same question asked again, so that an audit holds for any model.

Besides the round's model, the server now and then sends a client an earlier model. The answer is
recorded and never aggregated. See ``auditing/challenges.py`` for what the answers show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_number, check_whole, whole_list
from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import Brief

Array = NDArray[np.float64]
PLACE = 1_000_003  # the client number under which jitter is drawn: no client has it


@dataclass(frozen=True)
class Challenges:
    """When to challenge whom, and with which model.

    Args:
        every: rounds between two challenges. The first two follow the base round at once.
        base: the round (from 1) whose model is sent again.
        share: the share of a round's local updates that a challenge asks for, at least one. The
            answer of a single update is exactly proportional to the step size, whatever the model.
            With less than 1, a site can tell a challenge from a round by the number of updates.
        jitter: each challenge is moved a random part, at most this much, of the way to the
            next round's model, so that no site sees the very same model twice.
        clients: whom to challenge; by default everyone.

    >>> Challenges(every=11, base=5).rounds(50).tolist()
    [6, 7, 16, 27, 38, 49]
    >>> Challenges(every=11, base=5).extra_work(100)
    0.1
    """

    every: int = 11
    base: int = 2
    share: float = 1.0
    jitter: float = 0.02
    clients: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_whole("challenges: every", self.every)
        check_whole("challenges: base", self.base)
        for name, low in (("share", 0.0), ("jitter", -1.0)):
            value = getattr(self, name)
            check_number(f"challenges: {name}", value)
            if not (low < value <= 1 and value >= 0):
                raise FedtaperError(f"challenges: {name} must lie between 0 and 1, not {value!r}")
        if self.clients is not None:
            chosen = whole_list("challenges: clients", self.clients)
            object.__setattr__(self, "clients", tuple(chosen))

    @staticmethod
    def check(found: Any, count: int) -> None:
        """Refuse anything but a plan, and a plan that names a client that does not exist."""
        if not isinstance(found, Challenges):
            raise FedtaperError(
                f"challenges must be Challenges(every=..., base=...), not {found!r}"
            )
        if found.clients is not None and not all(0 <= i < count for i in found.clients):
            raise FedtaperError(f"challenges: clients must be numbers from 0 to {count - 1}")

    def rounds(self, last: int) -> NDArray[np.int64]:
        """The rounds (from 1) with a challenge, up to round ``last``."""
        soon = np.array([self.base + 1, self.base + 2], dtype=np.int64)
        later = np.arange(self.base + self.every, last + 1, self.every, dtype=np.int64)
        asked = np.unique(np.concatenate([soon, later]))
        return asked[asked <= last]

    def extra_work(self, rounds: int, steps: Any = None) -> float:
        """Local updates spent on challenges, relative to those of that many rounds.

        With the clients' local updates per round, ``steps``, exactly: none is asked for less
        than one.
        """
        share = self.share
        if steps is not None:
            share = float(np.sum(self.steps(steps)) / np.sum(steps))
        return len(self.rounds(rounds)) * share / rounds

    def steps(self, steps: Any) -> Any:
        """How many of a round's local updates a challenge asks for."""
        return np.maximum(1, np.round(self.share * np.asarray(steps))).astype(np.int64)

    def whom(self, count: int) -> tuple[int, ...]:
        """The clients that are challenged."""
        return tuple(range(count)) if self.clients is None else tuple(self.clients)

    def model(self, base: Any, after: Any, seed: int, round_: int) -> Any:
        """The model that is sent in that round (from 0): the base round's, moved a little."""
        part = self.jitter * draws.uniform(seed, PLACE, round_)
        return base + part * (after - base)


@dataclass(frozen=True, repr=False)
class Answers(Brief):
    """What came back: one row per challenge, one column per client, NaN where nothing did.

    A run over many seeds has a leading axis of seeds on all but ``round``.
    """

    round: NDArray[np.int64]  # (A,) when it was asked, from 1
    product: Array  # (A, L) inner product with what the client sent in the base round
    size: Array  # (A, L) norm of the answer
    base_size: Array  # (L,) norm of what it sent in the base round

    def of_seed(self, s: int) -> Answers:
        """The answers of one seed, from those of many."""
        return Answers(self.round, self.product[s], self.size[s], self.base_size[s])

    def until(self, round_: int) -> Answers:
        """The answers up to and including that round."""
        kept = self.round <= round_
        return Answers(self.round[kept], self.product[kept], self.size[kept], self.base_size)
