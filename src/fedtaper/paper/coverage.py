"""Claim O2: how often the intervals contain the true value, over fresh seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperWarning
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.outcomes.intervals import intervals
from fedtaper.paper.claim import Check, Claim, Outcome, Study
from fedtaper.paper.glm import last_models
from fedtaper.paper.logistic import DECAY, logistic
from fedtaper.paper.outcomes import FRESH
from fedtaper.paper.theory import CASES
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.rules.momentum import Momentum
from fedtaper.simulation.drive import run as simulate
from fedtaper.theory.fluctuation import Fluctuation, fluctuation

Array = NDArray[np.float64]
PER_SEED = 20  # runs for each seed of a study: 2,000 by default
FIRST = FRESH + 2_000_000  # seed of the first run: a pilot of 200 runs had used those from FRESH
ROUNDS, LOCAL_STEPS, LOW, HIGH = 1000, 5, 0.93, 0.97
RUNS_AT_ONCE = 500  # runs in memory at once
Z = 1.959963984540054


@dataclass(frozen=True)
class Covered:
    """Which intervals contain the true value: parameters (runs, d), losses (runs, L), weighted."""

    last: Array  # the runs' last models, (runs, d)
    model: NDArray[np.bool_]
    losses: NDArray[np.bool_]
    weighted: NDArray[np.bool_]
    scaling: NDArray[np.bool_] | None = None


def scenarios(seed: int) -> dict[str, tuple[Experiment, Callable[..., Array] | None]]:
    """Experiments, each with the function that makes its last models (None: the usual engine)."""
    problem = LinearRegression(seed=seed)
    cases = {
        f"{name} of the paper": Experiment(problem, schedules, ROUNDS, LOCAL_STEPS)
        for name, schedules in CASES.items()
    }
    found: dict[str, tuple[Experiment, Callable[..., Array] | None]] = {
        name: (e, None) for name, e in cases.items()
    }
    absent = replace(cases["case 1 of the paper"], participation=0.5)
    found["participation 0.5"] = (absent, None)
    slow = Experiment(problem, Power(0.02, 0.76, 50), ROUNDS, LOCAL_STEPS)
    found["momentum 0.8"] = (replace(slow, local=Momentum(0.8)), None)
    made = logistic(5, 200, 3, seed)
    curve = Experiment(made.problem, Power(8.0, 0.76, 200), ROUNDS, LOCAL_STEPS, batch_size=20)

    def by_logistic(seeds: NDArray[np.int64]) -> Array:
        x, y = list(made.x), list(made.y)
        return last_models(curve, x, y, seeds, DECAY)

    found["logistic regression"] = (curve, by_logistic)
    return found


def last_runs(e: Experiment, make: Callable[..., Array] | None, seeds: NDArray[np.int64]) -> Run:
    """Runs with what the intervals need: every fifth model, or only the last."""
    if make is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedtaperWarning)  # the paper's own first steps climb
            return simulate(e, seeds=seeds.tolist(), progress=False, thin=5)
    w = make(seeds)[:, None]
    end = np.array([e.rounds])
    return Run(
        experiment=e, seeds=tuple(seeds.tolist()), many=True, round=end,
        n=end * float(e.period), t=end * 0.0, w=w, w0=None, metrics={},
        update_norms=np.zeros((len(w), 1, e.num_clients)),
    )  # fmt: skip


def measure(
    e: Experiment, make: Callable[..., Array] | None, count: int, first: int = FIRST
) -> Covered:
    """Coverage of every kind of interval."""
    theory = fluctuation(e, float(e.rounds * e.period))
    truth = theory.losses.values(theory.target)
    total = float(theory.share @ truth)
    parts: list[tuple[Any, ...]] = []
    for low in range(0, count, RUNS_AT_ONCE):
        seeds = np.arange(first + low, first + min(count, low + RUNS_AT_ONCE))
        made = last_runs(e, make, seeds)
        found = intervals(made)
        assert found.losses is not None and found.weighted is not None
        scaled = None
        if make is None:
            scaled = intervals(made, method="scaling").model.covers(theory.target)
        both = (found.model.covers(theory.target), found.losses.covers(truth))
        parts.append((made.final, *both, found.weighted.covers(total), scaled))
    last, model, losses, weighted, scaling = zip(*parts, strict=True)
    path = np.concatenate(scaling) if make is None else None
    whole = [np.concatenate(part) for part in (last, model, losses, weighted)]
    return Covered(whole[0], whole[1], whole[2], whole[3], path)


def _wrong(theory: Fluctuation, w: Array) -> dict[str, NDArray[np.bool_]]:
    """The same test for two covariances that leave something out."""
    e = theory.experiment
    off = w - theory.lag - theory.target
    present = np.sqrt(np.diag(fluctuation(replace(e, participation=1.0), theory.n).covariance))
    alone = np.sqrt(e.num_clients * np.diag(theory.covariance))
    return {
        "wrong on purpose: absences left out": np.abs(off) < Z * present,
        "wrong on purpose: not averaged over the clients": np.abs(off) < Z * alone,
    }


def judge_intervals(study: Study) -> Outcome:
    """Coverage of 95 % intervals, by scenario, and of wrong ones."""
    count = study.seeds * PER_SEED
    checks: list[Check] = []
    found: dict[str, Covered] = {}
    for name, (e, make) in scenarios(FRESH).items():
        study.say(f"O2: {name}, {count} runs")
        found[name] = one = measure(e, make, count)
        checks.append(_inside(f"{name}: parameters", one.model))
        checks.append(_inside(f"{name}: clients' losses", one.losses))
        checks.append(_inside(f"{name}: weighted loss", one.weighted))
        if name == "participation 0.5":
            theory = fluctuation(e, float(e.rounds * e.period))
            for title, hits in _wrong(theory, one.last).items():
                checks.append(_outside(title, hits))
    scaled = {n: c.scaling for n, c in found.items() if c.scaling is not None}
    values = [c.value for c in checks if "wrong" not in c.name]
    rejected = sum(c.passed for c in checks if "wrong" in c.name)
    summary = (
        f"95 % intervals cover {min(values):.1%} to {max(values):.1%} over {count} runs of every "
        f"scenario, for parameters, losses and the weighted loss; {rejected} of 2 deliberately "
        "wrong covariances are rejected. By random scaling, only from the path of so short a run: "
        + ", ".join(f"{name} {hits.mean():.1%}" for name, hits in scaled.items())
        + "."
    )
    failed = [c for c in checks if not c.passed]
    if failed:
        summary += " Outside: " + "; ".join(f"{c.name} ({c.value:.3f})" for c in failed) + "."
    from fedtaper.show.outcomes import coverage

    coverage(checks, (LOW, HIGH), study.figure("o2-coverage.png"))
    return Outcome(
        "not-with-these-settings" if failed else "reproduced",
        summary,
        tuple(checks),
        "",
        ("o2-coverage.png",),
        {
            "problem's seed": FRESH,
            "first seed": FIRST,
            "runs": count,
            "rounds": ROUNDS,
            "level": 0.95,
        },
    )


def _inside(name: str, hits: NDArray[np.bool_]) -> Check:
    """The share of hits, with an interval that counts runs, not entries, as independent."""
    by_run = np.atleast_2d(hits.T).T.mean(axis=1)
    value = float(by_run.mean())
    half = Z * float(by_run.std(ddof=1)) / np.sqrt(len(by_run))
    passed = LOW <= value <= HIGH
    return Check(name, value, value - half, value + half, f"{LOW:g} to {HIGH:g}", passed)


def _outside(name: str, hits: NDArray[np.bool_]) -> Check:
    """The same test, which a wrong covariance must fail."""
    same = _inside(name, hits)
    return replace(same, threshold=f"not {LOW:g} to {HIGH:g}", passed=not same.passed)


CLAIMS = [
    Claim(
        "O2",
        "95 % intervals contain the true value 95 % of the time.",
        "Coverage of the parameters, the clients' losses and the weighted loss at w*(p_n), over "
        "many runs of the paper's three cases, with participation 0.5, with momentum, and for "
        "logistic regression; and that of two deliberately wrong covariances.",
        "Coverage outside 93 to 97 %, or inside for a wrong covariance.",
        judge_intervals,
    ),
]
