"""Medians over gaps, and averages over stretches of rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
ROUNDS = 128  # longer traces are averaged over stretches of rounds, evenly in log n


def bins(n: Array) -> NDArray[np.int64]:
    """Which stretch each round belongs to: its own if there are few rounds."""
    count = len(n)
    if count <= ROUNDS:
        return np.arange(count)
    edges = np.unique(np.round(np.geomspace(1, count + 1, 2 * ROUNDS)).astype(np.int64))
    while len(edges) > ROUNDS:  # early rounds stay single; thin out the late edges
        edges = np.concatenate([edges[: ROUNDS // 2], edges[ROUNDS // 2 :: 2]])
    return np.searchsorted(edges, np.arange(1, count + 1), side="right") - 1


def averaged(values: Array, stretch: NDArray[np.int64], axis: int) -> Array:
    """Mean over the rounds of each stretch, NaN left out; NaN where nothing is there."""
    moved = np.moveaxis(values, axis, 0)
    there = np.isfinite(moved)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    total = np.add.reduceat(np.where(there, moved, 0.0), starts, axis=0)
    count = np.add.reduceat(there.astype(np.float64), starts, axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.moveaxis(mean, 0, axis)


def middle(values: Array) -> float:
    """The median, 0 of nothing."""
    return float(np.median(values)) if len(values) else 0.0


def row_median(values: Array, used: Flags) -> Array:
    """Median of each row over the marked entries; 0 where there is none."""
    kept = np.where(used, values, np.inf)
    kept = np.sort(kept, axis=1)
    count = used.sum(axis=1)
    rows = np.arange(len(kept))
    low = kept[rows, np.maximum((count - 1) // 2, 0)]
    high = kept[rows, np.minimum(count // 2, kept.shape[1] - 1)]
    high = np.where(count % 2 == 1, low, high)
    return np.where(count > 0, 0.5 * (low + np.where(count > 0, high, 0)), 0.0)
