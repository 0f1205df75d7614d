"""Fairness while training: how the clients' scales move towards a goal, and what was recorded.

The model trains for some rounds with fixed scales; then the controller looks at every client's
loss and moves the scales a little towards the goal; and so on. The moves taper faster than the
model's steps. So the model sees influences that hardly change, and the controller sees a model
that has settled for them (two timescales).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_numbers, as_tuple, check_number, check_whole
from fedtaper.core.errors import FedtaperError, quietly
from fedtaper.core.scaled import Scaled
from fedtaper.core.tables import Brief
from fedtaper.rules.goals import Goal, goal_of

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
TAPER = 0.9  # move k has the size rate / k^TAPER


@dataclass(frozen=True)
class Steering:
    """Towards which goal the clients' scales move, how often, how far, and within what bound.

    For "minmax" the log of a client's influence rises in proportion to how far its loss is
    above the weighted mean (mirror ascent); for the smooth goals it moves towards the log of
    dphi/df. Move k has the size ``rate / k^0.9``. The factors keep their mean, 1, so that the
    model moves as fast as before.

    Args:
        goal: "minmax", "q", "tilt" or "proportional", as for ``ft.fair``.
        every: rounds between two looks at the losses.
        rate: size of the first move; 1 changes an influence by a factor of e where a loss is
            twice the mean loss.
        bound: no client's influence falls below the largest divided by this.
        q: of the goal "q".
        t: of the goal "tilt".
        baseline: of the goal "proportional", one number or one per client.
    """

    goal: str = "minmax"
    every: int = 10
    rate: float = 1.0
    bound: float = 100.0
    q: float = 1.0
    t: float = 1.0
    baseline: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        check_number("rate", self.rate, above=0.0)
        check_number("bound", self.bound, above=1.0)
        if isinstance(self.baseline, (list, np.ndarray)):
            object.__setattr__(self, "baseline", as_tuple(as_numbers("baseline", self.baseline)))
        goal_of(self.goal, np.ones(1), self.q, self.t, None)

    def check(self, e: Experiment) -> None:
        """Refuse an experiment whose influences do not follow the scales."""
        if e.server.erases_influence:
            raise FedtaperError(
                f"{e.server!r} undoes the step sizes, so there is nothing to steer: use Average()"
            )
        if e.own_clock:
            raise FedtaperError("steering needs one clock for all clients: leave own_clock=False")
        if self.baseline is not None:
            self.aim(np.ones(e.num_clients))

    def aim(self, first: Array) -> Goal:
        """The goal; ``first`` are the losses at the first look."""
        return goal_of(self.goal, first, self.q, self.t, self.baseline)

    def moved(self, goal: Goal, factor: Array, share: Array, f: Array, looks: int) -> Array:
        """The next factors: 1 on average, no influence below 1 / bound of the largest.

        ``share`` is what each client's influence was with ``factor``, ``f`` its loss, and
        ``looks`` counts from 1.
        """
        size = self.rate / looks**TAPER
        some = share > 0  # a client that never takes part stays as it is
        now = np.log(share[some])
        if goal.worst:
            move = (f - share @ f)[some] / max(float(np.abs(f).mean()), 1e-300)
        else:
            slopes = np.maximum(goal.slopes(f)[some], 1e-300)
            move = np.log(slopes / slopes.sum()) - now
        wanted = now + size * move  # influence is proportional to the scale
        wanted = np.maximum(wanted, wanted.max() - np.log(float(self.bound)))
        new = factor.copy()
        new[some] *= np.exp(wanted - now)
        return np.asarray(new / new.mean())


@dataclass(frozen=True, repr=False)
class Looks(Brief):
    """What the controller saw and did: one row per look, one column per client.

    Attributes:
        round: after which rounds it looked, (looks,).
        losses: every client's loss at that time, (looks, L).
        share: every client's share of the influence until then, (looks, L).
        factor: the factor on its scale until each look, and after the last, (looks + 1, L).
    """

    round: NDArray[np.int64]
    losses: Array
    share: Array
    factor: Array

    def rows(self) -> list[list[str]]:
        """The log: one row per look, a heading first."""
        rows = [["round", "worst loss", "mean loss", "smallest share", "largest share"]]
        for k, f, p in zip(self.round, self.losses, self.share, strict=True):
            numbers = (f.max(), f.mean(), p.min(), p.max())
            rows.append([str(int(k)), *(f"{v:.4g}" for v in numbers)])
        return rows

    def csv(self) -> str:
        """The log as a file: round, then loss, share and factor of every client."""
        count = self.losses.shape[1]
        names = [f"{n}_{i}" for n in ("loss", "share", "factor") for i in range(count)]
        lines = [",".join(["round", *names])]
        table = np.concatenate([self.losses, self.share, self.factor[:-1]], axis=1)
        for k, row in zip(self.round.tolist(), table.tolist(), strict=True):
            lines.append(",".join([str(k), *map(repr, row)]))
        return "\n".join(lines) + "\n"


def as_asked(e: Experiment) -> Experiment:
    """A steered experiment as it was before any move; any other experiment unchanged."""
    if e.steering is None or not any(isinstance(s, Scaled) for s in e.schedules):
        return e
    plain = [s.schedule if isinstance(s, Scaled) else s for s in e.schedules]
    with quietly():
        return replace(e, schedules=tuple(plain))


def with_factors(e: Experiment, after: Sequence[int], factors: Sequence[Array]) -> Experiment:
    """The experiment with a factor for every client from each of these rounds on.

    ``after`` counts the rounds made before; the first is 0.
    """
    starts = [k * e.period + 1 for k in after]
    columns = np.stack(list(factors)).T
    made = [
        Scaled(s, tuple(zip(starts, column.tolist(), strict=True)))
        for s, column in zip(as_asked(e).schedules, columns, strict=True)
    ]
    with quietly():
        return replace(e, schedules=tuple(made))


def scales(e: Experiment, n: Array) -> Array:
    """The factor on every client's scale at clock values n, (len(n), L)."""
    found = [s.factor(n) if isinstance(s, Scaled) else np.ones(len(n)) for s in e.schedules]
    return np.stack(found, axis=-1)
