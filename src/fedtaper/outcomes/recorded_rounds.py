"""Contributions from a run's recorded updates, without retraining.

In each round a coalition's model is the round's first model moved by its own members'
updates: w + sum over S of q_i u_i. The coalition's worth in the round is by how much that
lowers the loss. Rounds in which all clients together hardly change it are left out (truncation),
and the rounds' values are added up. It is an approximation: without a client the later rounds
would have started from other models.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper import engines
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Options
from fedtaper.engines.gate import choose
from fedtaper.outcomes.contributions import MOST, Contributions, evaluate
from fedtaper.results import Run, check_recorded
from fedtaper.theory.equilibria import shares
from fedtaper.theory.losses import Losses, evaluated

Array = NDArray[np.float64]
TRUNCATE = 0.01  # rounds that change the loss by less than this share of the largest change
ROUNDING = 0.05  # of the moves: what networks trained once more, in other precision, may be off
FEW = 6  # clients whose coalitions are all evaluated, in every round


def from_updates(
    run: Run, held_out: Any, weights: ArrayLike | None, permutations: int, seed: int
) -> Contributions:
    """Shapley values of a run's rounds, added up."""
    began = time.perf_counter()
    check_recorded(run)
    if run.many:
        raise FedtaperError(
            "contributions need a run of one seed: run one, with --updates (updates=True)"
        )
    if run.updates is None or run.w is None or run.w0 is None:
        raise FedtaperError(
            "this run has no updates or models to compute contributions from: run it with "
            "--updates, updates=True (a model of more than 20,000 parameters keeps none)"
        )
    e = run.experiment
    if not e.in_step:
        raise FedtaperError(
            "with delays, an asynchronous server or own clocks a round's updates are not all made "
            "from its own model, so its gain cannot be divided among them"
        )
    if len(run.round) != e.rounds or np.any(np.diff(run.round) != 1):
        raise FedtaperError(
            "this run did not record every round (thin): contributions need all rounds"
        )
    losses: Losses = evaluated(e.problem if held_out is None else held_out)
    counts = shares(np.ones(losses.clients) if weights is None else weights, losses.clients)
    before = np.concatenate([run.w0[None], run.w[:-1]])
    change = (losses.values(before) - losses.values(np.asarray(run.w))) @ counts
    kept = np.flatnonzero(np.abs(change) >= TRUNCATE * np.abs(change).max())
    server, _ = e.round_weights(0, e.rounds, run.seeds[0])
    moves = server[kept][:, :, None] * _updates(run, before, kept)
    start = before[kept]
    off = np.asarray(run.w)[kept] - start - moves.sum(axis=1)
    if not np.linalg.norm(off) <= ROUNDING * np.linalg.norm(moves):
        raise FedtaperError(
            f"with {e.server!r} the model did not move by the weighted sum of the clients' "
            "updates, so the gain of a round cannot be divided among them: use Average()"
        )

    def game(masks: NDArray[np.bool_]) -> Array:
        worth = np.zeros((len(masks), losses.clients))
        for w, parts in zip(start, moves, strict=True):
            worth -= losses.values(w + masks @ parts)
        return worth

    small = losses.clients <= (MOST if e.problem.kind == "linear" else FEW)
    text = f"Contributions from {len(kept)} of {e.rounds} rounds' updates"
    return evaluate(game, losses.clients, counts, text, small, permutations, seed, began)


def _updates(run: Run, before: Array, kept: NDArray[np.int64]) -> Array:
    """What the clients sent in those rounds, (kept, L, d).

    Networks record sketches of their updates. Then the rounds that count are trained again,
    each from the model it started from, with the same mini-batches.
    """
    e, found = run.experiment, np.asarray(run.updates)
    if found.shape[-1] == e.problem.dim:
        return found[kept]
    if e.behaviours or not e.in_step or e.local.keeps == "run" or e.local.receives:
        raise FedtaperError(
            "this run keeps only sketches of its updates, and the updates cannot be computed again "
            "for late or misbehaving clients or rules with memory"
        )
    seed = run.seeds[0]
    state = engines.init(e, np.array([seed]), False)
    session = choose(e, None, Options()).open(e, state, Options())
    out = np.zeros((len(kept), e.num_clients, e.problem.dim))
    try:
        for row, k in enumerate(kept.tolist()):
            there = np.flatnonzero(e.present(k, k + 1, seed)[0])
            a = e.step_sizes(k, k + 1)[0]
            out[row, there] = session.answers(0, there.tolist(), before[k], k, a)
    finally:
        session.close()
    return out
