"""Fairness by choice: the influences whose equilibrium serves a goal, with a certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_path, check_number
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import checked_problem
from fedtaper.core.tables import Brief, html, label, plain
from fedtaper.outcomes.feasible import client_names, feasible
from fedtaper.outcomes.limits import Limits, limits_of, worse
from fedtaper.outcomes.searched import search
from fedtaper.planning.plan import Plan, plan
from fedtaper.rules.goals import Goal, goal_of
from fedtaper.theory.convex import Point, solve
from fedtaper.theory.equilibria import minimiser, shares, typical
from fedtaper.theory.losses import Losses, losses_of

Array = NDArray[np.float64]
NOTHING = 1e-6  # a share below this is called 0
FLAT = 1e-6  # of the gradients at 0: smaller ones change losses by no more than rounding
FLOOR = 1e-3  # of the largest influence: what a plan gives a client whose share is 0
SERVED = (
    "One model is the best for every client. Any influences lead to it, so the shares are those "
    "of the comparison."
)


@dataclass(frozen=True, repr=False)
class Fair(Brief):
    """Influences that serve a goal, and what every client gets.

    Attributes:
        goal: its name, with its parameter.
        p: each client's share of the influence, (L,); sums to 1.
        w: the model w*(p).
        before, after: each client's loss with the influences of the comparison (equal ones, by
            default), and with p. On held-out data if that was given.
        share_before: the influences of the comparison.
        limits: the largest loss allowed for each client, infinity where there is no limit.
        gap: how much better than p any model could be at most, in the losses' unit: the
            duality gap of the convex problem. NaN if there is no such certificate.
        excess: the most by which a limit is exceeded (0, up to rounding).
        multipliers: by how much the goal would improve for each unit by which a client's
            limit was raised.
        notes: what to know before using it, in words.
    """

    problem: Any = field(repr=False)
    goal: str
    p: Array
    w: Array = field(repr=False)
    share_before: Array = field(repr=False)
    before: Array
    after: Array
    limits: Array = field(repr=False)
    multipliers: Array = field(repr=False)
    gap: float
    excess: float
    notes: tuple[str, ...]
    seconds: float = field(repr=False)
    names: tuple[str, ...] = ()  # of the clients, where they have any

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first."""
        limited = bool(np.isfinite(self.limits).any())
        head = ["client", "share", "loss before", "loss after", "change"]
        rows = [head + (["limit"] if limited else [])]
        for i, (old, new) in enumerate(zip(self.before, self.after, strict=True)):
            share = "0" if self.p[i] < NOTHING else f"{self.p[i]:.4g}"
            cells = [label(self.names, i), share, f"{old:.5g}", f"{new:.5g}", _change(old, new)]
            limit = f"{self.limits[i]:.5g}" if np.isfinite(self.limits[i]) else ""
            rows.append(cells + ([limit] if limited else []))
        return rows

    def __str__(self) -> str:
        return "\n".join([f"Goal: {self.goal}", *plain(self.rows()), self.certificate, *self.notes])

    @property
    def certificate(self) -> str:
        """What is known about how good p is, in one sentence."""
        if math.isnan(self.gap):
            return "No certificate: held-out losses were searched from several starts."
        return f"Certificate: no influences do better by more than {self.gap:.1e} (duality gap)."

    def plan(
        self,
        rounds: int,
        local_steps: int | Sequence[int] | None = None,
        *,
        floor: float = FLOOR,
        **settings: Any,
    ) -> Plan:
        """Step sizes that give these influences at the horizon: ``ft.plan`` for p.

        A client with share 0 gets ``floor`` times the largest share: a step size cannot be
        0, and vanishing takes longer than most runs. All other settings are those of ``ft.plan``.
        """
        target = np.maximum(self.p / self.p.max(), floor)
        return plan(target.tolist(), rounds, local_steps, problem=self.problem, **settings)

    def _repr_html_(self) -> str:
        return html(f"Goal: {self.goal}", self.rows(), [self.certificate, *self.notes])

    def plot(self, path: str | Path) -> Path:
        """Draw every client's loss before and after, beside its share."""
        from fedtaper.show.outcomes import fair_shares

        return fair_shares(self, as_path(path))


def fair(
    problem: Any,
    goal: str = "minmax",
    *,
    constraints: str | Iterable[str] = (),
    q: float = 1.0,
    t: float = 1.0,
    baseline: ArrayLike | None = None,
    before: ArrayLike | None = None,
    held_out: Any = None,
    names: Sequence[str] | None = None,
) -> Fair:
    r"""The influences that serve a goal best, for a convex problem.

    The minimiser of an increasing convex :math:`\phi(f_1, \dots, f_L)` is :math:`w^*(p)` with
    :math:`p_i \propto \partial\phi/\partial f_i`: every goal of this kind is a choice of
    influences. It is found to about ten digits, with a duality gap as the certificate.

    Args:
        problem: ``LinearRegression``, or a ``Custom`` problem whose loss is convex (logistic
            or softmax regression).
        goal: "minmax": the worst client's loss, as small as possible. "q": the mean of
            f^(q+1), which counts large losses more (q-FFL). "tilt": log mean exp(t f) / t
            (TERM). "proportional": the sum of log(baseline - f) as large as possible.
        constraints: in words, such as ``"client 3's loss below 900"``, ``"the rest at most 2%
            worse"``, ``"nobody more than 5% worse"``, ``"no client worse off than alone"``.
            "Worse" compares with ``before``. "The rest" are the clients that no other
            constraint names, or all but the worst.
        q: of the goal "q"; 0 gives the mean, larger values count large losses more.
        t: of the goal "tilt", per unit of loss; a large one gives nearly "minmax".
        baseline: of the goal "proportional": the loss above which a client has no gain,
            one number or one per client. By default the worst loss with ``before`` plus its
            size: twice that loss, or 0 if it is negative.
        before: influences to compare with; by default equal ones.
        held_out: a problem with the same model and clients but other samples. Goal,
            constraints and losses then refer to these, while the model still trains on
            ``problem``. Then there is no certificate.
        names: of the clients, for tables and sentences; constraints may use them too.

    >>> import fedtaper as ft
    >>> found = ft.fair(ft.LinearRegression(), "minmax")
    >>> f"{found.before.max():.0f} -> {found.after.max():.0f}"
    '1249 -> 1149'
    >>> found.gap < 1e-6
    True
    """
    began = time.perf_counter()
    check_number("q", q)
    check_number("t", t)
    losses = losses_of(problem)
    judged = losses if held_out is None else _alike(problem, held_out)
    count = losses.clients
    share = shares(np.ones(count) if before is None else before, count)
    w0 = minimiser(losses, share)
    f0 = judged.values(w0)
    wanted = goal_of(goal, f0, q, t, baseline)
    who = tuple(names or ())
    limits = limits_of(constraints, f0, lambda: alone(losses, judged, w0), who)
    served = held_out is None and _all_served(losses, limits, w0)
    if served:
        found = share, w0, np.zeros(count), _room(losses, w0)
    elif held_out is None:
        found = _certified(losses, wanted, limits, w0, who)
    else:
        found = _searched(losses, judged, wanted, limits, share, w0, who)
    p, w, multipliers, gap = found
    after = judged.values(w)
    return Fair(
        problem=problem,
        goal=_title(wanted, q, t),
        p=p,
        w=w,
        share_before=share,
        before=f0,
        after=after,
        limits=limits.losses,
        multipliers=multipliers,
        gap=gap,
        excess=max(0.0, float(np.max(after - limits.losses))),
        notes=(SERVED,)
        if served
        else tuple(_notes(wanted, p, f0, after, limits, multipliers, who)),
        seconds=time.perf_counter() - began,
        names=who,
    )


def alone(losses: Losses, judged: Losses, start: Array) -> Array:
    """Each client's loss with the model that it would train by itself."""
    every = np.eye(losses.clients)
    models = [minimiser(losses, row, start) for row in every]
    return np.array([judged.values(w)[i] for i, w in enumerate(models)])


def _alike(problem: Any, held_out: Any) -> Losses:
    checked_problem("held_out", held_out)
    have, want = ((p.num_clients, p.dim) for p in (held_out, problem))
    if have != want:
        raise FedtaperError(
            f"held_out has {have[0]} clients and {have[1]} parameters, the problem has {want[0]} "
            f"and {want[1]}: they must match"
        )
    return losses_of(held_out)


def _all_served(losses: Losses, limits: Limits, w0: Array) -> bool:
    """Whether one model is the best for every client, as where it can fit all samples.

    The multipliers are then not unique, so the solver must not look for them.
    """
    there, at_zero = (np.abs(losses.gradients(v)).max() for v in (w0, np.zeros(losses.dim)))
    return bool(there <= FLAT * at_zero and np.all(losses.values(w0) <= limits.losses))


def _room(losses: Losses, w0: Array) -> float:
    """The most by which any client's loss can be below that of a model, and so any goal."""
    rounding = np.finfo(float).eps * typical(losses, w0)
    return max(rounding, float(np.max(losses.values(w0) - alone(losses, losses, w0))))


def _certified(
    losses: Losses, goal: Goal, limits: Limits, w0: Array, names: Sequence[str]
) -> tuple[Array, Array, Array, float]:
    """Shares, model, multipliers and duality gap of the convex program."""
    scale = typical(losses, w0)
    start = feasible(losses, goal, limits, w0, scale, names)
    found = solve(losses, goal, limits.losses, start, scale)
    total = found.slopes + found.multipliers
    weight = found.slopes.sum()  # multipliers per unit of the goal, slopes summing to 1
    p = total / total.sum()
    p = np.where(p < 1e-9, 0.0, p)
    p /= p.sum()
    w = minimiser(losses, p, found.w)
    return p, w, found.multipliers / weight, _gap(losses, goal, limits, found, w)


def _gap(losses: Losses, goal: Goal, limits: Limits, found: Point, w: Array) -> float:
    """Weak duality: no model below the limits has a goal smaller than now by more than this.

    For weights s = dphi/df (summing to 1) and multipliers m, phi(f(v)) - phi(f(w)) is at
    least s'(f(v) - f(w)), and m'(f(v) - u) is at most 0 for every v below the limits u; so
    the gap is s'f(w) + m'u minus the smallest value of (s + m)'f. That is evaluated at w*(s + m),
    minus the Newton decrement that is left there.
    """
    slopes = found.slopes / found.slopes.sum()
    multipliers = found.multipliers / found.slopes.sum()
    f = losses.values(w)
    now = goal.value(f) if goal.worst else float(slopes @ f)
    bound = np.where(np.isfinite(limits.losses), limits.losses, 0.0)
    both = slopes + multipliers
    v = minimiser(losses, both / both.sum(), w)
    pull = both @ losses.gradients(v)
    curvature = losses.hessian(v, both)
    left = 0.5 * float(pull @ np.linalg.pinv(curvature, hermitian=True) @ pull)
    smallest = float(both @ losses.values(v)) - left
    rounding = np.finfo(float).eps * max(abs(now), abs(smallest))
    return max(rounding, now + float(multipliers @ bound) - smallest)


def _searched(
    losses: Losses,
    judged: Losses,
    goal: Goal,
    limits: Limits,
    share: Array,
    w0: Array,
    names: Sequence[str],
) -> tuple[Array, Array, Array, float]:
    p = search(losses, judged, goal, limits.losses, share, w0)
    w = minimiser(losses, p, w0)
    over = judged.values(w) - limits.losses
    if np.max(over) > 1e-4 * typical(judged, w0):
        who = client_names(np.flatnonzero(over > 0), names)
        raise FedtaperError(
            f"no influences were found that keep every limit: {who} up to "
            f"{np.max(over):.4g} above; raise a limit"
        )
    return p, w, np.full(len(p), np.nan), math.nan


def _change(old: float, new: float) -> str:
    """The change as a share of the loss's size: above 0 is worse, also for negative losses."""
    return f"{(new - old) / abs(old):+.1%}" if old else ""


def _title(goal: Goal, q: float, t: float) -> str:
    return {"q": f"q, q = {q:g}", "tilt": f"tilt, t = {t:g}"}.get(goal.name, goal.name)


def _notes(
    goal: Goal,
    p: Array,
    before: Array,
    after: Array,
    limits: Limits,
    multipliers: Array,
    names: Sequence[str],
) -> Iterable[str]:
    worst = int(np.argmax(before)), int(np.argmax(after))
    first, last = (client_names([i], names) for i in worst)
    yield (
        f"The worst loss goes from {before[worst[0]]:.5g} ({first}) to "
        f"{after[worst[1]]:.5g} ({last}), the mean from {before.mean():.5g} to "
        f"{after.mean():.5g}."
    )
    none = np.flatnonzero(p < NOTHING)
    if len(none):
        yield (
            f"{len(none)} of {len(p)} clients have share 0 ({client_names(none, names)}): at this "
            "optimum their data does not move the model. Their losses are still counted."
        )
    if after.max() > worse(before.max(), 1e-9) and not goal.worst:
        yield (
            f"This goal makes the worst client worse off ({before.max():.5g} to "
            f'{after.max():.5g}). It does not protect the worst client; "minmax" does.'
        )
    harmed = np.flatnonzero(after > worse(before, 0.1))
    if len(harmed):
        yield f"More than 10 % worse off than before: {client_names(harmed, names)}."
    for i in np.flatnonzero(np.nan_to_num(multipliers) > 1e-6).tolist():
        yield (
            f"{names[i] if names else f'Client {i}'} is at its limit of {limits.losses[i]:.5g}: "
            f"raising it by one unit would improve the goal by {multipliers[i]:.3g}."
        )
