"""Limits on the clients' losses, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_list
from fedtaper.core.errors import FedtaperError
from fedtaper.core.named import known_names, numbered

Array = NDArray[np.float64]
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_BELOW = re.compile(rf"client (\d+)(?:'s loss)?(?: is| stays)? below ([+-]?){_NUMBER}")
_ALONE = re.compile(
    rf"no client (?:more than {_NUMBER} ?% )?worse(?: off)? than (?:alone|on its own)"
)
_NOBODY = re.compile(rf"(?:no client|nobody) more than {_NUMBER} ?% worse(?: off)?")
_REST = re.compile(rf"the rest at most {_NUMBER} ?% worse(?: off)?")
WORDS = (
    '"client 3\'s loss below 900", "the rest at most 2% worse", "nobody more than 5% worse", '
    '"no client worse off than alone"'
)


@dataclass(frozen=True)
class Limits:
    """The meaning of constraints in words: the largest loss allowed for each client."""

    losses: Array
    words: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is any limit."""
        return bool(np.isfinite(self.losses).any())


def worse(f: Array, share: float) -> Array:
    """Losses that are worse by this share of their size: larger, also where they are below 0."""
    return np.asarray(f + share * np.abs(f))


def limits_of(
    words: str | Iterable[str], equal: Array, alone: Any, names: Sequence[str] = ()
) -> Limits:
    """Read constraints in words.

    Args:
        words: one or more of :data:`WORDS`.
        equal: losses under equal influence, which "worse" compares with.
        alone: a function that gives each client's loss with a model of its own.
        names: of the clients, which constraints may use.
    """
    given = (words,) if isinstance(words, str) else tuple(as_list("constraints", words))
    limit = np.full(len(equal), np.inf)
    named: set[int] = set()
    rest: list[float] = []
    for text in given:
        plain = numbered(str(text), names).strip().lower().rstrip(".")
        if found := _BELOW.fullmatch(plain):
            client = int(found[1])
            if client >= len(equal):
                raise FedtaperError(f"{text!r}: the clients are 0 to {len(equal) - 1}")
            named.add(client)
            limit[client] = min(limit[client], float(found[2] + found[3]))
        elif found := _ALONE.fullmatch(plain):
            limit = np.minimum(limit, worse(alone(), float(found[1] or 0) / 100))
        elif found := _NOBODY.fullmatch(plain):
            limit = np.minimum(limit, worse(equal, float(found[1]) / 100))
        elif found := _REST.fullmatch(plain):
            rest.append(float(found[1]) / 100)
        else:
            raise FedtaperError(
                f"cannot read the constraint {text!r}; write one such as {WORDS}"
                f"{known_names(names)}"
            )
    helped = named or {int(np.argmax(equal))}
    others = np.array([i not in helped for i in range(len(equal))])
    for share in rest:
        limit = np.where(others, np.minimum(limit, worse(equal, share)), limit)
    return Limits(limit, given)
