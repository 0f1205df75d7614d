"""Fairness while training: a run whose scales a controller moves towards a goal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers, check_type
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.rules.steering import Looks, Steering
from fedtaper.simulation.controller import Judge
from fedtaper.simulation.drive import run as simulate

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Steered:
    """A run whose influences were steered; ``run`` is the whole Run."""

    run: Run

    @property
    def experiment(self) -> Experiment:
        """The experiment with the scales as they were moved."""
        return self.run.experiment

    @property
    def looks(self) -> Looks:
        """What the controller saw and did."""
        assert self.run.looks is not None
        return self.run.looks

    @property
    def w(self) -> Array:
        """The last shared model, (d,)."""
        return self.run.final

    @property
    def round(self) -> NDArray[np.int64]:
        """After which rounds the controller looked, (looks,)."""
        return self.looks.round

    @property
    def losses(self) -> Array:
        """Every client's loss at each look, (looks, L)."""
        return self.looks.losses

    @property
    def share(self) -> Array:
        """Every client's share of the influence until each look, (looks, L)."""
        return self.looks.share

    def rows(self) -> list[list[str]]:
        """The log: one row per look, a heading first."""
        return self.looks.rows()


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
    out: str | Path | None = None,
    resume: bool = False,
    updates: bool = False,
    engine: str | None = None,
    device: str | None = None,
    progress: bool | None = False,
) -> Steered:
    """Train, and move the clients' scales towards a fairness goal while doing so.

    The same as ``ft.run`` of an experiment with ``steering=ft.Steering(goal, ...)``; see there
    for every setting.

    Args:
        experiment: the starting point.
        goal: "minmax", "q", "tilt" or "proportional", as for ``ft.fair``.
        every: rounds between two looks.
        rate: size of the first move.
        bound: no client's influence falls below the largest divided by this.
        judge: a function from the model to every client's loss, or a problem with held-out
            samples of every client; by default the clients' own training losses.
        q: of the goal "q".
        t: of the goal "tilt".
        baseline: of the goal "proportional".
        out: as for ``ft.run``: a folder to store the run in.
        resume: as for ``ft.run``.
        updates: as for ``ft.run``: record every client's update, for an audit.
        engine: as for ``ft.run``.
        device: as for ``ft.run``.
        progress: as for ``ft.run``.

    >>> import fedtaper as ft
    >>> e = ft.Experiment(ft.LinearRegression(samples=500), ft.Power(0.05, 0.76, 50), 200, 5)
    >>> found = ft.steer(e, "minmax", every=20)
    >>> bool(found.losses[-1].max() < found.losses[0].max())
    True
    """
    check_type("steer", experiment, Experiment)
    found = None if baseline is None else np.atleast_1d(as_numbers("baseline", baseline))
    given = None if found is None else tuple(found.tolist())
    fixed = given[0] if given is not None and len(given) == 1 else given
    plan = Steering(goal, every, rate, bound, q, t, fixed)
    made = simulate(
        replace(experiment, steering=plan), out=out, resume=resume, updates=updates,
        engine=engine, device=device, progress=progress, judge=judge,
    )  # fmt: skip
    if made.diverged:
        raise FedtaperError(f"the run diverged: {made.diverged[0]}")
    return Steered(made)
