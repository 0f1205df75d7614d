"""Sums over short axes, with NumPy's bits and several times as fast.

NumPy adds fewer than eight numbers one after another, wherever they lie in memory, and pays to
start each sum. Here the sums of all rounds advance together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEW = 8  # from here on NumPy adds in another order
Array = NDArray[np.float64]


def summed(a: Array) -> Array:
    """The sum over the updates of each round: (rounds, L) from (rounds, updates, L).

    >>> summed(np.ones((1, 5, 2)))
    array([[5., 5.]])
    """
    if not 0 < a.shape[1] < FEW:
        return np.asarray(a.sum(axis=1))
    total = a[:, 0].copy()
    for step in range(1, a.shape[1]):
        total += a[:, step]
    return total


def norms(x: Array) -> Array:
    """Euclidean lengths: (...) from (..., d).

    >>> norms(np.array([[3.0, 4.0]]))
    array([5.])
    """
    if not 0 < x.shape[-1] < FEW:
        return np.asarray(np.linalg.norm(x, axis=-1))
    total = x[..., 0] * x[..., 0]
    for j in range(1, x.shape[-1]):
        total += x[..., j] * x[..., j]
    return np.sqrt(total)
