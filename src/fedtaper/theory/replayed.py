# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""A run's local updates once more, from its own draws: what the proof's terms are made of.

A run keeps the shared models only. Since the draws are counted by (seed, client, round),
each round can be replayed from the model it started with, rounds in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_linear
from fedtaper.engines.compiled import FMA, WIDE, _fill_batch, _gradient, _gradient_wide
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.rules.local import Sgd
from fedtaper.rules.server import Average, Normalised
from fedtaper.theory.tracking import round_record

Array = NDArray[np.float64]
CHUNK_BYTES = 2**27  # sums kept at once: some 20 seeds side by side on each core


@dataclass(frozen=True)
class RoundSums:
    """Sums over a client's updates of a round; axes (seeds, rounds, L), vectors with d more.

    With step sizes a, mean fields h and noises M along the client's local models:

    Attributes:
        seeds: which of the run's seeds, as positions.
        drift: sum of a h. noise: sum of a M.
        drift_apart: sum over updates of a times the size of the drift before it.
        noise_apart: the same of the noise.
    """

    seeds: slice
    drift: Array
    noise: Array
    drift_apart: Array
    noise_apart: Array


def replayed(run: Run, rounds: NDArray[np.int64]) -> Iterator[RoundSums]:
    """Replay rounds (counted from 0) of every seed, a few seeds at a time.

    Seeds that diverged come out as NaN.
    """
    e = run.experiment
    refuse_other_rules(e)
    w, _ = round_record(run)
    per_seed = 8 * len(rounds) * e.num_clients * (2 * e.problem.dim + 2)
    workers = os.cpu_count() or 1
    size = max(workers, int(CHUNK_BYTES / max(1, per_seed)) // workers * workers)
    a, kept = _step_sizes(e, rounds)
    for low in range(0, len(w), size):
        part = slice(low, min(low + size, len(w)))
        yield _replay(e, part, np.array(run.seeds[part]), w[part][:, rounds], rounds, a[kept])


def refuse_other_rules(e: Experiment) -> None:
    """Refuse runs outside the proof: it has plain local steps, all clients present, and a mean."""
    plain = isinstance(e.local, Sgd) and isinstance(e.server, Average | Normalised)
    if e.problem.kind != "linear" or not plain:
        raise FedtaperError(
            "the proof's terms are computed for LinearRegression with plain local steps (Sgd) "
            "and a mean at the server (Average or Normalised)"
        )
    if not e.in_step:
        raise FedtaperError(
            "the proof's terms need clients in step: leave out delays, asynchronous and own_clock"
        )
    if np.any(e.rates < 1):
        raise FedtaperError(
            "the proof's terms need every client in every round: leave participation=1"
        )


def _step_sizes(e: Experiment, rounds: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    first = int(rounds[0])
    return e.step_sizes(first, int(rounds[-1]) + 1), rounds - first


def _replay(
    e: Experiment, part: slice, seeds: Any, before: Array, rounds: NDArray[np.int64], a: Array
) -> RoundSums:
    count, clients, dim = len(seeds), e.num_clients, e.problem.dim
    shape = (count, len(rounds), clients)
    out = RoundSums(part, np.empty((*shape, dim)), np.empty((*shape, dim)), *np.empty((2, *shape)))
    problem = as_linear(e.problem)
    matrices, vectors, _ = problem.moments
    starts = np.concatenate([[0], np.cumsum(e.problem.sizes)[:-1]]).astype(np.uint64)
    sizes = np.asarray(e.problem.sizes).astype(np.uint64)
    zeros = (0.0,) * (dim if dim <= WIDE else 1)

    def work(low: int, high: int) -> None:
        with np.errstate(over="ignore"):
            keys = draws.stream_key(
                seeds[low:high, None, None].astype(np.uint64),
                np.arange(clients, dtype=np.uint64)[None, None, :],
                rounds.astype(np.uint64)[None, :, None],
            )
        _trace_rounds(
            problem.rows, starts, sizes, zeros, matrices, vectors,
            keys, a, e.steps, e.batch_sizes, before[low:high], out.drift[low:high],
            out.noise[low:high], out.drift_apart[low:high], out.noise_apart[low:high],
        )  # fmt: skip

    work(0, 0)  # compile once, before the threads
    cuts = np.unique(np.linspace(0, count, min(count, os.cpu_count() or 1) + 1).astype(int))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in [pool.submit(work, low, high) for low, high in pairwise(cuts)]:
            done.result()
    return out


@njit(nogil=True, cache=True, fastmath=FMA)
def _trace_rounds(
    rows, starts, sizes, zeros, matrices, vectors,
    keys, a, steps, batch_sizes, before, drift, noise, drift_apart, noise_apart,
):  # fmt: skip
    dim = before.shape[2]
    picks = np.empty(2 * ((batch_sizes.max() + 1) // 2), dtype=np.uint32)
    mine, gradient = np.empty(dim), np.empty(dim)
    sums, noises = np.empty(dim), np.empty(dim)
    for k in range(a.shape[0]):
        for i in range(len(starts)):
            batch_size = batch_sizes[i]
            half = (batch_size + 1) // 2
            for z in range(before.shape[0]):  # inside the clients: their data stays in the cache
                mine[:] = before[z, k]
                sums[:] = 0.0
                noises[:] = 0.0
                apart, noise_only = 0.0, 0.0
                for step in range(steps[i]):
                    _fill_batch(picks, keys[z, k, i], step, half, sizes[i])
                    if dim == len(zeros):
                        _gradient(rows, starts[i], picks, half, batch_size, mine, zeros, gradient)
                    else:
                        _gradient_wide(rows, starts[i], picks, batch_size, mine, gradient)
                    scale, square, noise_square = a[k, step, i], 0.0, 0.0
                    for j in range(dim):
                        square += sums[j] * sums[j]
                        noise_square += noises[j] * noises[j]
                    apart += scale * np.sqrt(square)
                    noise_only += scale * np.sqrt(noise_square)
                    for j in range(dim):
                        field = vectors[i, j]
                        for other in range(dim):
                            field -= matrices[i, j, other] * mine[other]
                        sums[j] += scale * field
                        noises[j] += scale * (-gradient[j] / batch_size - field)
                    for j in range(dim):
                        mine[j] -= scale * gradient[j] / batch_size
                drift[z, k, i] = sums
                noise[z, k, i] = noises
                drift_apart[z, k, i], noise_apart[z, k, i] = apart, noise_only
