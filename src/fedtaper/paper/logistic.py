"""Federated logistic regression for studies: clients that share a part of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.problems.custom import Custom

Array = NDArray[np.float64]
DECAY = 0.01


@dataclass(frozen=True)
class Logistic:
    """A ``Custom`` problem with the logistic loss, and its data as plain arrays.

    ``x`` has a last column of ones for the intercept; the loss is the mean of
    log(1 + exp(-(2 y - 1) x'w)) plus DECAY / 2 times the square of the model.
    """

    problem: Custom
    x: tuple[Array, ...]
    y: tuple[Array, ...]

    def losses(self, w: Array) -> Array:
        """Each client's loss, by hand."""
        signed = [(x @ w) * (2 * y - 1) for x, y in zip(self.x, self.y, strict=True)]
        return np.array([np.logaddexp(0, -s).mean() for s in signed]) + DECAY / 2 * w @ w


def logistic(clients: int = 5, samples: int = 200, dim: int = 3, seed: int = 0) -> Logistic:
    """Parameters w + d_i, features and labels drawn by (seed, client)."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    shared = draws.generator(seed, 21).normal(size=dim)
    data = []
    for i in range(clients):
        rng = draws.generator(seed, 21, i)
        x = rng.normal(size=(samples, dim)).astype(np.float32)
        chance = 1 / (1 + np.exp(-x @ (shared + rng.normal(size=dim))))
        data.append((x, (rng.random(samples) < chance).astype(np.float32)))

    def loss(model: Any, x: Any, y: Any) -> Any:
        score = model(x)[:, 0]
        size = sum((p * p).sum() for p in model.parameters())
        right = ((score.detach() > 0) == (y > 0.5)).to(score.dtype).mean()
        return binary_cross_entropy_with_logits(score, y) + DECAY / 2 * size, right

    problem = Custom(loss, lambda: torch.nn.Linear(dim, 1), data)
    features = [np.column_stack([x.astype(np.float64), np.ones(samples)]) for x, _ in data]
    return Logistic(problem, tuple(features), tuple(y.astype(np.float64) for _, y in data))
