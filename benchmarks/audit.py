"""How long an audit takes: 1,000 clients over 1,000 rounds, from sizes, and with directions.

python benchmarks/audit.py
"""

from __future__ import annotations

import time

import numpy as np

import fedtaper as ft


def trace(clients: int, rounds: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 5.0 * np.arange(1, rounds + 1)
    pull = n[:, None, None] ** -0.76 * rng.normal(size=(1, clients, dim))
    updates = pull * (1 + 0.1 * rng.normal(size=(rounds, clients, dim)))
    updates[:, : clients // 10] *= n[:, None, None] ** -0.2
    return n, np.linalg.norm(updates, axis=-1), updates


def main() -> None:
    clients = rounds = 1000
    n, norms, updates = trace(clients, rounds, 3)
    declared = [ft.Power(0.1, 0.76)] * clients
    for name, how in (("sizes", {}), ("updates, d = 3", {"updates": updates})):
        began, cpu = time.perf_counter(), time.process_time()
        found = ft.audit(norms, n=n, schedules=declared, **how)
        seconds = time.perf_counter() - began
        right = sum(c.client < clients // 10 for c in found.accused)
        print(
            f"{clients} clients x {rounds} rounds, {name}: {seconds:.2f} s "
            f"({time.process_time() - cpu:.2f} s of CPU); "
            f"{right} of {clients // 10} found, {len(found.accused) - right} others accused"
        )


if __name__ == "__main__":
    main()
