"""Does a run end at w*(effective p)? Rules with memory and absent clients, settings by one rule.

python benchmarks/effective_influence.py [--seeds 200] [--case NAME]

Everything is fixed before the seeds that judge are run:

- Two clients with unlike data, delta 0.8, client 1 with 0.4 times the scale of client 0. The scale
  is c = 1 / (gain * curvature): the largest gain, by which the rules multiply a round's steps
  (``Experiment.influence().gain``), and the largest curvature. The offset is 2^(1 / delta), so
  the first step is below half of 1 / curvature.
- The horizon is the first of 250, 500, 1000, ... rounds at which the ODE's own lag behind w*(p_n),
  by ``ft.forecast``, is below half a standard error of the mean over the seeds. The standard error
  is estimated from 20 pilot seeds, from 5000 on.
- The judging seeds are 12,000 and on. Each is run once.

A case holds where the mean final model is within three standard errors of w*(effective p) in every
coordinate (by Student's t for the number of seeds). One whose lag stays larger up to 16,000 rounds
is not judged. The wrong influences leave out what the case is about: the gain of the momentum, or
the chance of taking part. They must be rejected by the same test.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from scipy.stats import t as student

import fedtaper as ft

DELTA, STEPS = 0.8, (1, 3)
PILOT, JUDGES = range(5000, 5020), 12_000
FIRST, MOST = 250, 16_000
THREE = 0.99865  # the chance below three standard errors


def counted(beta: float, nesterov: bool = False) -> np.ndarray:
    """How much the gradients of a round count with momentum that starts anew in each."""
    more = [sum(beta**k for k in range(m + nesterov)) for m in range(1, max(STEPS) + 1)]
    return np.array([sum(more[:n]) / n for n in STEPS])


CASES = {
    "plain": ({}, lambda p: p / STEPS),
    "momentum, reset": (
        {"local": ft.Momentum(0.8, reset=True)}, lambda p: p / counted(0.8)
    ),
    "momentum, kept": ({"local": ft.Momentum(0.8)}, lambda p: p * counted(0.8)),
    "nesterov, reset": (
        {"local": ft.Momentum(0.8, nesterov=True, reset=True)},
        lambda p: p / counted(0.8, nesterov=True),
    ),
    "fedavgm": ({"server": ft.AverageMomentum(0.8)}, lambda p: p / STEPS),
    "scaffold": (ft.PRESETS["scaffold"] | {"participation": (1.0, 0.4)}, lambda p: p * (1, 0.4)),
    "feddyn": (
        {"local": ft.Dynamic(0.5), "server": ft.DynamicServer(0.5)}, lambda p: p / (1, 0.4)
    ),
    "1 of 2": ({"participation": ft.Exactly(1)}, lambda p: p / STEPS),
    "chances": ({"participation": (1.0, 0.4)}, lambda p: p / (1, 0.4)),
    "the mean over those present": (
        {"participation": (1.0, 0.4), "average_over": "present"}, lambda p: p / (0.8, 0.2) * 0.8
    ),
}  # fmt: skip


def experiment(how: dict, rounds: int) -> ft.Experiment:
    """The case at a horizon, its steps by the rule above."""
    problem = ft.LinearRegression(
        num_clients=2, samples=200, feature_spread=1.0, sigma_w=2.0, init_spread=1.0, seed=2
    )
    settings = {"local": ft.Sgd(), "server": ft.Average()} | how
    offset = 2 ** (1 / DELTA)

    def made(c: float) -> ft.Experiment:
        schedules = [ft.Power(c, DELTA, offset), ft.Power(0.4 * c, DELTA, offset)]
        return ft.Experiment(
            problem, schedules, rounds=rounds, local_steps=STEPS, batch_size=20, **settings
        )

    curvature = float(problem.curvature.max()) + settings["local"].added_curvature
    return made(1 / (float(np.max(made(1.0).influence().gain)) * curvature))


def final(e: ft.Experiment, seeds: range) -> np.ndarray:
    """Each seed's last model."""
    return ft.run(e, seeds=seeds, thin=e.rounds, progress=False).w[:, -1]


def chosen(how: dict, seeds: int) -> tuple[ft.Experiment, float]:
    """The experiment at the horizon that the rule gives, and the lag in standard errors."""
    rounds = FIRST
    while True:
        e = experiment(how, rounds)
        error = final(e, PILOT).std(axis=0, ddof=1) / math.sqrt(seeds)
        there = ft.forecast(e, n=rounds * e.period)
        lag = float(np.max(np.abs(there.w - there.equilibrium) / error))
        if lag < 0.5 or rounds >= MOST:
            return e, lag
        rounds *= 2


def judged(name: str, seeds: int) -> bool:
    """Run one case and print what came of it."""
    how, wrong = CASES[name]
    began = time.perf_counter()
    e, lag = chosen(how, seeds)
    found = final(e, range(JUDGES, JUDGES + seeds))
    error = found.std(axis=0, ddof=1) / math.sqrt(seeds)
    p, problem = e.influence().effective, e.problem

    def off(influence: np.ndarray) -> float:
        best = problem.equilibrium(influence)
        return float(np.max(np.abs(found.mean(axis=0) - best) / error))

    limit = float(student.ppf(THREE, seeds - 1))
    right, other = off(p), off(wrong(p))
    good = right < limit and other > limit
    said = "not judged" if lag >= 0.5 else "holds" if good else "DOES NOT HOLD"
    print(
        f"{name:28} {said:14} {e.rounds:6} rounds, lag {lag:.2f} SE, "
        f"off {right:.2f} SE, wrong factor {other:.1f} SE, limit {limit:.2f}, p_1 {p[1]:.3f}, "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return good


def main() -> None:
    """All cases, or one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--case", choices=list(CASES))
    given = parser.parse_args()
    names = [given.case] if given.case else list(CASES)
    held = [judged(name, given.seeds) for name in names]
    print(f"{sum(held)} of {len(held)} hold (AdamW has no effective influence: it rescales steps)")


if __name__ == "__main__":
    main()
