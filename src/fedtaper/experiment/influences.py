"""How much each client counts in an experiment: its step sizes and everything besides them.

The weight of a client's mean field is server weight x participation x what its steps count in
total. Effective influence is that divided by the reference client's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.influence import ClientGroup, Influence, influence
from fedtaper.core.participation import mean_shares
from fedtaper.core.rules import Memoryless
from fedtaper.core.sums import summed

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
CHUNK = 1000  # rounds whose step sizes are looked at together: what the processor's cache holds


def field_weights(e: Experiment, n: ArrayLike) -> Array:
    """The weight of each client's mean field in the ODE's right side at clock n, (..., L).

    It is that of a round centred at n, so it needs no table of rounds and works for any n,
    however large.
    """
    a = e.steps_around(n)
    pace = summed(e.steps_around(n, own=False))[:, e.reference, None]
    return (_raw(e, a) / pace).reshape(*np.shape(n), e.num_clients)


def _raw(e: Experiment, a: Array) -> Array:
    """The weight of each client's mean field in rounds with these step sizes, (rounds, L)."""
    sums, counts = summed(a), e.local.counts(a)
    weights = e.server_weights(sums)
    counted = sums if counts is a else summed(counts)
    return e.local.influence(weights, _taking(e, weights), counted) * e.server.gain


def _taking(e: Experiment, weights: Array) -> Array:
    """By how much participation changes each client's weight, (rounds, L)."""
    if e.average_over == "all":
        return np.broadcast_to(e.weighted_counts, weights.shape)
    total = weights.sum(axis=-1, keepdims=True)
    return mean_shares(e.pattern, weights) * total / weights


def local_drift(e: Experiment, n: ArrayLike) -> Array:
    """How far, in step sizes, a client has moved by itself when it updates, (..., L)."""
    a = e.steps_around(n)
    counts = e.local.counts(a)
    if counts is a:
        sums = a.sum(axis=1)
        found = (sums - (a * a).sum(axis=1) / sums) / 2
    else:
        # gradients of 1 move update k by what the first counts in a round that ends there: the
        # earlier a gradient, the more updates it still counts in, so this is in reverse order
        moved = a * e.local.counts(np.ones((a.shape[1], 1)))[::-1]
        before = np.cumsum(moved, axis=1) - moved
        found = (counts * before).sum(axis=1) / counts.sum(axis=1)
    return found.reshape(*np.shape(n), e.num_clients)


def effective_influence(e: Experiment, rounds: NDArray[np.int64]) -> Array:
    """Effective influence in some rounds (counted from 0), (rounds, L)."""
    middle = (rounds + 0.5) * e.period
    parts = [middle[k : k + CHUNK] for k in range(0, len(middle), CHUNK)] or [middle]
    raw = np.concatenate([_raw(e, e.steps_around(part)) for part in parts])
    return np.asarray(raw / raw[:, e.reference, None])


def limit_field_weights(e: Experiment) -> Array:
    """The limit of :func:`field_weights`: (1/L) p for the plain mean, (L,)."""
    vanished = 1e-200  # stands for a vanishing step size, so that ratios stay defined
    there = e.counts > 0
    p = np.zeros(e.num_clients)
    p[there] = influence([s for s, comes in zip(e.schedules, there, strict=True) if comes])
    ratios = np.maximum(p, vanished) * e.steps
    sums = np.asarray(ratios, dtype=np.float64)[None, :] / ratios[e.reference]
    if e.own_clock:  # a client that comes at rate r is at clock r n
        deltas = np.array([s.delta for s in e.schedules])
        sums = sums * np.where(there, e.counts, 1.0) ** -deltas
    weights = e.server_weights(sums)
    plain = isinstance(e.local, Memoryless)
    counted = sums if plain else sums * _mean_gain(e)
    raw = e.local.influence(weights, _taking(e, weights), counted)[0] * e.server.gain
    return np.where(raw < 1e-150, 0.0, raw)


def _mean_gain(e: Experiment) -> Array:
    """How much a round of equal steps counts, divided by the sum of the steps, (L,)."""
    made = np.arange(int(e.steps.max()))[:, None] < e.steps[None, :]
    even = made / e.steps
    return e.local.counts(even[None]).sum(axis=1)[0]


def in_round(e: Experiment, round_: int) -> Influence:
    """Effective influence in one round (counted from 1), and each of its factors."""
    a = e.steps_around([(round_ - 0.5) * e.period])
    sums = a.sum(axis=1)
    weights = e.server_weights(sums)
    gain = e.local.counts(a).sum(axis=1)[0] / sums[0] * e.server.gain
    plain = Influence(
        step_size=sums[0] / e.steps,
        local_steps=e.steps.astype(np.float64),
        step_sum=sums[0],
        server_weight=weights[0],
        participation=_taking(e, weights)[0],
        reference=e.reference,
        gain=gain,
        names=e.names or (),
    )
    if isinstance(e.local, Memoryless):
        return plain
    with np.errstate(divide="ignore", invalid="ignore"):
        taking = _raw(e, a)[0] / (plain.server_weight * plain.step_sum * gain)
    return replace(plain, participation=taking)


def groups(e: Experiment, round_: int | None = None) -> list[ClientGroup]:
    """Groups of clients with the same influence in one round, by default the last."""
    effect, limit = e.influence(round_), e.limit_influence
    found: dict[Any, list[int]] = {}
    for i, schedule in enumerate(e.schedules):
        factors = (effect.step_sum[i], effect.server_weight[i], effect.participation[i])
        key = (schedule, *factors, effect.effective[i], limit[i])
        found.setdefault(key, []).append(i)
    names = e.names or ()
    return [
        ClientGroup(tuple(who), *key, tuple(names[i] for i in who if names))  # type: ignore[call-arg]  # the key holds the fields between
        for key, who in found.items()
    ]
