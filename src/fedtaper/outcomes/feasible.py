"""A model strictly below every limit, or an error that says there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import label
from fedtaper.outcomes.limits import Limits
from fedtaper.rules.goals import Goal, MinMax, Proportional
from fedtaper.theory.convex import solve
from fedtaper.theory.losses import Losses

Array = NDArray[np.float64]


def feasible(
    losses: Losses,
    goal: Goal,
    limits: Limits,
    w0: Array,
    scale: float,
    names: Sequence[str] = (),
) -> Array:
    """A model strictly below every limit: w0, or the one that is farthest below."""
    bound = limits.losses
    if isinstance(goal, Proportional):
        bound = np.minimum(bound, goal.baseline)
    if np.all(losses.values(w0) < bound - 1e-6 * scale):
        return w0
    who = np.flatnonzero(np.isfinite(bound))
    part = _Below(losses, who, bound[who])
    best = solve(part, MinMax(), np.full(len(who), np.inf), w0, scale).w
    over = part.values(best)
    if np.max(over) > -1e-9 * scale:
        worst = who[over > np.max(over) - 1e-6 * scale]
        raise FedtaperError(
            f"no model keeps every limit: the best one exceeds {client_names(worst, names)}'s by "
            f"{max(0.0, float(np.max(over))):.4g}; raise a limit{_own_hint(limits)}"
        )
    return best


def _own_hint(limits: Limits) -> str:
    if not any("than" in word and ("alone" in word or "own" in word) for word in limits.words):
        return ""
    return (
        ". On its training samples nothing beats a client's own model: compare on other "
        "samples (in Python, held_out=), or allow a percentage"
    )


@dataclass(frozen=True)
class _Below:
    """How far some clients' losses are above their limits."""

    losses: Losses
    who: NDArray[np.int64]
    bound: Array

    @property
    def clients(self) -> int:
        return len(self.who)

    @property
    def dim(self) -> int:
        return self.losses.dim

    def values(self, w: Array) -> Array:
        return self.losses.values(w)[self.who] - self.bound

    def gradients(self, w: Array) -> Array:
        return self.losses.gradients(w)[self.who]

    def hessian(self, w: Array, weights: Array) -> Array:
        return self.losses.hessian(w, _spread(self.who, weights, self.losses.clients))


def _spread(who: NDArray[np.int64], weights: Array, count: int) -> Array:
    out = np.zeros(count)
    out[who] = weights
    return out


def client_names(clients: Iterable[int], names: Sequence[str] = ()) -> str:
    """Clients in words, such as "clients 2, 4 and 9", or by their names."""
    found = [label(names, int(i)) for i in clients]
    kind = "" if names else "client " if len(found) == 1 else "clients "
    if len(found) == 1:
        return f"{kind}{found[0]}"
    return kind + ", ".join(found[:-1]) + f" and {found[-1]}"
