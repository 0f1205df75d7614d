"""A Gauss-Markov process of which any stretch can be computed by itself.

x_{t+1} = rho x_t + sqrt(1 - rho^2) e_t. A stretch depends only on (seed, client, place), so a run
does not depend on the engine, on batching over seeds or on a resume. The process is cut into
blocks; the values at the ends of a block are drawn first and the rest is filled in by halving, each
value from its conditional law given the two neighbours. Blocks are so long that their ends are
independent to one part in 1e8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws

Array = NDArray[np.float64]
SHORTEST_BLOCK = 64
_INDEPENDENT = 1e-8


def block_length(rho: float) -> int:
    """How long a block is: a power of 2 after which the process has forgotten its past."""
    length = SHORTEST_BLOCK
    while rho**length > _INDEPENDENT:
        length *= 2
    return length


def normal_table(key: Any, rows: NDArray[np.int64], columns: int) -> Array:
    """Standard normal numbers of a block, one row for each given place."""
    with np.errstate(over="ignore"):
        j = rows.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(
            columns, dtype=np.uint64
        )
        place = draws.normal_place(key, j)
        first, second = draws.mix(place), draws.mix(place + draws.GOLDEN)
    u, v = ((h >> np.uint64(11)).astype(np.float64) * 2.0**-53 for h in (first, second))
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v))


def gauss_markov(seed: int, client: int, block: int, rho: float, columns: int) -> Array:
    """One block of a client's process: ``columns - 1`` correlated columns, and one of noise.

    >>> x = np.concatenate([gauss_markov(0, 0, k, 0.9, 2) for k in range(200)])[:, 0]
    >>> bool(abs(np.corrcoef(x[:-1], x[1:])[0, 1] - 0.9) < 0.01)
    True
    """
    length = block_length(rho)
    with np.errstate(over="ignore"):
        here, after = (
            draws.stream_key(np.uint64(seed), np.uint64(client), np.uint64(k))
            for k in (block, block + 1)
        )
    z = normal_table(here, np.arange(length), columns)
    x = np.concatenate([z, normal_table(after, np.zeros(1, dtype=np.int64), columns)])
    process = x[:, :-1]
    gap = length
    while gap > 1:
        half = gap // 2
        r = rho**half
        middle = slice(half, length, gap)
        process[middle] = r / (1 + r * r) * (process[:length:gap] + process[gap::gap]) + (
            math.sqrt((1 - r * r) / (1 + r * r)) * process[middle]
        )
        gap = half
    return x[:length]
