"""Contributions from a run's recorded updates, without retraining.

In each round a coalition's model is the round's first model moved by its own members'
updates: w + sum over S of q_i u_i. What a coalition is worth in the round is by how much that
lowers the loss. Rounds in which all together hardly change it are left out (truncation), and
the rounds' values are added up. It is an approximation: without a client the later rounds
would have started elsewhere.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.outcomes.contributions import MOST, Contributions, evaluate
from fedtaper.results import Run
from fedtaper.theory.equilibria import shares
from fedtaper.theory.losses import Losses, losses_of

Array = NDArray[np.float64]
TRUNCATE = 0.01  # rounds that change the loss by less than this share of the largest change
FEW = 6  # clients whose coalitions are all evaluated, in every round


def from_updates(
    run: Run, held_out: Any, weights: ArrayLike | None, permutations: int, seed: int
) -> Contributions:
    """Shapley values of a run's rounds, added up."""
    began = time.perf_counter()
    if run.many:
        raise FedtaperError("contributions are those of one run: run one seed with updates=True")
    if run.updates is None or run.w is None or run.w0 is None:
        raise FedtaperError(
            "this run has no updates or models to share out: run it with updates=True"
        )
    e = run.experiment
    if np.shape(run.updates)[-1] != e.problem.dim:
        raise FedtaperError(
            "this run keeps sketches of its updates, as runs of large models do: they cannot be "
            "added up to models"
        )
    if e.server.rescales:
        raise FedtaperError(f"{e.server!r} rescales updates: they cannot be shared out")
    if len(run.round) != e.rounds or np.any(np.diff(run.round) != 1):
        raise FedtaperError("this run left out rounds (thin): contributions need every round")
    losses: Losses = losses_of(e.problem if held_out is None else held_out)
    counts = shares(np.ones(losses.clients) if weights is None else weights, losses.clients)
    before = np.concatenate([run.w0[None], run.w[:-1]])
    change = (losses.values(before) - losses.values(np.asarray(run.w))) @ counts
    kept = np.flatnonzero(np.abs(change) >= TRUNCATE * np.abs(change).max())
    server = e.server_weights(e.step_sums(0, e.rounds))
    moves = server[kept][:, :, None] * np.asarray(run.updates)[kept]
    start = before[kept]

    def game(masks: NDArray[np.bool_]) -> Array:
        worth = np.zeros((len(masks), losses.clients))
        for w, parts in zip(start, moves, strict=True):
            worth -= losses.values(w + masks @ parts)
        return worth

    small = losses.clients <= (MOST if e.problem.kind == "linear" else FEW)
    text = f"Contributions from {len(kept)} of {e.rounds} rounds' updates"
    return evaluate(game, losses.clients, counts, text, small, permutations, seed, began)
