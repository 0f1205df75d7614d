"""From the influences you want at your horizon to the step sizes that give them.

Plans are about effective influence: server weight times participation times the sum of the
step sizes of the last round. Finite influences come only from the scales c, at one delta, so
they hold throughout the run where all clients have the same clock values; where they have not,
a warning says how far earlier rounds are from it. Fading comes from delta, within assumption A2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_list, as_path
from fedtaper.core.errors import AssumptionWarning, FedtaperError, warn
from fedtaper.core.protocols import checked_problem
from fedtaper.core.schedules import Power
from fedtaper.core.tables import html, label, plain
from fedtaper.experiment import Experiment
from fedtaper.planning.over_time import FASTEST, drifting, fading, on_scale, vanishing
from fedtaper.planning.targets import RULES, Fade, Target, are_texts, targets, tidy
from fedtaper.problems.linear import LinearRegression
from fedtaper.storage import durable
from fedtaper.storage.config import to_toml
from fedtaper.theory.prices import Price, exact_price
from fedtaper.theory.stability import curvatures, stability_at

Array = NDArray[np.float64]
__all__ = ["RULES", "Fade", "Plan", "plan"]
PRICED = 500  # parameters of a model whose prices are shown beside the shares
PRICES = "own loss, mean loss: their change for 1 % more influence of this client"


@dataclass(frozen=True, repr=False)
class Plan:
    """Step sizes that give the influences asked for, and what they give.

    ``experiment`` is ready to run; ``target`` is what was asked for at the horizon (NaN for
    clients that fade: their influence there follows from the fading); ``warnings`` name what is
    not possible, with the nearest that is.
    """

    experiment: Experiment
    target: Array
    warnings: tuple[str, ...]
    advice: str
    real: bool = False  # whether the problem is the user's, and not one made up for its sizes

    @cached_property
    def prices(self) -> Price | None:
        """What 1 % more influence does to every client's loss; None without a convex problem."""
        e = self.experiment
        if not self.real or e.problem.dim > PRICED:
            return None
        try:
            return replace(exact_price(e.problem, e.influence().share), names=e.names or ())
        except FedtaperError:  # not convex, or without a minimiser: there is no exact price
            return None

    @property
    def schedules(self) -> tuple[Power, ...]:
        """One per client."""
        return tuple(self.experiment.schedules)  # type: ignore[arg-type]  # plans are made of Power

    @property
    def effective(self) -> Array:
        """Effective influence at the horizon, on the target's scale."""
        return on_scale(self.experiment.influence().raw, self.target)

    def rows(self, prices: bool = True) -> list[list[str]]:
        """The table's cells, a heading first: influences, then the factors of the effective one.

        a at end: mean step size in the last round; rate: participation. Where the problem is
        convex: by how much 1 % more influence changes the client's own loss, and the mean loss.
        """
        e = self.experiment
        found, limit = e.influence(), on_scale(e.limit_influence, self.target)
        head = ["client", "step size", "target", "effective", "limit"]
        head += ["a at end", "steps", "weight", "rate"]
        priced = self.prices.rows() if prices and self.prices is not None else []
        head += ["share", "own loss", "mean loss"] if priced else []
        rows = [head]
        for i, s in enumerate(self.schedules):
            asked = "fades" if np.isnan(self.target[i]) else f"{self.target[i]:.3g}"
            clock = f"(n+{s.offset:g})" if s.offset else "n"
            numbers = [self.effective[i], limit[i], found.step_size[i], found.local_steps[i]]
            numbers += [found.server_weight[i], found.participation[i]]
            cells = [label(e.names, i), f"{s.c:.4g}/{clock}^{s.delta:.3g}", asked]
            price = priced[i + 1][1:4] if priced else []
            rows.append([*cells, *(f"{x:.3g}" for x in numbers), *price])
        return rows

    def __str__(self) -> str:
        return "\n".join(
            [
                self._title,
                *plain(self.rows()),
                *(f"warning: {w}" for w in self.warnings),
                self.advice,
                *self.notes,
            ]
        )

    def __repr__(self) -> str:
        e = self.experiment
        given = ", ".join(f"{label(e.names, i)} {p:.3g}" for i, p in enumerate(self.effective))
        told = f"; {len(self.warnings)} warnings" if self.warnings else ""
        return f"Plan({e.rounds} rounds, influence {given:.200}{told})"

    def _repr_html_(self) -> str:
        notes = [*(f"warning: {w}" for w in self.warnings), self.advice, *self.notes]
        return html(self._title, self.rows(), notes)

    @property
    def _title(self) -> str:
        e = self.experiment
        return f"Influence at round {e.rounds} (n = {e.rounds * e.period})"

    @property
    def notes(self) -> tuple[str, ...]:
        """How to read the table, if that is not obvious."""
        return () if self.prices is None else (PRICES,)

    def toml(self) -> str:
        """The experiment as TOML for ``fedtaper run``."""
        return to_toml(tidy(self.experiment))

    def save(self, path: str | Path) -> Path:
        """Write :meth:`toml` to a file."""
        path = as_path(path)
        durable.write(path, self.toml().encode())
        return path

    def plot(self, path: str | Path) -> Path:
        """Draw effective influence over the run."""
        from fedtaper.show.plan import influence_over_rounds

        return influence_over_rounds(self, as_path(path))


def plan(
    target: Target,
    rounds: int,
    local_steps: int | Sequence[int] | None = None,
    *,
    problem: Any = None,
    num_clients: int | None = None,
    sizes: int | Sequence[int] | None = None,
    c: float = 0.1,
    delta: float = 0.76,
    offset: float | None = 0.0,
    **settings: Any,
) -> Plan:
    """Step sizes for the influences that are wanted at the horizon.

    Args:
        target: one number per client, to scale; or client to number, the rest counting 1; or
            one or more rules as text: ``"rare client counts 10x"``, ``"client 0 counts 3x"``,
            ``"fade client 3 to 30% by round 80"``, ``"equal effective influence"``. A target
            of 0 asks a client to vanish: as fast as A2 allows.
        rounds: the horizon.
        local_steps: updates per round, one or one per client; or ``local_epochs=``.
        problem: what the clients minimise. Without it a linear regression with ``num_clients``
            clients of ``sizes`` samples is used: influences depend only on sizes, and
            stability is not judged.
        num_clients: how many, if the target does not say.
        sizes: samples of each client.
        c: the largest scale of any client.
        delta: the taper of every client that does not fade.
        offset: of all schedules; None chooses one that avoids the climb of the first updates.
        settings: any other of an Experiment's: ``server``, ``clock``, ``participation``,
            ``batch_size``, ``local_epochs``, ...

    >>> found = plan(target=[1, 0.1, 0.1], rounds=100, local_steps=5, sizes=[500, 1000, 500])
    >>> found.effective.round(3)
    array([1. , 0.1, 0.1])
    >>> found.schedules[1]
    Power(c=0.01, delta=0.76, offset=0.0)
    """
    known = problem is not None
    if not known and offset is None:
        raise FedtaperError(
            "offset=None (--stable) needs the curvature of the clients' losses: give problem= "
            "(--file), or an offset"
        )
    if not known and settings.get("local_epochs") is not None and settings.get("clock") is None:
        settings["clock"] = "epoch"  # as for every problem that is trained in epochs
    if isinstance(target, Iterator):  # it is looked at more than once
        target = as_list("target", target)
    problem = _problem(problem, target, num_clients, sizes)
    numbers, fades = targets(target, problem, settings.get("names"))
    start = Power(c, delta, 0.0 if offset is None else offset)
    steps: Any = local_steps
    if isinstance(local_steps, Iterable):
        steps = tuple(as_list("local_steps", local_steps))
    base = Experiment(problem, start, rounds=rounds, local_steps=steps, **settings)
    if np.any(base.rates[(numbers > 0) | np.isnan(numbers)] == 0):
        raise FedtaperError(
            "a client that never takes part (participation 0) cannot have influence: give it a "
            "target of 0"
        )
    curvature = curvatures(base) if known else None
    if offset is None and curvature is not None:
        start = replace(start, offset=max(0.0, stability_at(base, curvature).safe_offset))
        base = replace(base, schedules=start)
    schedules = _scales(base, numbers, start)
    told: list[str] = []
    for client, fade in fades.items():
        schedules[client], refused = fading(base, schedules, client, fade, numbers)
        told += refused
    made = replace(base, schedules=tuple(schedules))
    told += vanishing(made, numbers)
    drift = drifting(made, numbers)
    for text in told:
        warn(text, AssumptionWarning)
    for text in drift:
        warn(text)
    told += drift
    return Plan(made, numbers, tuple(told), _advice(made, curvature, known), known)


def _problem(problem: Any, target: Target, num_clients: int | None, sizes: Any) -> Any:
    if problem is not None:
        if sizes is not None:
            raise FedtaperError("give problem= or sizes=, not both: a problem has its own sizes")
        return checked_problem("problem", problem)
    count = num_clients
    listed = isinstance(sizes, Sequence) or (isinstance(sizes, np.ndarray) and sizes.ndim > 0)
    if count is None and listed and np.ndim(as_list("sizes", sizes)[:1]) == 1:
        count = len(sizes)
    if count is None and not isinstance(target, (str, Mapping)) and not are_texts(target):
        count = len(as_list("target", target))
    if count is None:
        raise FedtaperError("how many clients? give num_clients=, sizes= or problem=")
    samples: Any = 5000 if sizes is None else sizes
    return LinearRegression(num_clients=count, samples=samples)


def _scales(base: Experiment, numbers: Array, start: Power) -> list[Power]:
    """Scales c that give the numbers at the horizon; the largest is the given one."""
    if base.server.erases_influence:
        raise FedtaperError(
            f"{base.server!r} undoes the step sizes: a client counts about the same whatever "
            'its steps; use Average() or Normalised(over="steps")'
        )
    stays = np.nan_to_num(numbers) > 0
    wanted = np.where(numbers == 0, np.nanmax(numbers), np.where(stays, numbers, 1.0))
    with np.errstate(divide="ignore"):
        scale = wanted / base.influence().raw
    scale = np.where(np.isfinite(scale), scale, 1.0)  # a target of 0 that never takes part
    scale *= start.c / scale[stays].max()
    taper = [FASTEST if value == 0 else start.delta for value in numbers]
    return [replace(start, c=float(s), delta=d) for s, d in zip(scale, taper, strict=True)]


def _advice(made: Experiment, curvature: Array | None, known: bool) -> str:
    if not known:
        return "stability: not judged; that needs the problem (problem=, --file)"
    if curvature is None:
        return "stability: not judged; the model is too large to measure its curvature"
    if made.local.rescales:
        return (
            f"stability: not judged; {type(made.local).__name__} scales each coordinate by itself"
        )
    return f"stability: {stability_at(made, curvature).advice}"
