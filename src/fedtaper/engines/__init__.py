"""Ways to run an Experiment: ``init`` makes a State, an engine's ``advance`` moves it on.

An engine that keeps models on workers or on a device has ``start`` in place of ``advance``: it
gives an object with ``advance(rounds)``, ``sync()``, which brings the State up to date, and
``close()``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.rules.behaviours import needs_last

Array = NDArray[np.float64]
KEEP_DIM = 20_000  # networks up to this size keep their trajectory in the Run


@dataclass
class State:
    """Where a batch of runs stands: all that the next round needs, and nothing else."""

    round: int
    seeds: NDArray[np.int64]
    w: Array  # (seeds, d)
    memory: tuple[Array, ...]  # the server rule's, each (seeds, d)
    dead_round: NDArray[np.int64]  # (seeds,), 0 while finite, else the round (from 1)
    dead_client: NDArray[np.int64]
    last: Array | None = None  # the clients' last updates, (seeds, L, d), if a client copies them
    keep_updates: bool = False  # whether blocks are to hold every update


@dataclass
class Block:
    """What a stretch of rounds left behind."""

    w: Array | None  # (seeds, rounds, d); None where the model is large
    update_norms: Array  # (seeds, rounds, L)
    metrics: dict[str, Array] | None = None  # each (seeds, rounds); None: computed from w
    updates: Array | None = None  # (seeds, rounds, L, d), if asked for
    notes: dict[str, Array] = field(default_factory=dict)  # more of the same, in either case


def init(experiment: Any, seeds: NDArray[np.int64], keep_updates: bool = False) -> State:
    """Before round 1: every seed's shared model is the mean of L first models."""
    w = np.stack([experiment.problem.initial(int(seed)) for seed in seeds])
    none = np.zeros(len(seeds), dtype=np.int64)
    last = None
    if needs_last(experiment.clients):
        last = np.zeros((len(seeds), experiment.num_clients, w.shape[1]))
    return State(0, seeds, w, experiment.server.init(w), none, none - 1, last, keep_updates)


def new_block(experiment: Any, state: State, rounds: int) -> Block:
    """A block to fill: NaN until a round has been made."""
    count, dim = state.w.shape
    shape = (count, rounds, experiment.num_clients)
    updates = np.full((*shape, dim), np.nan) if state.keep_updates else None
    w = np.full((count, rounds, dim), np.nan)
    return Block(w, np.full(shape, np.nan), updates=updates)
