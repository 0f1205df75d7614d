"""Speed of the compiled regression engine, against NumPy loops and against its own floor.

    python benchmarks/regression.py

Everything is measured in one run, after compilation, best of several. The peers do the same
work on the same data: ``loop`` is a NumPy loop over updates and clients, ``batched`` runs all
clients of an update at once. Both draw their batches with NumPy's generator.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from numba import njit

import fedtaper as ft
from fedtaper import engines
from fedtaper.engines import compiled

warnings.simplefilter("ignore", ft.StabilityWarning)
ROUNDS, STEPS, CLIENTS, BATCH, DIM, SAMPLES = 5000, 5, 10, 50, 3, 5000
UPDATES = ROUNDS * STEPS * CLIENTS


def best(work: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def loop(problem: ft.LinearRegression, rounds: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    w, n = problem.initial(0), 0
    for _ in range(rounds):
        models = []
        for i in range(CLIENTS):
            mine = w
            for s in range(STEPS):
                pick = rng.integers(0, SAMPLES, BATCH)
                x = problem.x[i][pick]
                a = 0.1 / (n + s + 1) ** 0.76
                mine = mine - a * (x.T @ (x @ mine - problem.y[i][pick]) / BATCH)
            models.append(mine)
        w, n = np.mean(models, axis=0), n + STEPS
    return w


def batched(problem: ft.LinearRegression, rounds: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    x, y = np.stack(problem.x), np.stack(problem.y)
    client = np.arange(CLIENTS)[:, None]
    w, n = problem.initial(0), 0
    for _ in range(rounds):
        mine = np.tile(w, (CLIENTS, 1))
        for s in range(STEPS):
            pick = rng.integers(0, SAMPLES, (CLIENTS, BATCH))
            rows = x[client, pick]
            residual = (rows @ mine[:, :, None])[:, :, 0] - y[client, pick]
            a = 0.1 / (n + s + 1) ** 0.76
            mine = mine - a * ((residual[:, None, :] @ rows)[:, 0] / BATCH)
        w, n = mine.mean(axis=0), n + STEPS
    return w


@njit
def multiply_add(times: int) -> float:
    """Sixteen independent chains of multiply-adds: what scalar arithmetic can do at most."""
    total = np.linspace(0.1, 0.9, 16)
    for _ in range(times):
        for j in range(16):
            total[j] = total[j] * 0.999 + 0.001
    return total.sum()


@njit
def draw_only(times: int, picks: np.ndarray) -> int:
    """The batches alone."""
    for i in range(times):
        compiled._fill_batch(picks, np.uint64(i), 0, len(picks) // 2, np.uint64(5000))
    return picks[0]


def floor_seconds() -> tuple[float, float]:
    """Seconds of the bare arithmetic and of the bare draws of one paper-sized run."""
    flops = UPDATES * BATCH * (4 * DIM + 1)  # x'w - y, then r x: a multiply and an add each
    multiply_add(10)
    reach = 1e6
    rate = 32 * reach / best(lambda: multiply_add(int(reach)), 5)
    picks = np.empty(BATCH, dtype=np.uint32)
    draw_only(10, picks)
    return flops / rate, best(lambda: draw_only(UPDATES, picks), 5)


def experiment(
    rounds: int = ROUNDS, clients: int = CLIENTS, samples: int = SAMPLES
) -> ft.Experiment:
    problem = ft.LinearRegression(num_clients=clients, samples=samples)
    return ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=rounds, local_steps=STEPS)


def kernel_seconds(e: ft.Experiment) -> float:
    def work() -> None:
        compiled.CompiledSession(e, engines.init(e, np.array([0]))).advance(e.rounds)

    work()
    return best(work, 7)


def main() -> None:
    e = experiment()
    ft.run(e)
    peers = 500  # rounds of the slow ones; scaled up
    slow = best(lambda: loop(e.problem, peers), 3) * ROUNDS / peers
    wide = best(lambda: batched(e.problem, peers), 3) * ROUNDS / peers
    fast = best(lambda: ft.run(e), 9)
    kernel = kernel_seconds(e)
    arithmetic, drawing = floor_seconds()
    floor = arithmetic + drawing
    print(
        f"one paper-sized run: {ROUNDS} rounds x {STEPS} updates x {CLIENTS} clients, batch {BATCH}"
    )
    print(f"  ft.run, metrics included            {fast * 1e3:8.1f} ms   1.0")
    print(f"  of it the compiled rounds           {kernel * 1e3:8.1f} ms")
    print(f"  NumPy loop over clients             {slow * 1e3:8.1f} ms   {slow / fast:.1f} times")
    print(f"  NumPy loop batched over clients     {wide * 1e3:8.1f} ms   {wide / fast:.1f} times")
    print(f"  floor: arithmetic {arithmetic * 1e3:.1f} ms + draws {drawing * 1e3:.1f} ms"
          f" = {floor * 1e3:.1f} ms; ft.run is {fast / floor:.1f} times that")  # fmt: skip
    many = best(lambda: ft.run(e, seeds=range(1000), progress=False), 1) / 1000
    print(
        f"1,000 seeds on all cores: {many * 1e3:.1f} ms each, {many / fast:.2f} of one seed's time"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory {peak:.2f} GiB")
    print("cost of one update, ns:")
    tenth = ROUNDS // 10
    for label, other, seeds in (
        ("as above", e, 1),
        ("ten times the rounds", experiment(rounds=10 * ROUNDS), 1),
        ("ten times the clients, same data in all", experiment(tenth, 100, SAMPLES // 10), 1),
        ("ten times the clients, ten times the data", experiment(tenth, 100), 1),
        ("20 seeds, all cores", e, 20),
        ("200 seeds, all cores", e, 200),
        ("20 seeds, ten times clients and data, all cores", experiment(tenth, 100), 20),
    ):
        many = range(seeds) if seeds > 1 else None
        spent = best(lambda other=other, many=many: ft.run(other, seeds=many, progress=False), 3)
        updates = other.rounds * STEPS * other.num_clients * seeds
        print(f"  {label:48s} {spent / updates * 1e9:6.0f}")
    code = (
        "import time, warnings, fedtaper as ft; warnings.simplefilter('ignore'); "
        "e = ft.Experiment(ft.LinearRegression(), ft.Power(0.1, 0.76), rounds=2, local_steps=5); "
        "t = time.perf_counter(); ft.run(e); print(f'{time.perf_counter() - t:.2f}')"
    )
    first = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"a new process, first run with the cached compilation: {first.stdout.strip()} s")


if __name__ == "__main__":
    main()
