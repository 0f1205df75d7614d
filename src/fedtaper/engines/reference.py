"""The readable loop: Eqn3 as it stands, one seed, one client, one update after another.

Every fast engine is tested against this one. It runs any rule and any problem that can give
mini-batch gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper import draws
from fedtaper.engines import Block, State


def advance(experiment: Any, state: State, rounds: int) -> Block:
    """Move every seed on by ``rounds`` rounds, changing ``state``."""
    seeds, dim = state.w.shape
    block = Block(
        np.full((seeds, rounds, dim), np.nan),
        np.full((seeds, rounds, experiment.num_clients), np.nan),
    )
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told, not warned of
        for s in range(seeds):
            _advance_seed(experiment, state, block, s, rounds)
    state.round += rounds
    return block


def _advance_seed(e: Any, state: State, block: Block, s: int, rounds: int) -> None:
    seed, first = int(state.seeds[s]), state.round
    a = e.step_sizes(first, first + rounds)
    weights = e.server_weights(a.sum(axis=1))
    present = e.present(first, first + rounds, seed)
    w = state.w[s]
    trajectory = block.w
    assert trajectory is not None
    memory = tuple(array[s] for array in state.memory)
    for k in range(rounds):
        if state.dead_round[s]:
            break
        update = np.zeros_like(w)
        for i in range(e.num_clients):
            mine = local_model(e, seed, i, first + k, w, a[k, :, i]) if present[k, i] else w
            if not np.all(np.isfinite(mine)):
                state.dead_round[s], state.dead_client[s] = first + k + 1, i
                break
            block.update_norms[s, k, i] = np.linalg.norm(mine - w)
            update = update + weights[k, i] * (mine - w)
        else:
            w, memory = e.server.step(w, update, memory)
            trajectory[s, k] = w
    state.w[s] = w
    for array, value in zip(state.memory, memory, strict=True):
        array[s] = value


def local_model(e: Any, seed: int, client: int, round_: int, w: Any, a: Any) -> Any:
    """A client's model after one round's local updates from w, with step sizes a."""
    mine = w.copy()
    for step, batch in enumerate(_batches(e, seed, client, round_)):
        gradient = e.problem.gradient(client, mine, batch)
        mine = mine - a[step] * e.local.direction(gradient, mine, w)
    return mine


def _batches(e: Any, seed: int, client: int, round_: int) -> Any:
    """A client's mini-batches in one round: a network's own, else drawn with replacement."""
    if hasattr(e.problem, "minibatches"):
        return e.problem.minibatches(e, seed, client, round_)
    size = int(e.problem.sizes[client])
    return (
        draws.batch(seed, client, round_, step, e.batch_size, size)
        for step in range(e.steps[client])
    )
