"""One setting over several problems and many seeds, reduced to what claims and figures need."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import StabilityWarning
from fedtaper.core.protocols import as_quadratic
from fedtaper.core.schedules import Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Study
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.rules.presets import PRESETS
from fedtaper.simulation.drive import run

Array = NDArray[np.float64]
PROBLEMS = 10
ROUNDS, LOCAL_STEPS, BATCH = 5000, 5, 50
PAPER_STEP = Power(c=0.1, delta=0.76)
LATE = slice(-500, None)
MIDDLE = slice(500, 1000)
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Setting:
    """What is varied around the paper's own set-up."""

    schedules: tuple[Schedule, ...] | Schedule = PAPER_STEP
    local_steps: int = LOCAL_STEPS
    preset: str = "fedavg"
    problem: tuple[tuple[str, Any], ...] = ()
    spreads: tuple[float, ...] = ()  # each client's feature spread is drawn from these

    def experiment(self, number: int) -> Experiment:
        """The experiment on the problem of this number."""
        changes = dict(self.problem)
        if self.spreads:
            rng = draws.generator(number, 3)
            changes["feature_spread"] = tuple(rng.choice(self.spreads, size=10).tolist())
        return Experiment(
            LinearRegression(seed=number, **changes),
            self.schedules,
            rounds=ROUNDS,
            batch_size=BATCH,
            **{"local_steps": self.local_steps} | PRESETS[self.preset],
        )


@dataclass
class Ensemble:
    """Curves (quantiles over all seeds) and per-seed numbers, shape (problems, seeds)."""

    k: NDArray[np.int64]
    curves: dict[str, Array] = field(default_factory=dict)
    first_gradient: Array = field(default_factory=lambda: np.empty(0))
    arrival: Array = field(default_factory=lambda: np.empty(0))
    middle_error: Array = field(default_factory=lambda: np.empty(0))
    late_error: Array = field(default_factory=lambda: np.empty(0))
    final_error: Array = field(default_factory=lambda: np.empty(0))
    final_error_limit: Array = field(default_factory=lambda: np.empty(0))
    late_gradient: Array = field(default_factory=lambda: np.empty(0))
    final_client_gradients: Array = field(default_factory=lambda: np.empty(0))
    wobble: Array = field(default_factory=lambda: np.empty(0))
    diverged: Array = field(default_factory=lambda: np.empty(0))

    @property
    def settling(self) -> Array:
        """Late error over the error of rounds 501 to 1000: near 1 if it never settles."""
        return self.late_error / self.middle_error


def ensemble(study: Study, setting: Setting) -> Ensemble:
    """Run a setting on every problem (once per study, however many claims ask)."""
    return study.once(setting, lambda: _join([_part(study, setting, j) for j in range(PROBLEMS)]))


def _part(study: Study, setting: Setting, number: int) -> dict[str, Any]:
    count = -(-study.seeds // PROBLEMS)
    seeds = range(number * count, (number + 1) * count)
    return _reduce(quiet_run(setting.experiment(number), seeds))


def quiet_run(experiment: Experiment, seeds: Any) -> Run:
    """A run without its stability warning, which is part of the claim."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)
        return run(experiment, seeds=seeds, progress=False)


def log_rounds(rounds: int, points: int = 160) -> NDArray[np.int64]:
    """Rounds at which curves are drawn: evenly spaced on a log axis."""
    return np.unique(np.geomspace(1, rounds, points).round().astype(np.int64))


def wobble(w: Array) -> Array:
    """Root mean square distance of the shared model from its own mean over a window."""
    centred = w - w.mean(axis=-2, keepdims=True)
    return np.asarray(np.sqrt((centred**2).sum(axis=-1).mean(axis=-1)))


def _reduce(made: Run) -> dict[str, Any]:
    assert made.w is not None
    k = log_rounds(ROUNDS)
    error, gradient = made.metrics["error"], made.metrics["gradient_norm"]
    near = np.maximum.accumulate((error > 0.05)[:, ::-1], axis=1)[:, ::-1]  # still to exceed
    field_ = as_quadratic(made.experiment.problem).mean_field(made.w[:, -1])
    with np.errstate(over="ignore", invalid="ignore"):
        late_w = wobble(made.w[:, LATE])
    return {
        "curves": {name: values[:, k - 1] for name, values in made.metrics.items()},
        "first_gradient": gradient[:, 0],
        "arrival": 1.0 + near.sum(axis=1),
        "middle_error": np.median(error[:, MIDDLE], axis=1),
        "late_error": np.median(error[:, LATE], axis=1),
        "final_error": error[:, -1],
        "final_error_limit": made.metrics["error_limit"][:, -1],
        "late_gradient": np.median(gradient[:, LATE], axis=1),
        "final_client_gradients": np.linalg.norm(field_, axis=-1),
        "wobble": late_w,
        "diverged": np.array([s in {d.seed for d in made.diverged} for s in made.seeds]),
    }


def _join(parts: list[dict[str, Any]]) -> Ensemble:
    curves = {}
    for name in parts[0]["curves"]:
        stacked = np.concatenate([part["curves"][name] for part in parts])
        finite = np.where(np.isfinite(stacked), stacked, np.inf)
        curves[name] = np.quantile(finite, QUANTILES, axis=0, method="nearest")
    numbers = {k: np.stack([p[k] for p in parts]) for k in parts[0] if k != "curves"}
    return Ensemble(log_rounds(ROUNDS), curves, **numbers)
