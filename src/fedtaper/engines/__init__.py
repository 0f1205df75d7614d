"""Ways to run an Experiment, and what they share.

``registry.py`` lists the engines, ``gate.py`` chooses one and refuses what it cannot do,
``reference.py`` is the one to read. The contract is :class:`fedtaper.core.protocols.Engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.protocols import Array, Block, State
from fedtaper.rules.behaviours import needs_last

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

WAYS = ("per-client", "stacked", "compiled")  # of training a network's clients
KEEP_DIM = 20_000  # networks up to this size keep their trajectory in the Run
BLOCK_SAMPLES = 1e8  # samples touched between two looks at the clock: a fraction of a second


def init(
    experiment: Experiment,
    seeds: NDArray[np.int64],
    keep_updates: bool = False,
    memory_at_sites: bool = False,
    first: Array | None = None,
) -> State:
    """The state before round 1: every seed's first shared model, and empty memories.

    ``first`` holds the models of a warm start, (seeds, d).
    """
    if first is None:
        w = np.stack([experiment.problem.initial(int(seed)) for seed in seeds])
    else:
        w = first.copy()
    none = np.zeros(len(seeds), dtype=np.int64)
    last = None
    if needs_last(experiment):
        last = np.zeros((len(seeds), experiment.num_clients, w.shape[1]))
    state = State(0, seeds, w, experiment.server.init(w), none, none - 1, last, keep_updates)
    if experiment.local.keeps == "run" and not memory_at_sites:
        each = [experiment.local.init(first) for first in w]
        state.clients = tuple(
            np.stack([np.stack([part] * experiment.num_clients) for part in parts])
            for parts in zip(*each, strict=True)
        )
    return state


def taken_part(
    experiment: Experiment, round_: int, weights: Array, present: NDArray[np.bool_]
) -> tuple[float, float]:
    """What ``ServerRule.learn`` receives: the participants' step sum, and their share of all."""
    sums = experiment.step_sums(round_, round_ + 1)
    usual = experiment.server_weights(sums) * sums
    share = float((usual * present).sum() / usual.sum())
    return float((weights * sums[0] * present).sum()), share


def new_block(experiment: Experiment, state: State, rounds: int) -> Block:
    """A block to fill: NaN until a round has been made."""
    count, dim = state.w.shape
    shape = (count, rounds, experiment.num_clients)
    updates = np.full((*shape, dim), np.nan) if state.keep_updates else None
    w = np.full((count, rounds, dim), np.nan)
    return Block(w, np.full(shape, np.nan), updates=updates)


def quick_rounds(experiment: Experiment, seeds: int) -> int:
    """How many rounds of small vectors take a fraction of a second."""
    e = experiment
    per_round = int(e.steps.sum()) * e.batch_size * seeds * max(1.0, e.problem.dim / 3)
    return int(np.clip(BLOCK_SAMPLES / per_round, 1, 20_000))
