"""Large updates as a few numbers: a fixed linear map that preserves linear relations and angles."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SKETCH = 16  # updates of more numbers than this are kept as a sketch of as many


@lru_cache(maxsize=1)
def signs(dim: int) -> Array:
    """The sign of every entry, 1.0 or -1.0: always the same ones."""
    return np.asarray(np.random.default_rng(20_240_601).integers(0, 2, dim) * 2.0 - 1.0)


def sketch(updates: Array, width: int = SKETCH) -> Array:
    """Updates (..., d) as ``width`` numbers each, (..., width): a fixed linear map.

    Each number is a sum of entries with random signs. The map preserves what the audit uses:
    linear relations between updates exactly, and angles well enough. So an auditor keeps
    O(clients) numbers per round, however large the model. Small updates are left as they are.
    """
    dim = updates.shape[-1]
    if dim <= width:
        return updates
    padded = np.zeros((*updates.shape[:-1], -(-dim // width) * width))
    padded[..., :dim] = updates * signs(dim)
    return padded.reshape(*updates.shape[:-1], -1, width).sum(axis=-2)
