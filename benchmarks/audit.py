"""How long an audit takes: 1,000 clients over 1,000 rounds, from sizes, and with directions.

python benchmarks/audit.py
"""

from __future__ import annotations

import time

import numpy as np

import fedtaper as ft

CLIENTS = ROUNDS = 1000
DECLARED, FADING = ft.Power(0.03, 0.76), ft.Power(0.03, 0.96)


def main() -> None:
    problem = ft.LinearRegression(num_clients=CLIENTS, samples=200)
    cheats = {i: ft.OtherSchedule(FADING) for i in range(CLIENTS // 10)}
    e = ft.Experiment(problem, DECLARED, rounds=ROUNDS, local_steps=5, behaviours=cheats)
    run = ft.run(e, updates=True)
    ways = {"sizes": {}, "updates, d = 3": {"updates": run.updates, "w": _before(run)}}
    for name, how in ways.items():
        began, cpu = time.perf_counter(), time.process_time()
        found = ft.audit(run.update_norms, n=run.n, schedules=e.schedules, quadratic=True, **how)
        seconds = time.perf_counter() - began
        right = sum(c.client in cheats for c in found.accused)
        print(
            f"{CLIENTS} clients x {ROUNDS} rounds, {name}: {seconds:.2f} s "
            f"({time.process_time() - cpu:.2f} s of CPU); "
            f"{right} of {len(cheats)} found, {len(found.accused) - right} others accused"
        )


def _before(run: ft.Run) -> np.ndarray:
    """The model that each round started from."""
    return np.vstack([run.w0, run.w[:-1]])


if __name__ == "__main__":
    main()
