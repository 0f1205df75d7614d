"""Fair while training: a controller that moves the clients' scales on a slower clock.

The model trains for some rounds with fixed step sizes; then every client's loss is looked at
and the scales c_i move a little towards the goal; and so on. The controller's own steps taper
faster than the model's, so that the model sees influences that hardly move, and the
controller a model that has settled for them (two timescales). Scales are bounded, and every
move is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper import engines
from fedtaper.core.checks import check_whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Options, is_quadratic
from fedtaper.core.schedules import Power
from fedtaper.engines.gate import choose
from fedtaper.experiment import Experiment
from fedtaper.outcomes.goals import Goal, goal_of
from fedtaper.outcomes.losses import QuadraticLosses, TorchLosses

Array = NDArray[np.float64]
Judge = Callable[[Array], Array]  # the shared model (d,) -> every client's loss (L,)


@dataclass(frozen=True)
class Steered:
    """A run whose influences were steered.

    Attributes:
        experiment: the experiment as it ended: with the last scales.
        w: the last shared model, (d,).
        round: after which rounds the controller looked, (moves,).
        losses: every client's loss then, (moves, L).
        share: every client's share of the influence before each look, (moves, L).
        goal: towards what.
    """

    experiment: Experiment
    w: Array = field(repr=False)
    round: NDArray[np.int64]
    losses: Array
    share: Array
    goal: str
    engine: str
    seconds: float

    def rows(self) -> list[list[str]]:
        """The log: one row per look, a heading first."""
        head = ["round", "worst loss", "mean loss", "smallest share", "largest share"]
        rows = [head]
        for k, f, p in zip(self.round, self.losses, self.share, strict=True):
            numbers = (f.max(), f.mean(), p.min(), p.max())
            rows.append([str(int(k)), *(f"{v:.4g}" for v in numbers)])
        return rows


def steer(
    experiment: Experiment,
    goal: str = "minmax",
    *,
    every: int = 10,
    rate: float = 1.0,
    bound: float = 100.0,
    judge: Judge | Any = None,
    q: float = 1.0,
    t: float = 1.0,
    baseline: ArrayLike | None = None,
    engine: str | None = None,
    device: str | None = None,
) -> Steered:
    """Train, and move the clients' scales towards a fairness goal while doing so.

    For "minmax" the log of a client's influence rises in proportion to how far its loss is
    above the weighted mean (mirror ascent); for the smooth goals it moves towards the log of
    dphi/df. Move k has the size ``rate / k^0.9``.

    Args:
        experiment: the starting point; its schedules must be ``Power``. Scales are
            multiplied by factors whose mean stays 1, so that the model moves as fast as
            before; the largest may grow up to the number of clients times.
        goal: "minmax", "q", "tilt" or "proportional", as for ``ft.fair``.
        every: rounds between two looks.
        rate: size of the first move; 1 changes an influence by a factor of e where a loss is
            the mean loss above the mean.
        bound: no client's influence is less than the largest over this.
        judge: a function from the model to every client's loss, or a problem with held-out
            samples of every client; by default the clients' own training losses.
        q: of the goal "q".
        t: of the goal "tilt".
        baseline: of the goal "proportional".
        engine: as for ``ft.run``.
        device: as for ``ft.run``.

    >>> import fedtaper as ft
    >>> e = ft.Experiment(ft.LinearRegression(samples=500), ft.Power(0.05, 0.76, 50), 200, 5)
    >>> found = ft.steer(e, "minmax", every=20)
    >>> bool(found.losses[-1].max() < found.losses[0].max())
    True
    """
    began = time.perf_counter()
    check_whole("every", every)
    if not (np.isfinite(rate) and rate > 0 and np.isfinite(bound) and bound > 1):
        raise FedtaperError(f"rate must be above 0 and bound above 1, not {rate!r} and {bound!r}")
    if not all(isinstance(s, Power) for s in experiment.schedules):
        raise FedtaperError("steering changes the scale c of Power schedules: use those")
    if experiment.local.keeps == "run":
        raise FedtaperError("steering opens the engine anew: use a local rule without run memory")
    look = _judge(experiment, judge)
    wanted: Goal | None = None
    options = Options(device=device)
    selected = choose(experiment, engine, options)
    state = engines.init(experiment, np.array([experiment.seed]), False)
    base = np.array([s.c for s in experiment.schedules])
    factor = np.ones(len(base))  # of each client's scale
    made: list[tuple[int, Array, Array]] = []
    e = experiment
    while state.round < experiment.rounds:
        session = selected.open(e, state, options)
        try:
            session.advance(min(every, experiment.rounds - state.round))
        finally:
            session.sync()
            session.close()
        if state.dead_round[0]:
            raise FedtaperError(f"the run diverged in round {state.dead_round[0]}: smaller steps")
        f = look(state.w[0])
        wanted = wanted or goal_of(goal, f, q, t, baseline)
        share = e.influence(max(1, state.round)).share
        made.append((state.round, f, share))
        factor = _moved(wanted, factor, share, f, rate / len(made) ** 0.9, bound)
        e = _with_scales(experiment, base * factor)
    rounds, losses, given = zip(*made, strict=True)
    return Steered(
        experiment=e,
        w=state.w[0].copy(),
        round=np.array(rounds),
        losses=np.stack(losses),
        share=np.stack(given),
        goal=goal,
        engine=selected.name,
        seconds=time.perf_counter() - began,
    )


def _moved(goal: Goal, factor: Array, share: Array, f: Array, size: float, bound: float) -> Array:
    """The next factors: 1 on average, no influence below 1 / bound of the largest."""
    if goal.worst:
        move = (f - share @ f) / max(float(f.mean()), 1e-300)
    else:
        slopes = np.maximum(goal.slopes(f), 1e-300)
        move = np.log(slopes / slopes.sum()) - np.log(share)
    wanted = np.log(share) + size * move  # influence is proportional to the scale
    wanted = np.maximum(wanted, wanted.max() - np.log(bound))
    new = factor * np.exp(wanted - np.log(share))
    return np.asarray(new / new.mean())


def _with_scales(e: Experiment, c: Array) -> Experiment:
    pairs = zip(e.schedules, c, strict=True)
    made = [replace(s, c=float(v)) if isinstance(s, Power) else s for s, v in pairs]
    return replace(e, schedules=tuple(made))


def _judge(e: Experiment, judge: Any) -> Judge:
    if callable(judge):
        return judge
    problem = e.problem if judge is None else judge
    if problem.num_clients != e.num_clients:
        raise FedtaperError(
            f"the held-out problem has {problem.num_clients} clients, not {e.num_clients}"
        )
    losses = QuadraticLosses(problem) if is_quadratic(problem) else TorchLosses(problem)
    return losses.values
