"""Cost per local update: late and rare updates, and an asynchronous server, against the plain run.

    python benchmarks/moving.py

One run of regression on one core, the quickest of several, taken in turns so that a busy machine
slows all of them alike. The time to simulate participation and arrivals is part of it.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

import fedtaper as ft

ROUNDS, REPEATS, CLIENTS, STEPS = 5000, 9, 10, 5
SPEEDS = tuple(ft.Duration(float(t)) for t in np.geomspace(1, 10, CLIENTS))
CASES = {
    "in step": {},
    "participation 0.5": {"participation": 0.5},
    "delays 0 to 45": {"delays": tuple(range(0, 50, 5))},
    "participation 0.5, random delays": {
        "participation": 0.5,
        "delays": ft.RandomDelay(10.0, most=50),
        "staleness": ft.Polynomial(0.5),
    },
    "asynchronous, 5 arrivals per round": {
        "asynchronous": ft.Asynchronous(buffer=5, durations=SPEEDS)
    },
    "asynchronous, each arrival": {"asynchronous": ft.Asynchronous(durations=SPEEDS)},
}


def experiment(**settings: object) -> ft.Experiment:
    """The paper's size; as many rounds as give about as many updates."""
    problem = ft.LinearRegression(num_clients=CLIENTS)
    schedule = ft.Power(0.1, 0.8, offset=3000)
    return ft.Experiment(problem, schedule, rounds=ROUNDS, local_steps=STEPS, **settings)


def updates(e: ft.Experiment) -> int:
    """Local updates that the run makes."""
    return int(np.sum(e.arrivals(e.seed).client >= 0)) * STEPS


def main() -> None:
    """Print nanoseconds per update and the ratio to the run in step."""
    warnings.simplefilter("ignore")
    made = {name: experiment(**settings) for name, settings in CASES.items()}
    best = dict.fromkeys(made, np.inf)
    for turn in range(REPEATS + 1):
        for name, e in made.items():
            began = time.perf_counter()
            ft.run(e, progress=False)
            if turn:  # the first turn compiles
                best[name] = min(best[name], time.perf_counter() - began)
    cost = {name: 1e9 * best[name] / updates(e) for name, e in made.items()}
    for name, value in cost.items():
        print(f"{name:36s} {value:7.0f} ns per update   {value / cost['in step']:.2f}")


if __name__ == "__main__":
    main()
