r"""Convex programs over the clients' losses, by a primal-dual interior-point method.

.. math:: \min_w \phi(f_1(w), \dots, f_L(w)) \quad\text{with } f_j(w) \le u_j

At the solution the gradients of the losses, weighted by dphi/df_i plus the multiplier of
client i's limit, add up to 0. So the solution is w*(p) with those weights as influences. The
worst loss is minimised through its epigraph: a variable t that no loss may exceed, whose
multipliers are the influences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.rules.goals import Goal, Tilt
from fedtaper.theory.losses import Functions

Array = NDArray[np.float64]
STEPS = 200
ROUNDED = 1e-6  # of the losses at 0: the goals of smaller losses are not known to seven digits
TIGHT = 2e-12  # complementarity, as a share of the losses' scale
CLOSE = 1e-7  # how accurate a solution has to be, as a share of the losses' scale
SHRINK, STAY = 10.0, 0.99
GENTLE = 10.0  # a tilt of losses of about 1 that Newton's method solves from far away


@dataclass(frozen=True)
class Point:
    """Where the method ended: the model, dphi/df, and the limits' multipliers (same scale)."""

    w: Array
    slopes: Array
    multipliers: Array


@dataclass(frozen=True)
class _Here:
    """Losses, slacks and derivatives at one place; losses and model are in the program's units."""

    f: Array
    slack: Array
    gradient: Array  # of the objective, by (w, t)
    sides: Array  # gradients of the constraints, (K, d + 1)
    jacobian: Array

    def dual(self, y: Array) -> float:
        """Size of the Lagrangian's gradient."""
        return float(np.linalg.norm(self.gradient + self.sides.T @ y))

    def residual(self, y: Array, centre: float) -> float:
        """Size of the residual of the optimality conditions, including the barrier's centre."""
        return float(np.hypot(self.dual(y), np.linalg.norm(self.slack * y - centre)))


class _Program:
    """The constraints in one list: every client below t (worst loss), then the limits.

    Losses are in units of ``scale``, models in units of ``unit``.
    """

    def __init__(
        self, losses: Functions, goal: Goal, limits: Array, scale: float, unit: float
    ) -> None:
        self.losses, self.scale, self.unit = losses, scale, unit
        self.goal = self.wanted = goal.scaled(scale)
        if isinstance(self.goal, Tilt):
            self.goal = Tilt(min(self.goal.t, GENTLE))
        bound = np.flatnonzero(np.isfinite(limits))
        every = np.arange(losses.clients if goal.worst else 0)
        self.who = np.concatenate([every, bound]).astype(int)
        self.lift = np.concatenate([-np.ones(len(every)), np.zeros(len(bound))])
        self.cap = np.concatenate([np.zeros(len(every)), limits[bound] / scale])

    def steeper(self, left: float) -> bool:
        """Raise a tilt towards the wanted one, if what is left to do is small for the present one.

        A strong tilt is nearly the worst loss, and far from its solution the valley bends too
        much for Newton's method. The solutions for two tilts t and 4 t are 1 / t apart.
        """
        now, last = self.goal, self.wanted
        if not (isinstance(now, Tilt) and isinstance(last, Tilt)) or now == last:
            return False
        if left > max(0.1 / now.t, CLOSE):
            return False
        self.goal = Tilt(min(last.t, 4 * now.t))
        return True

    def slack(self, x: Array, f: Array) -> Array:
        return self.cap - f[self.who] - self.lift * x[-1]

    def allows(self, x: Array) -> bool:
        f = self.losses.values(self.unit * x[:-1]) / self.scale
        inside = bool(np.all(np.isfinite(f))) and self.goal.allows(f)
        return inside and bool(np.all(self.slack(x, f) > 0))

    def look(self, x: Array) -> _Here:
        w = self.unit * x[:-1]
        f = self.losses.values(w) / self.scale
        jacobian = self.losses.gradients(w) * (self.unit / self.scale)
        sides = np.column_stack([jacobian[self.who], self.lift])
        pull = np.zeros(x.size - 1) if self.goal.worst else self.goal.slopes(f) @ jacobian
        gradient = np.append(pull, 1.0 if self.goal.worst else 0.0)
        return _Here(f, self.slack(x, f), gradient, sides, jacobian)

    def curvature(self, x: Array, y: Array, here: _Here) -> Array:
        """Of the Lagrangian, by (w, t)."""
        dim, clients = len(x) - 1, len(here.f)
        slopes = np.zeros(clients) if self.goal.worst else self.goal.slopes(here.f)
        weights = slopes + np.bincount(self.who, weights=y, minlength=clients)
        out = np.zeros((dim + 1, dim + 1))
        out[:dim, :dim] = self.losses.hessian(self.unit * x[:-1], weights)
        out[:dim, :dim] *= self.unit**2 / self.scale
        _refuse_downward(out[:dim, :dim])
        if not self.goal.worst:
            out[:dim, :dim] += here.jacobian.T @ self.goal.bend(here.f) @ here.jacobian
            out[dim, dim] = 1.0  # t plays no part
        return out


def solve(losses: Functions, goal: Goal, limits: Array, start: Array, scale: float) -> Point:
    """Minimise a goal below limits, from a model that is strictly below every limit."""
    unit = _unit(losses, np.asarray(start, dtype=np.float64), scale)
    program = _Program(losses, goal, limits, scale, unit)
    f = losses.values(start) / scale
    x = np.append(np.asarray(start, dtype=np.float64) / unit, float(np.max(f)) + 0.1)
    here = program.look(x)
    y = 1.0 / (np.maximum(here.slack, 1e-3) * max(1, len(here.slack)))
    ended = True
    for _ in range(STEPS):
        gap = float(here.slack @ y)  # may not close before the gradient does: hence max below
        while program.steeper(max(gap, here.dual(y))):
            here = program.look(x)
        if gap < TIGHT and here.residual(y, 0.0) < _enough(here, y):
            break
        found = _step(program, x, y, here, max(gap, here.dual(y)) / (SHRINK * max(1, len(y))))
        if found is None:
            break
        still = np.array_equal(x, found[0]) and np.array_equal(y, found[1])
        x, y = found
        here = program.look(x)
        if still:
            break
    else:
        ended = False
    left = max(here.residual(y, 0.0) / max(1.0, _pull(here, y)), float(here.slack @ y))
    if left > CLOSE or program.goal != program.wanted:
        raise _unsolved(program, here, left, ended)
    return _point(program, x, y, here)


def _unsolved(program: _Program, here: _Here, left: float, ended: bool) -> FedtaperError:
    """Why there is no solution, as far as that can be told."""
    if isinstance(program.wanted, Tilt) and program.wanted.t > GENTLE:
        t = program.wanted.t / program.scale
        apart = np.log(program.losses.clients) / t
        return FedtaperError(
            f"t = {t:.3g} is too strong a tilt for losses of about {program.scale:.2g}: choose a "
            f'smaller one, or "minmax", whose worst loss is at most {apart:.2g} better'
        )
    size = float(np.mean(np.abs(here.f))) * program.scale
    at_zero = float(np.mean(np.abs(program.losses.values(np.zeros(program.losses.dim)))))
    if size < ROUNDED * at_zero:
        return FedtaperError(
            f"the losses are only {size / at_zero:.0e} of those of the model 0: rounding hides "
            "what would improve them"
        )
    if not ended:
        return FedtaperError(
            "no minimiser was found: the losses may have none (if classes can be separated, "
            "add a small weight decay to the loss)"
        )
    return FedtaperError(
        f"the solution is only accurate to {left:.0e} of the losses: the loss may not be "
        "convex and smooth, or may have no minimiser"
    )


def _unit(losses: Functions, w: Array, scale: float) -> float:
    """The order of magnitude of a move that changes the losses by their scale.

    In parameters of that size gradients are about 1, as the tolerances assume. It is a power
    of 1024, and so 1 for most problems, and exact in floating point for the others.
    """
    curvature = np.trace(losses.hessian(w, np.full(losses.clients, 1 / losses.clients)))
    if not 0 < curvature < np.inf:
        return 1.0
    return float(1024.0 ** np.round(0.5 * np.log(scale * losses.dim / curvature) / np.log(1024)))


def _pull(here: _Here, y: Array) -> float:
    """The size of what cancels at the solution."""
    both = np.linalg.norm(here.gradient), np.linalg.norm(np.abs(here.sides.T) @ y, ord=np.inf)
    return float(max(*both, np.linalg.norm(here.jacobian) / len(here.f)))


def _enough(here: _Here, y: Array) -> float:
    return (1e-10 if len(y) else 1e-12) * max(1.0, _pull(here, y))


def _step(
    program: _Program, x: Array, y: Array, here: _Here, centre: float
) -> tuple[Array, Array] | None:
    """Newton's step towards the barrier's centre, shortened until it is inside and better."""
    left = program.curvature(x, y, here)
    left += here.sides.T @ ((y / here.slack)[:, None] * here.sides)
    left[np.diag_indices(len(x) - 1)] += 1e-13 * np.trace(left) / len(x)
    move = np.linalg.solve(left, -(here.gradient + here.sides.T @ (centre / here.slack)))
    change = (centre + y * (here.sides @ move)) / here.slack - y
    falling = change < 0
    length = min(1.0, STAY * float(np.min(-y[falling] / change[falling], initial=np.inf)))
    before = here.residual(y, centre)
    for _ in range(30):
        there, then = x + length * move, y + length * change
        if program.allows(there):
            after = program.look(there).residual(then, centre)
            if after <= (1 - 0.01 * length) * before:
                return there, then
        length /= 2
    return None


def _point(program: _Program, x: Array, y: Array, here: _Here) -> Point:
    clients = len(here.f)
    soft = program.lift != 0
    slopes, multipliers = np.zeros(clients), np.zeros(clients)
    multipliers[program.who[~soft]] = y[~soft]
    if program.goal.worst:
        slopes[program.who[soft]] = y[soft]
    else:
        slopes = program.goal.slopes(here.f)
    return Point(program.unit * x[:-1], slopes, multipliers)


def _refuse_downward(curvature: Array) -> None:
    lowest, highest = np.linalg.eigvalsh(curvature)[[0, -1]]
    if lowest < -1e-8 * max(highest, 1e-6):  # of losses of about 1
        raise FedtaperError(
            f"the loss is not convex: at some model it curves downwards (eigenvalue "
            f"{lowest:.2g}); exact outcomes need convex losses"
        )
