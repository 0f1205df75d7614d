"""Claim E1: seizure detection by hospitals, judged infant by infant.

The recordings are used if their folder is named (FEDTAPER_DATA or ``--data``), otherwise the
synthetic stand-in; the outcome says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study, outcome_of
from fedtaper.problems.data.eeg import FILE
from fedtaper.problems.data.sources import folder_of
from fedtaper.problems.eeg import SeizureDetection
from fedtaper.simulation.drive import run

Array = NDArray[np.float64]
FOLDS, SEEDS, ROUNDS, LATE = 5, 3, 40, 10
SCALE, CONSTANT = 0.3, 0.1  # step sizes: 0.3 / k^0.76 in round k, or 0.1
RESAMPLES = 2000


@dataclass(frozen=True)
class Found:
    """One way of training: each infant's score with each seed, and how the model still moves."""

    seizure: NDArray[np.bool_]  # (infants,)
    score: Array  # (seeds, infants)
    change: Array  # (runs, rounds)

    @property
    def late_change(self) -> float:
        """The mean change of the shared model in the last rounds."""
        return float(self.change[:, -LATE:].mean())


def schedules_of(problem: SeizureDetection, planned: bool, tapering: bool) -> list[Schedule]:
    """Step sizes whose influences are equal, or proportional to the hospitals' infants."""
    infants = problem.infant_counts
    scale = infants / infants.mean() if planned else np.ones(len(infants))
    if tapering:
        return [Power(SCALE * s, 0.76) for s in scale]
    return [Constant(CONSTANT * s) for s in scale]


def trained(data: str, model: str, planned: bool, tapering: bool, seeds: int) -> Found:
    """All folds, pooled: every infant is scored by a model that never saw it."""
    scores: list[Array] = []
    seizure: list[NDArray[np.bool_]] = []
    changes: list[Array] = []
    for fold in range(FOLDS):
        problem = SeizureDetection(data, model, fold=fold)  # type: ignore[arg-type]  # checked there
        e = Experiment(
            problem, schedules_of(problem, planned, tapering), rounds=ROUNDS, local_steps=10,
            batch_size=16, clock="round",
        )  # fmt: skip
        made = run(e, seeds=range(seeds), progress=False)
        assert made.w is not None
        found = [problem.infant_scores(w) for w in made.w[:, -1]]
        scores.append(np.stack([score for _, _, score in found]))
        seizure.append(found[0][1])
        changes.append(made.metrics["change"])
    return Found(np.concatenate(seizure), np.concatenate(scores, axis=1), np.concatenate(changes))


def auc(seizure: NDArray[np.bool_], score: Array) -> Array:
    """The chance that an infant with seizures scores above one without, ties as halves."""
    gap = score[..., seizure][..., :, None] - score[..., ~seizure][..., None, :]
    return np.asarray(((gap > 0) + 0.5 * (gap == 0)).mean(axis=(-2, -1)))


def by_infant(found: list[Found], value: Callable[..., Array]) -> tuple[float, float, float]:
    """A value of the scores with its 95 % interval: infants are resampled, each kind separately.

    The seeds are averaged. All ways to train see the same resampled infants, so a difference
    between two of them is a paired one.
    """
    rng = np.random.default_rng(0)
    seizure = found[0].seizure
    ill, well = np.flatnonzero(seizure), np.flatnonzero(~seizure)
    again = []
    for _ in range(RESAMPLES):
        who = np.concatenate([rng.choice(ill, len(ill)), rng.choice(well, len(well))])
        again.append(float(value(*(auc(seizure[who], f.score[:, who]).mean() for f in found))))
    low, high = np.quantile(again, [0.025, 0.975])
    return float(value(*(auc(seizure, f.score).mean() for f in found))), float(low), float(high)


def data_at_hand() -> str:
    """The recordings if their folder is named, else the synthetic stand-in."""
    folder = folder_of(None)
    return "neonatal_eeg" if folder is not None and (folder / FILE).is_file() else "synthetic"


def judge_e1(study: Study) -> Outcome:
    """Every way to train, its area under the curve by infant, and the differences."""
    data = data_at_hand()
    seeds = min(SEEDS, study.seeds)
    found: dict[tuple[str, str, str], Found] = {}
    for model in ("features", "cnn"):
        for influence in ("equal", "planned"):
            for steps in ("constant", "tapering"):
                study.say(f"E1: {data}, {model}, {influence} influence, {steps} steps")
                found[model, influence, steps] = trained(
                    data, model, influence == "planned", steps == "tapering", seeds
                )
    checks = _checks(found)
    _draw(found, study)
    areas = {"/".join(k): by_infant([f], lambda a: a) for k, f in found.items()}
    best, worst = (max(v[0] for v in areas.values()), min(v[0] for v in areas.values()))
    summary = (
        f"{'The recordings' if data == 'neonatal_eeg' else 'The synthetic stand-in'}, "
        f"{len(found['cnn', 'equal', 'tapering'].seizure)} infants, {FOLDS} folds by infant, "
        f"{seeds} seeds. Area under the curve by infant between {worst:.2f} and {best:.2f}: "
        + "; ".join(f"{k} {v:.2f} ({a:.2f} to {b:.2f})" for k, (v, a, b) in areas.items())
        + "."
    )
    return outcome_of(
        checks,
        summary,
        (
            "this one",
            "recordings in which the same infants have windows of both kinds, and more infants",
        ),
        ("e1-auc.png", "e1-change.png"),
        {"data": data, "folds": FOLDS, "seeds": seeds, "rounds": ROUNDS},
    )


def _checks(found: dict[tuple[str, str, str], Found]) -> list[Check]:
    checks = []
    for model in ("features", "cnn"):
        constant, tapering = (found[model, "equal", s] for s in ("constant", "tapering"))
        ratio = constant.late_change / tapering.late_change
        name = f"{model}: late change of the model, constant over tapering steps"
        checks.append(Check(name, ratio, ratio, ratio, "at least 2", ratio >= 2))
        for one, other, what in (
            ((model, "equal", "tapering"), (model, "equal", "constant"), "tapering - constant"),
            ((model, "planned", "tapering"), (model, "equal", "tapering"), "planned - equal"),
        ):
            value, low, high = by_infant([found[one], found[other]], lambda a, b: a - b)
            title = f"{model}: area under the curve by infant, {what}"
            checks.append(
                Check(title, value, low, high, "no loss: the interval reaches 0", high >= 0)
            )
        value, low, high = by_infant([found[model, "planned", "tapering"]], lambda a: a)
        title = f"{model}, planned, tapering: area under the curve by infant"
        checks.append(Check(title, value, low, high, "better than chance: above 0.5", low > 0.5))
    return checks


def _draw(found: dict[tuple[str, str, str], Found], study: Study) -> None:
    from fedtaper.show.eeg import areas, changes

    values = {", ".join(k): by_infant([f], lambda a: a) for k, f in found.items()}
    areas(values, study.figure("e1-auc.png"))
    lines: dict[str, Any] = {", ".join(k): f.change.mean(axis=0) for k, f in found.items()}
    changes(lines, study.figure("e1-change.png"))


CLAIMS = (
    Claim(
        "E1",
        "Hospitals train a neonatal seizure detector with tapering steps and planned influence, "
        "without a loss.",
        "Held-out infants, five folds: the area under the curve by infant, with intervals from "
        "resampled infants; equal against planned influence, constant against tapering steps; "
        "a one-dimensional CNN and a linear model on features.",
        "A detector no better than chance, tapering or planned influence with a lower area, or "
        "steps whose late change is not half of the constant one's.",
        judge_e1,
    ),
)
