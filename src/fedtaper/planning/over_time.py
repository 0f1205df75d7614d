"""What a plan's influences are before and after the horizon: fading, vanishing, and drift.

Everything is measured on the experiment itself, as one client's influence against that of the
others, since any factor of influence may change from round to round: clients that make more
updates in a round reach later clock values in it, and with ``own_clock`` every client has a
clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError, quietly
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.planning.targets import Fade

Array = NDArray[np.float64]
FASTEST = 1.0  # the largest delta inside A2
SAME = 0.1  # a difference of an influence from what was asked that is not worth a word
CLOSE = 0.005  # what three digits do not show
DRIFT = "influences are as asked in the last round, not in earlier ones"
POINTS = 40  # rounds in which a fading client is looked at


def staying(numbers: Array) -> NDArray[np.bool_]:
    """The clients that neither fade nor vanish: what the others are compared with."""
    return np.asarray(np.nan_to_num(numbers) > 0)


def fading(
    base: Experiment, schedules: list[Power], client: int, fade: Fade, numbers: Array
) -> tuple[Power, list[str]]:
    """The schedule that fades a client as asked, or the nearest inside A2 and a warning."""
    if not 0 < fade.end < fade.start:
        raise FedtaperError(
            f"{base.name(client)} cannot fade from {fade.start:.3g} to {fade.end:.3g}: it must "
            "fall, and to more than 0"
        )
    usual = schedules[client]
    others = staying(numbers)

    def has(delta: float, *rounds: int, c: float = 1.0) -> list[float]:
        """The client's influence in some rounds, where the others count 1 on average."""
        made = list(schedules)
        with quietly(), np.errstate(all="ignore"):
            made[client] = replace(usual, c=c, delta=delta)
            e = replace(base, schedules=tuple(made))
            raws = [e.influence(k).raw for k in rounds]
            mean = numbers[others].sum()
            return [float(raw[client] / (raw[others].sum() / mean)) for raw in raws]

    def fall(delta: float) -> float:
        first, last = has(delta, 1, fade.by)
        with np.errstate(all="ignore"):  # NaN where both are too small for a number
            return float(np.divide(last, first))

    wanted, slowest = fade.end / fade.start, fall(usual.delta)
    told = []
    if wanted > slowest * (1 + 1e-9):
        told.append(
            f"{base.name(client)} cannot fade as slowly as to {fade.end:.3g} by round {fade.by}: "
            f"with the delta of the others it has {fade.start * slowest:.3g} then, because in "
            f"round 1 it has more influence than later. {_cure(base)}; or let it start at "
            f"{fade.end / slowest:.3g}"
        )
        delta = usual.delta
    else:
        delta = _delta_for(fall, usual.delta, wanted)
    reached = fall(FASTEST)
    if delta > FASTEST and reached > wanted * (1 + CLOSE):
        found = abs(fall(delta) - wanted) < 1e-6 * wanted  # False beyond what has a number
        needs = f"delta = {delta:.3g}" if found else "a delta far above it"
        told.append(
            f"{base.name(client)} cannot fade to {fade.end:.3g} by round {fade.by} inside A2: that "
            f"needs {needs}. With delta = 1, the fastest, it has "
            f"{fade.start * reached:.3g} then; to reach {fade.end:.3g} by then, let it start at "
            f"{fade.end / reached:.3g}"
        )
    delta = min(delta, FASTEST)
    (first,), (plain,), (usually,) = (
        has(delta, 1),
        has(usual.delta, 1),
        has(usual.delta, 1, c=usual.c),
    )
    c = usual.c * fade.start / (first / plain) / usually  # usually: 1 where clocks are the same
    rounds = np.unique(np.geomspace(1, fade.by, POINTS).round().astype(int)).tolist()
    path = np.array(has(delta, *rounds, c=c))
    top = int(np.argmax(path))
    if path[top] > (1 + SAME) * fade.start:
        told.append(
            f"{base.name(client)} rises from {fade.start:.3g} to {path[top]:.3g} in round "
            f"{rounds[top]} before it fades. {_cure(base)}"
        )
    return replace(usual, c=c, delta=delta), told


def _delta_for(fall: Callable[[float], float], low: float, wanted: float) -> float:
    """The delta with that fall, by bisection (the fall is monotone in delta)."""
    high = low + 1.0
    while fall(high) > wanted and high < 100:
        high = 2 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fall(middle) > wanted else (low, middle)
    return 0.5 * (low + high)


def vanishing(made: Experiment, numbers: Array) -> list[str]:
    """What is left at the horizon of the clients that were asked to vanish."""
    out = []
    left = on_scale(made.influence().raw, numbers)
    n = made.rounds * made.period
    slow = min(s.delta for s in made.schedules)
    for i in np.flatnonzero(numbers == 0).tolist():
        later = ""
        if left[i] > 0.01 and slow < FASTEST:
            offset = made.schedules[i].offset
            when = (n + offset) * (left[i] / 0.01) ** (1 / (FASTEST - slow)) - offset
            later = f", and 0.01 at n of about {when:.1g}"
        out.append(
            f"{made.name(i)} cannot vanish by round {made.rounds}: with delta = 1, the fastest "
            f"inside A2, it has {left[i]:.3g} then{later}. For less, give it a small target "
            "instead of 0"
        )
    return out


def drifting(made: Experiment, numbers: Array) -> list[str]:
    """How far influences in earlier rounds are from what they are in the last."""
    stay = staying(numbers)
    early = on_scale(made.influence(1).raw, numbers)[stay] / numbers[stay]
    off = np.abs(np.log(early))
    if off.max() <= np.log1p(SAME):
        return []
    i = int(np.flatnonzero(stay)[np.argmax(off)])
    tenth = max(1, made.rounds // 10)
    then = on_scale(made.influence(tenth).raw, numbers)[i]
    more = f" and {then:.3g} in round {tenth}" if tenth > 1 else ""
    return [
        f"{DRIFT}: {made.name(i)} has {early[np.argmax(off)] * numbers[i]:.3g} in round 1{more}, "
        f"where {numbers[i]:.3g} was asked. {_cure(made)}"
    ]


def _cure(e: Experiment) -> str:
    """What keeps ratios of influence the same in all rounds."""
    if e.own_clock:
        return "own_clock=False, one clock for all clients, avoids this"
    unit = "epoch" if e.local_epochs is not None else "round"
    if e.clock == unit:
        return "An offset of many rounds makes this small"
    return f'clock="{unit}" avoids this, and an offset of many rounds makes it small'


def on_scale(raw: Array, numbers: Array) -> Array:
    """Influences on the target's scale: the client with the largest target has just that."""
    top = int(np.nanargmax(numbers))
    return raw / raw[top] * numbers[top]
