"""Step sizes a_n (assumption A2): the dial for a client's influence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.protocols import Schedule
from fedtaper.core.scaled import Scaled
from fedtaper.core.shapes import Cosine, Piecewise, Shaped, WarmUp
from fedtaper.core.tapers import Constant, Power

__all__ = [
    "Constant",
    "Cosine",
    "Piecewise",
    "Power",
    "Scaled",
    "Schedule",
    "Shaped",
    "WarmUp",
    "step_sizes",
]


def step_sizes(schedules: Sequence[Schedule], n: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Step sizes of all clients, clients on the last axis.

    ``n`` either has the clients on its last axis (shape (..., L)), each with its own clock
    value, or has last axis 1: one clock for all. Equal schedules that share a clock are
    computed once.
    """
    n = np.asarray(n, dtype=np.float64)
    if n.shape[-1] != 1:
        return np.stack([schedule(n[..., i]) for i, schedule in enumerate(schedules)], axis=-1)
    kinds = list(dict.fromkeys(schedules))
    distinct = np.concatenate([schedule(n) for schedule in kinds], axis=-1)
    return distinct[..., [kinds.index(schedule) for schedule in schedules]]
