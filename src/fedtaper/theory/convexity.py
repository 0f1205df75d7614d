"""Tests of what exact answers need of a user's loss: not random, convex, with a minimiser.

No code can be proved convex by running it. But a network that is not convex is found on a few
random chords, dropout by two evaluations, and separable classes by curvature that has vanished at
what looks like a minimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
CHORDS = 4  # random pairs of models, at each of three sizes
ROUNDING = 1e-10  # of the losses, which a chord may lie below by
GONE = 1e-9  # of the curvature at the first model: a direction with less has no minimum


def refuse_random(losses: Any, w: Array) -> None:
    """Refuse losses that differ from one evaluation to the next."""
    import torch

    seen = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen.append(losses.values(w))
    if not np.array_equal(*seen):
        raise FedtaperError(
            "the loss draws random numbers (dropout?), so it has no single minimiser: exact "
            "outcomes need a loss that is the same each time"
        )


def refuse_bent(losses: Any, w: Array) -> None:
    """Refuse losses for which a chord between two random models lies below the loss."""
    rng = np.random.default_rng(0)
    size = max(float(np.abs(w).mean()), 0.1)
    for far in (0.3, 3.0, 30.0):
        ends = w + far * size * rng.normal(size=(2, CHORDS, len(w)))
        left, right, middle = losses.values(np.stack([*ends, ends.mean(axis=0)]))
        chord = 0.5 * (left + right)
        over = middle - chord
        finite = np.isfinite(chord) & np.isfinite(middle)
        bad = finite & (over > ROUNDING * np.maximum(np.abs(chord), 1.0))
        if bad.any():
            client = int(np.argmax(np.where(bad, over, 0.0).max(axis=0)))
            raise FedtaperError(
                f"the loss is not convex: halfway between two models client {client}'s loss is "
                "above their mean, as happens for networks with hidden layers; exact outcomes "
                "need convex losses"
            )


def refuse_endless(first: Array, last: Array) -> None:
    """Refuse a "minimum" whose curvature has vanished: the loss falls for ever in a direction.

    Args:
        first: the Hessian at the first model; its null space (repeated features, a class too
            many) is left out.
        last: the Hessian at the model that was found, weighted alike.
    """
    sizes, axes = np.linalg.eigh(first)
    kept = sizes > 1e-8 * max(float(sizes[-1]), 1e-300)
    inside = axes[:, kept] / np.sqrt(sizes[kept])
    lowest = float(np.linalg.eigvalsh(inside.T @ last @ inside)[0])
    if lowest < GONE:
        raise FedtaperError(
            "the losses have no minimiser: they fall for ever in some direction, as when "
            "classes can be separated; add a small weight decay to the loss"
        )
