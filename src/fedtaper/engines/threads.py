"""Seeds shared out over threads: what the engines that compile their rounds have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

SEEDS_PER_THREAD = 16  # moved on side by side, sharing the cached data


def over_threads(work: Callable[[NDArray[np.int64], int], None], seeds: int, rounds: int) -> None:
    """Call ``work`` on the numbers of some seeds and the number of rounds, for all seeds."""
    workers = min(seeds, os.cpu_count() or 1)
    parts = np.array_split(np.arange(seeds), max(workers, seeds // SEEDS_PER_THREAD))
    if len(parts) > 1:
        work(parts[0][:1], 0)  # compile once
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, part, rounds) for part in parts]:
            done.result()
