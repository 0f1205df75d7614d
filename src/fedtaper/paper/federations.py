"""Random federations with attackers and honest oddities, to measure the audit on.

Seeds below FRESH were used to choose thresholds, or measured before with another model of sizes;
every reported rate comes from seeds at or above it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtaper.auditing import trace_of
from fedtaper.auditing.judge import Finding, judge
from fedtaper.core.errors import StabilityWarning
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.behaviours import After, Behaviour, Copies, Idle, Noise, OtherSchedule
from fedtaper.simulation.drive import run

FRESH = 2_000_000
CLIENTS, DIM, LOCAL_STEPS, ROUNDS = 10, 3, 5, 100
DECLARED = Power(0.1, 0.76)
SWITCH = 30  # after this round the late attacker fades
LOOKS = (20, 30, 40, 60, 80, 100)  # for curves
DECIDING = (40, 100)  # for the numbers
ATTACKERS: dict[str, Behaviour] = {
    "delta 0.9": OtherSchedule(Power(0.1, 0.9)),
    "delta 1": OtherSchedule(Power(0.1, 1.0)),
    "smaller c": OtherSchedule(Power(0.03, 0.76)),
    "idle": Idle(),
    "noise": Noise(),
    "copying": Copies(),
    "fades later": After(SWITCH, OtherSchedule(Power(0.1 * (SWITCH * LOCAL_STEPS) ** 0.24, 1.0))),
}
ODDITIES = ("little data", "easy data", "noisy data", "missed rounds", "gradient vanishes")
EXCESS = {"delta 0.9": 0.14, "delta 1": 0.24}  # true excess taper; else 0 where it is one
HETEROGENEITY: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "alike (sigma_w = 1)": {"sigma_w": 1.0},
    "unlike (sigma_w = 25)": {"sigma_w": 25.0},
    "unequal features": {"spreads": (3.0, 5.0, 8.0)},
}


@dataclass(frozen=True)
class Look:
    """One audit of one federation: who was what, and what was found."""

    kinds: tuple[str, ...]
    round: int
    witness: str
    finding: Finding
    slope: np.ndarray[Any, Any]  # excess by a plain log-log slope of sizes, for comparison
    slope_error: np.ndarray[Any, Any]


def federation(
    seed: int, sigma_w: float = 5.0, spreads: tuple[float, ...] = (5.0,)
) -> tuple[Experiment, tuple[str, ...]]:
    """Ten clients of the paper's size: up to three attackers, honest oddities among the rest."""
    rng = np.random.default_rng([seed, 5])
    kinds = ["honest"] * CLIENTS
    order = rng.permutation(CLIENTS)
    count = int(rng.integers(0, 4))
    for i in order[:count]:
        kinds[i] = str(rng.choice(list(ATTACKERS)))
    for i in order[count:]:
        if rng.random() < 0.4:
            kinds[i] = str(rng.choice(ODDITIES))
    w = sigma_w * rng.normal(size=(CLIENTS, DIM))
    near = np.array([k in ("easy data", "gradient vanishes") for k in kinds])
    middle = w[~near].mean(axis=0)
    for i in np.flatnonzero(near):  # where the others pull: its own gradient dies away there
        away = 0.05 * sigma_w if kinds[i] == "easy data" else 0.0
        w[i] = middle + away * rng.normal(size=DIM)
    loud = {"noisy data": 0.0, "easy data": 40.0, "gradient vanishes": 30.0}
    problem = LinearRegression(
        num_clients=CLIENTS,
        dim=DIM,
        samples=tuple(100 if k == "little data" else 5000 for k in kinds),
        snr_db=tuple(loud.get(k, 10.0) for k in kinds),
        feature_spread=tuple(float(s) for s in rng.choice(spreads, CLIENTS)),
        true_w=tuple(map(tuple, w.tolist())),
        seed=seed,
    )
    made = Experiment(
        problem,
        DECLARED,
        rounds=ROUNDS,
        local_steps=LOCAL_STEPS,
        participation=tuple(0.7 if k == "missed rounds" else 1.0 for k in kinds),
        behaviours={i: ATTACKERS[k] for i, k in enumerate(kinds) if k in ATTACKERS},
        seed=seed,
    )
    return made, tuple(kinds)


def looks(seed: int, rounds: tuple[int, ...] = DECIDING, **how: Any) -> list[Look]:
    """Simulate one federation, and audit it after each of those rounds, with both witnesses."""
    experiment, kinds = federation(seed, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)
        trace = trace_of(run(experiment, updates=True, progress=False))
    sizes = trace_sizes(trace)
    out = []
    for k in rounds:
        slope, error = plain_slope(trace.until(k))
        for witness, seen in (("updates", trace), ("norms", sizes)):
            out.append(Look(kinds, k, witness, judge(seen.until(k)), slope, error))
    return out


def trace_sizes(trace: Any) -> Any:
    """The same trace without the directions."""
    return type(trace)(trace.norms, trace.declared)


def plain_slope(trace: Any) -> tuple[Any, Any]:
    """The naive estimate: the slope of log(size / declared step sum) over log n."""
    excess, error = np.full(len(trace.norms), np.nan), np.full(len(trace.norms), np.nan)
    for i, (norms, sums, x) in enumerate(
        zip(trace.norms, trace.declared.sums, trace.declared.log_n, strict=True)
    ):
        used = np.isfinite(norms) & (norms > 0) & (np.arange(len(x)) >= 10)
        if used.sum() < 5:
            continue
        design = np.stack([np.ones(used.sum()), x[used]], axis=1)
        y = np.log(norms[used] / sums[used])
        best, *_ = np.linalg.lstsq(design, y, rcond=None)
        residual = y - design @ best
        spread = residual @ residual / (len(y) - 2) * np.linalg.inv(design.T @ design)[1, 1]
        excess[i], error[i] = -best[1], np.sqrt(spread)
    return excess, error
