"""Noise sums R_n = sum of a_m M_{m+1} and whether they settle (C4, C5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_memory, check_type, check_whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import Brief
from fedtaper.results import Run, check_recorded
from fedtaper.theory.tracking import Fit, power_law

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class NoiseSums(Brief):
    """Each client's noise sum along a run, and how much it still moves.

    An oscillation is the size of the box in which the sum stays: the norm of its ranges in
    all coordinates.

    Attributes:
        round: the rounds looked at.
        sums: R after each of them, (seeds, rounds, L, d).
        tail: oscillation from each of them to the run's end, (seeds, rounds, L).
        doubling: oscillation from round k to round 2k for each k in ``doubled`` (those with 2k
            in the run), (seeds, doubled, L).
        theory: the exponents 1/2 - delta of ``doubling`` if the noise has a steady size:
            below 0 the sums settle, above 0 they wander farther and farther.
    """

    round: NDArray[np.int64]
    sums: Array
    tail: Array
    doubled: NDArray[np.int64]
    doubling: Array
    theory: Array

    def fit(self, client: int, after: int = 0) -> Fit:
        """The exponent of ``doubling`` against k for one client, with an interval."""
        check_whole("client", client, low=0)
        check_whole("after", after, low=0)
        if client >= self.doubling.shape[2]:
            raise FedtaperError(f"there is no client {client}: clients count from 0")
        keep = self.doubled > after
        return power_law(self.doubled[keep], self.doubling[:, keep, client])


def noise_sums(run: Run, points: int = 60) -> NoiseSums:
    """The noise sums of every client and seed, replayed from the run's own draws.

    Args:
        run: a regression run that recorded every round.
        points: how many rounds to report, evenly spaced in log k.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> e = ft.Experiment(problem, ft.Power(0.1, 0.9, offset=20), rounds=400, local_steps=2)
    >>> found = ft.noise_sums(ft.run(e, seeds=range(4)))
    >>> bool(found.fit(client=0, after=20).exponent < 0)
    True
    """
    check_type("noise_sums", run, Run)
    check_recorded(run)
    check_whole("points", points, low=2)
    check_memory(f"{points:,} points", float(points) * run.update_norms[..., 0, :].size)
    from fedtaper.theory.replayed import replayed

    total = int(run.round[-1])
    if total < 8:
        raise FedtaperError(f"noise sums need a run of at least 8 rounds, not {total}")
    rounds = np.unique(np.geomspace(1, total, points).astype(np.int64))
    doubled = rounds[2 * rounds <= total]
    e = run.experiment
    shape = (len(run.seeds), len(rounds), e.num_clients)
    sums, tail = np.empty((*shape, e.problem.dim)), np.empty(shape)
    doubling = np.empty((len(run.seeds), len(doubled), e.num_clients))
    for part in replayed(run, np.arange(total)):
        path = np.cumsum(part.noise, axis=1)  # path[:, k - 1] is R after round k
        sums[part.seeds] = path[:, rounds - 1]
        for j, k in enumerate(doubled):
            doubling[part.seeds, j] = _box(path[:, k - 1 : 2 * k])
        tail[part.seeds] = _tails(path, rounds)
    theory = np.array([0.5 - s.delta for s in e.schedules])
    return NoiseSums(rounds, sums, tail, doubled, doubling, theory)


def _box(path: Array) -> Array:
    return np.linalg.norm(path.max(axis=1) - path.min(axis=1), axis=-1)


def _tails(path: Array, rounds: NDArray[np.int64]) -> Array:
    """Oscillation from each round to the end, from the last backwards."""
    out = np.empty((len(path), len(rounds), path.shape[2]))
    high = low = path[:, -1]
    stop = path.shape[1]
    for j in range(len(rounds) - 1, -1, -1):
        if (block := path[:, rounds[j] - 1 : stop]).size:
            high, low = np.maximum(high, block.max(axis=1)), np.minimum(low, block.min(axis=1))
            stop = int(rounds[j]) - 1
        out[:, j] = np.linalg.norm(high - low, axis=-1)
    return out
