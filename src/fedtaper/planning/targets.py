"""Wanted influences, as numbers or in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_list, as_numbers, check_whole
from fedtaper.core.errors import FedtaperError, quietly
from fedtaper.core.named import known_names, numbered
from fedtaper.experiment import Experiment
from fedtaper.problems.data import RareClass
from fedtaper.problems.images import ImageClassification

Array = NDArray[np.float64]
Target = Sequence[float] | Mapping[int, float] | str | Iterable[str]
_NUMBER = r"(\d+(?:\.\d+)?)"
_COUNTS = re.compile(rf"(?:the )?(rare client|client \d+) counts {_NUMBER} ?(?:x|times)")
_FADE = re.compile(
    rf"fade client (\d+)(?: from {_NUMBER} ?%)? to {_NUMBER} ?% by round (\d+)", re.IGNORECASE
)
_EQUAL = re.compile(r"equal(?: effective)? influence.*|equal")
RULES = (
    '"client 0 counts 10x", "rare client counts 10x", "fade client 3 to 30% by round 80", '
    '"equal effective influence"'
)


@dataclass(frozen=True)
class Fade:
    """From ``start`` in round 1 to ``end`` in round ``by``, relative to a client that counts 1."""

    end: float
    by: int
    start: float = 1.0


def tidy(made: Experiment) -> Experiment:
    """A planned experiment for a file: step sizes with twelve digits, as the rest is rounding."""
    found = []
    for s in made.schedules:
        held = {name: float(f"{value:.12g}") for name, value in vars(s).items()}
        found.append(replace(s, **held))  # type: ignore[type-var]  # plans are made of Power
    with quietly():
        return replace(made, schedules=tuple(found))


def are_texts(target: Any) -> bool:
    """Whether the target is rules in words."""
    if not isinstance(target, Iterable):
        raise FedtaperError(f"target must be one number per client, or rules, not {target!r:.80}")
    if isinstance(target, (str, Mapping)):
        return False
    return all(isinstance(t, str) for t in as_list("target", target))


def targets(
    target: Target, problem: Any, names: Sequence[str] | None = None
) -> tuple[Array, dict[int, Fade]]:
    """Wanted influences, NaN for clients that fade, and their fading."""
    count = int(problem.num_clients)
    if isinstance(target, str) or are_texts(target):
        return _by_rules([target] if isinstance(target, str) else list(target), problem, names)  # type: ignore[arg-type]  # texts by now
    numbers = np.ones(count)
    if isinstance(target, Mapping):
        for client, value in target.items():
            numbers[_client(client, count)] = value
    else:
        given = as_numbers("target", target)
        if given.shape != (count,):
            raise FedtaperError(
                f"target has {given.size} values for {count} clients; give one per client"
            )
        numbers = given.copy()
    if not (np.all(np.isfinite(numbers)) and np.all(numbers >= 0) and numbers.max() > 0):
        raise FedtaperError("targets must be finite, at least 0, and not all 0")
    return numbers, {}


def _by_rules(
    rules: list[str], problem: Any, names: Sequence[str] | None
) -> tuple[Array, dict[int, Fade]]:
    count = int(problem.num_clients)
    numbers, fades = np.ones(count), {}
    for rule in rules:
        text = numbered(rule, names).strip().lower().rstrip(".")
        if found := _COUNTS.fullmatch(text):
            numbers[_named_client(found[1], problem)] = float(found[2])
        elif found := _FADE.fullmatch(text):
            client = _client(int(found[1]), count)
            check_whole("the round to fade by", int(found[4]), low=2)
            start = float(found[2]) / 100 if found[2] else 1.0
            fades[client] = Fade(float(found[3]) / 100, int(found[4]), start)
            numbers[client] = np.nan
        elif not _EQUAL.fullmatch(text):
            raise FedtaperError(
                f"cannot read the rule {rule!r}; write one such as {RULES}{known_names(names)}"
            )
    if np.isnan(numbers).all():
        raise FedtaperError(
            "every client fades: influence is relative, so at least one client must not fade"
        )
    if not np.nanmax(numbers) > 0:
        raise FedtaperError("a client must count more than 0 times")
    return numbers, fades


def _named_client(name: str, problem: Any) -> int:
    if name != "rare client":
        return _client(int(name.split()[1]), int(problem.num_clients))
    split = problem.split if isinstance(problem, ImageClassification) else None
    if not isinstance(split, RareClass):
        raise FedtaperError(
            'there is no rare client: plan with a problem split by RareClass, or write "client 0"'
        )
    return int(split.client)


def _client(client: Any, count: int) -> int:
    check_whole("a client in the target", client, low=0)
    if client >= count:
        raise FedtaperError(f"the target names client {client}; the clients are 0 to {count - 1}")
    return int(client)
