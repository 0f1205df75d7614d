"""Influences for goals about held-out losses: a search over p, since these are not convex in p.

The model is w*(p) of the training losses, and its derivative by p is known, so a sequential
quadratic program over the shares has exact gradients. It finds a local optimum from each of
several starts; the best one is returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.rules.goals import Goal
from fedtaper.theory.equilibria import minimiser, sensitivity, typical
from fedtaper.theory.losses import Losses

Array = NDArray[np.float64]
STARTS = 4


class _Path:
    """Held-out losses at w*(p) and their derivatives by p, cached for the last p."""

    def __init__(self, losses: Losses, judged: Losses, w: Array, scale: float) -> None:
        self.losses, self.judged, self.scale = losses, judged, scale
        self.w, self.p = w, np.full(losses.clients, np.nan)

    def at(self, p: Array) -> tuple[Array, Array]:
        """Losses (L,) and their derivatives (L, L), over the scale."""
        if not np.array_equal(p, self.p):
            share = np.maximum(p, 0.0)
            share = share / share.sum()
            self.w = minimiser(self.losses, share, self.w)
            self.f = self.judged.values(self.w) / self.scale
            moved = sensitivity(self.losses, self.w, share)
            self.slope = self.judged.gradients(self.w) @ moved / self.scale
            self.p = p.copy()
        return self.f, self.slope


def search(
    losses: Losses, judged: Losses, goal: Goal, limits: Array, share: Array, w0: Array
) -> Array:
    """Shares that minimise a goal of the judged losses within limits."""
    scale = typical(judged, w0)
    count = losses.clients
    rng = np.random.default_rng(0)
    starts = [share, *rng.dirichlet(np.full(count, 2.0), size=STARTS - 1)]
    best, best_value = share, np.inf
    for start in starts:
        path = _Path(losses, judged, w0, scale)
        found = _one(path, goal.scaled(scale), limits / scale, start)
        value = goal.value(path.at(found)[0] * scale)
        over = float(np.max(path.at(found)[0] - limits / scale))
        score = value + 1e6 * scale * max(0.0, over - 1e-6)
        if score < best_value:
            best, best_value = found, score
    return best


def _one(path: _Path, goal: Goal, limits: Array, start: Array) -> Array:
    """A local optimum from one start: variables (p, t), t the worst loss if it is the goal."""
    from scipy.optimize import minimize

    count = len(start)
    bound = np.flatnonzero(np.isfinite(limits))

    def value(x: Array) -> tuple[float, Array]:
        f, slope = path.at(x[:count])
        if goal.worst:
            return float(x[-1]), np.append(np.zeros(count), 1.0)
        return goal.value(f), np.append(goal.slopes(f) @ slope, 0.0)

    def room(x: Array) -> Array:
        f, _ = path.at(x[:count])
        worst = x[-1] - f if goal.worst else np.empty(0)
        return np.concatenate([worst, limits[bound] - f[bound]])

    def room_slope(x: Array) -> Array:
        _, slope = path.at(x[:count])
        lifted = (
            np.column_stack([-slope, np.ones(count)]) if goal.worst else np.empty((0, count + 1))
        )
        held = np.column_stack([-slope[bound], np.zeros(len(bound))])
        return np.concatenate([lifted, held])

    total = np.append(np.ones(count), 0.0)
    rules: list[dict[str, Any]] = [
        {"type": "eq", "fun": lambda x: x[:count].sum() - 1, "jac": lambda x: total}
    ]
    if goal.worst or len(bound):
        rules.append({"type": "ineq", "fun": room, "jac": room_slope})
    first = np.append(start, float(np.max(path.at(start)[0])))
    box = [(0.0, 1.0)] * count + [(None, None)]
    found = minimize(
        value, first, jac=True, method="SLSQP", bounds=box, constraints=rules,
        options={"maxiter": 300, "ftol": 1e-12},
    )  # fmt: skip
    p = np.clip(found.x[:count], 0.0, None)
    p = np.where(p < 1e-9, 0.0, p)
    return np.asarray(p / p.sum())
