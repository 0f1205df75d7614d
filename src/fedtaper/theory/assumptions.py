"""Do the theorem's assumptions (A1 to A5) hold for an experiment, and what do baselines need?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_type
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_quadratic, as_stream, is_quadratic, is_stream
from fedtaper.experiment import Experiment
from fedtaper.theory.departures import Assumption, Status, departures
from fedtaper.theory.stability import stability

Array = NDArray[np.float64]
THEORIES = ("this", "FedAvg", "FedProx", "FedNova")


@dataclass(frozen=True)
class Need:
    """What a theory needs (the paper's table of assumptions), and whether it holds here."""

    asks: str
    needed_by: tuple[str, ...]
    status: Status
    number: str


@dataclass(frozen=True)
class Assumptions:
    """The table for one experiment. ``print`` it, or take ``rows`` and ``needs``."""

    rows: tuple[Assumption, ...]
    needs: tuple[Need, ...]

    @property
    def holds(self) -> bool:
        """Whether no assumption fails."""
        return all(row.status != "fails" for row in self.rows)

    def __getitem__(self, id: str) -> Assumption:
        for row in self.rows:
            if row.id == id:
                return row
        raise FedtaperError(
            f"there is no assumption {id!r}: choose from {', '.join(row.id for row in self.rows)}"
        )

    def __str__(self) -> str:
        lines = [f"{r.id} {r.status:<8} {r.asks}: {r.number}. {r.why}" for r in self.rows]
        for need in self.needs:
            who = ", ".join(need.needed_by)
            lines.append(f"   {need.status:<8} {need.asks} (needed by {who}): {need.number}")
        return "\n".join(lines)


def check(experiment: Experiment) -> Assumptions:
    """A1 to A5 for an experiment: holds, fails or assumed, each with the deciding number.

    "assumed" is what cannot be decided from the experiment alone: most of it, for objectives other
    than linear regression. Rows beyond A1 to A5 follow if clients are rare (P), late or
    asynchronous (D), on their own clocks (C), or if their data moves (M).

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> e = ft.Experiment(problem, ft.Power(0.1, 0.76, offset=20), rounds=10, local_steps=5)
    >>> found = ft.check(e)
    >>> found["A2"].status, found["A2"].number
    ('holds', 'delta from 0.76 to 0.76')
    """
    check_type("check", experiment, Experiment)
    facts = _Regression(experiment) if is_quadratic(experiment.problem) else None
    rows = (
        _lipschitz(experiment, facts),
        _step_sizes(experiment),
        _bounded(experiment, facts),
        _independent(experiment),
        _bounded_gradients(facts),
        *departures(experiment),
    )
    return Assumptions(rows, _needs(rows[0], facts))


class _Regression:
    """The deciding numbers of linear regression."""

    def __init__(self, e: Experiment) -> None:
        problem = as_quadratic(e.problem)
        self.curvature = float(problem.curvature.max())
        p = e.limit_influence
        a = np.tensordot(p, problem.moments[0], axes=1) / p.sum()
        self.smallest = float(np.linalg.eigvalsh(a)[0])
        unique = self.smallest > 1e-12 * self.curvature
        self.w = problem.equilibrium(p) if unique else np.zeros(problem.dim)
        second = [_second_moment(problem, i, self.w) for i in range(e.num_clients)]
        fields = np.linalg.norm(problem.mean_field(self.w), axis=-1)
        self.second_moment = float(max(second))
        self.variance = float(max((np.array(second) - fields**2) / e.batch_sizes))
        self.apart = float(fields.max())
        self.pull = float(np.linalg.norm(p @ problem.mean_field(self.w)) / p.sum())


def _second_moment(problem: Any, i: int, w: Array) -> float:
    """Mean over client i's samples of the squared gradient norm at w."""
    x, y = problem.x[i], problem.y[i]
    return float(np.mean((x @ w - y) ** 2 * np.sum(x * x, axis=1)))


def _lipschitz(e: Experiment, facts: _Regression | None) -> Assumption:
    asks = "mean fields are Lipschitz"
    if facts is None:
        why = "true of twice differentiable losses with a bounded second derivative"
        return Assumption("A1", asks, "assumed", "not known", why)
    why = "the largest curvature of a client, exact for squared loss"
    return Assumption("A1", asks, "holds", f"K_1 = {facts.curvature:.4g}", why)


def _step_sizes(e: Experiment) -> Assumption:
    deltas = [s.delta for s in e.schedules]
    asks = "step sizes c / n^delta with 3/4 < delta <= 1"
    low, high = min(deltas), max(deltas)
    number = f"delta from {low:g} to {high:g}"
    outside = [i for i, d in enumerate(deltas) if not 0.75 < d <= 1]
    if not outside:
        why = "steps sum to infinity, their squares do not"
        return Assumption("A2", asks, "holds", number, why)
    first = outside[0]
    if deltas[first] > 1:
        why = "a finite sum of steps: the model may stop before it has converged"
    elif deltas[first] > 0.5:
        why = "squares are summable, but the noise terms of the proof need delta > 3/4"
    else:
        why = "squares of the steps are not summable: the noise never settles"
    who = f"client {first}" + (f" and {len(outside) - 1} more" if len(outside) > 1 else "")
    return Assumption("A2", asks, "fails", number, f"{who}: {why}")


def _bounded(e: Experiment, facts: _Regression | None) -> Assumption:
    asks = "iterates stay bounded"
    if facts is None:
        why = "true of convex losses; of others near a local minimum"
        return Assumption("A3", asks, "assumed", "not known", why)
    found = stability(e)
    if not found.stable and not (found.growth <= 1):  # NaN: an optimiser at the server
        if np.isnan(found.growth):
            number = f"first step times curvature {found.first_step * found.curvature:.3g}"
            return Assumption("A3", asks, "assumed", number, found.advice)
        return Assumption("A3", asks, "fails", f"{found.growth:.3g}-fold per round", found.advice)
    if facts.smallest <= 1e-12 * facts.curvature:
        why = "the clients that count have no curvature in some direction: many equilibria"
        return Assumption("A3", asks, "assumed", "smallest curvature 0", why)
    number = f"smallest curvature {facts.smallest:.4g}"
    if all(0.5 < s.delta <= 1 for s in e.schedules):
        climb = f", after a climb of about 1e{found.peak:.0f}" if found.peak >= 0.5 else ""
        return Assumption("A3", asks, "holds", number, f"strongly convex losses{climb}")
    why = "bounded in the mean square, by strong convexity; not proved for every path"
    return Assumption("A3", asks, "assumed", number, why)


def _independent(e: Experiment) -> Assumption:
    asks = "a client's samples are IID with finite variance"
    if is_stream(e.problem):
        rho = float(as_stream(e.problem).rhos.max())
        number = f"correlation {rho:g}"
        if rho > 0:
            return Assumption("A4", asks, "fails", number, "samples form a dependent stream")
        if e.problem.kind == "moving":
            why = "every sample is new and independent, but their population moves (M)"
            return Assumption("A4", asks, "fails", number, why)
        why = "every sample is drawn anew from the client's population, and used once"
        return Assumption("A4", asks, "holds", number, why)
    drawn, low = e.batch_sizes, int(np.min(e.problem.sizes))
    batch = f"{drawn.min()}" + (f" to {drawn.max()}" if drawn.max() > drawn.min() else "")
    number = f"mini-batches of {batch} from {low} or more samples"
    if e.local_epochs is not None and not is_quadratic(e.problem):
        why = "epochs draw without replacement: only different epochs are independent"
        return Assumption("A4", asks, "assumed", number, why)
    why = "drawn uniformly, with replacement, from a finite set"
    return Assumption("A4", asks, "holds", number, why)


def _bounded_gradients(facts: _Regression | None) -> Assumption:
    asks = "mean squared gradient bounded over all w"
    if facts is None:
        why = "true of losses with bounded gradients, such as logistic loss on bounded data"
        return Assumption("A5", asks, "assumed", "not known", why)
    number = f"{facts.second_moment:.4g} at w*, growing as |w|^2"
    why = "never true of squared loss; true on bounded sets, which with A3 is all the proof uses"
    return Assumption("A5", asks, "fails", number, why)


def _needs(lipschitz: Assumption, facts: _Regression | None) -> tuple[Need, ...]:
    """The paper's table, with what is known here."""
    unknown: tuple[Status, str] = ("assumed", "not known")
    bounded = dissimilar = convex = variance = unknown
    if facts is not None:
        bounded = ("fails", "squared loss; holds on bounded sets")
        flat = facts.pull <= 1e-6 * max(facts.apart, 1e-300) and facts.apart > 1e-6
        dissimilar = (
            ("fails", f"at w* the mean field is 0, a client's {facts.apart:.4g}: no finite "
             "ratio (FedNova's form adds a constant, and holds)")
            if flat else ("holds", f"largest field of a client at w* {facts.apart:.4g}")
        )  # fmt: skip
        strong = facts.smallest > 1e-12 * facts.curvature
        convex = ("holds", f"{'strongly, ' if strong else ''}smallest curvature "
                  f"{max(facts.smallest, 0.0):.4g}")  # fmt: skip
        variance = ("fails", f"{facts.variance:.4g} per mini-batch at w*, growing as |w|^2; "
                    "holds on bounded sets")  # fmt: skip
    all_, two = THEORIES, ("this", "FedAvg")
    return (
        Need("smooth", all_, lipschitz.status, lipschitz.number),
        Need("bounded derivatives", two, *bounded),
        Need("gradient dissimilarity bounded", ("FedProx", "FedNova"), *dissimilar),
        Need("convex", ("FedAvg", "FedProx"), *convex),
        Need("bounded variance", all_, *variance),
    )
