# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Many seeds of logistic regression, which the compiled engine does not run.

The same draws and the same arithmetic as the other engines (tested against the reference
engine), compiled for thousands of seeds of a study.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.engines.compiled import _fill_batch
from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
SEEDS_PER_JOB = 50  # seeds of one piece of work


def last_models(
    e: Experiment,
    x: list[Array],
    y: list[Array],
    seeds: NDArray[np.int64],
    decay: float = 0.0,
) -> Array:
    """The shared model after the last round, (seeds, d).

    Args:
        e: clock, step sizes, batch size and server weights; every client takes part.
        x: features of each client (a column of ones for an intercept).
        y: responses, 0 or 1.
        seeds: of the runs.
        decay: adds decay / 2 times the square of the model.
    """
    rows = np.concatenate([np.column_stack(pair) for pair in zip(x, y, strict=True)])
    sizes = np.array([len(one) for one in y], dtype=np.uint64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint64)
    a = e.step_sizes(0, e.rounds)
    weights = np.ascontiguousarray(e.server_weights(a.sum(axis=1)))
    w = np.stack([e.problem.initial(int(s)) for s in seeds])
    settings = (e.steps, e.batch_sizes, decay)

    def work(low: int, high: int) -> None:
        keys = _keys(seeds[low:high], e.rounds, e.num_clients)
        _runs(rows, starts, sizes, keys, a, weights, *settings, w[low:high])

    work(0, 0)  # compile once, before the threads
    cuts = [*range(0, len(seeds), SEEDS_PER_JOB), len(seeds)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in [pool.submit(work, low, high) for low, high in pairwise(cuts)]:
            done.result()
    return w


def _keys(seeds: NDArray[np.int64], rounds: int, clients: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        found = draws.stream_key(
            seeds[:, None, None].astype(np.uint64),
            np.arange(clients, dtype=np.uint64),
            np.arange(rounds, dtype=np.uint64)[:, None],
        )
    return np.asarray(found)


@njit(nogil=True, cache=True)
def _runs(rows, starts, sizes, keys, a, weights, steps, batches, decay, w):
    dim, clients = w.shape[1], len(starts)
    picks = np.empty(2 * ((batches.max() + 1) // 2), dtype=np.uint32)
    mine, gradient, update = np.empty(dim), np.empty(dim), np.empty(dim)
    for z in range(len(w)):
        for k in range(a.shape[0]):
            update[:] = 0.0
            for i in range(clients):
                mine[:] = w[z]
                batch, half = batches[i], (batches[i] + 1) // 2
                for step in range(steps[i]):
                    _fill_batch(picks, keys[z, k, i], step, half, sizes[i])
                    gradient[:] = 0.0
                    for q in range(batch):
                        row = starts[i] + np.uint64(picks[q])
                        score = 0.0
                        for j in range(dim):
                            score += rows[row, j] * mine[j]
                        residual = 1.0 / (1.0 + np.exp(-score)) - rows[row, dim]
                        for j in range(dim):
                            gradient[j] += residual * rows[row, j]
                    for j in range(dim):
                        pull = gradient[j] / batch + decay * mine[j]
                        mine[j] -= a[k, step, i] * pull
                for j in range(dim):
                    update[j] += weights[k, i] * (mine[j] - w[z, j])
            for j in range(dim):
                w[z, j] += update[j]
