"""The reference loop: Eqn3 as written, one seed, one client, one update after another.

Every fast engine is tested against this one. It runs any rule and any problem that has
mini-batch gradients.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtaper.core.errors import own_code
from fedtaper.core.protocols import (
    Array,
    Block,
    Capabilities,
    Memory,
    Options,
    State,
    is_combining,
)
from fedtaper.core.rules import restarted
from fedtaper.engines import new_block, quick_rounds, taken_part
from fedtaper.engines.history import Timeline
from fedtaper.engines.steered import client_losses
from fedtaper.experiment import Experiment
from fedtaper.rules import behaviours

BLOCK_UPDATES = 20_000  # local updates between two looks at the clock: a fraction of a second


class Reference:
    """The engine to read, and the one that every other is tested against."""

    name = "reference"
    capabilities = Capabilities(
        problems=frozenset({"linear", "quadratic", "stream", "moving", "gradient", "network"}),
        stateful_rules=True,
        updates=True,
        behaviours=True,
        challenges=True,
        delays=True,
        steering=True,
        combining=True,
    )

    def check(self) -> None:
        """It runs everywhere."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One round of a network, many of a regression."""
        if experiment.problem.kind == "network":
            return 1
        updates = int(experiment.steps.sum()) * seeds
        return min(quick_rounds(experiment, seeds), max(1, BLOCK_UPDATES // updates))

    def open(self, experiment: Experiment, state: State, options: Options) -> ReferenceSession:
        """Nothing to prepare."""
        return ReferenceSession(experiment, state)


class ReferenceSession:
    """Rounds of all seeds, one seed after another."""

    def __init__(self, experiment: Experiment, state: State) -> None:
        self.e, self.state = experiment, state
        self.timeline = None if experiment.in_step else Timeline.of(experiment, state)

    def advance(self, rounds: int) -> Block:
        """Advance every seed by ``rounds`` rounds."""
        block = new_block(self.e, self.state, rounds)
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported, not warned of
            for s in range(len(self.state.w)):
                if self.timeline is None:
                    _advance_seed(self.e, self.state, block, s, rounds)
                else:
                    _advance_late(self.timeline, self.state, block, s, rounds)
        if self.timeline is not None:
            block.notes |= self.timeline.notes(self.state.round, self.state.round + rounds)
        self.state.round += rounds
        return block

    def answers(self, s: int, clients: list[int], model: Array, round_: int, a: Array) -> Array:
        """What clients send back for any model."""
        return answers_of(self.e, int(self.state.seeds[s]), clients, model, round_, a)

    def losses(self, s: int) -> Array:
        """Every client's loss at the shared model."""
        return client_losses(self.e.problem, self.state.w[s])

    def steer(self, experiment: Experiment) -> None:
        """Use other step sizes from here on."""
        self.e = experiment
        if self.timeline is not None:
            self.timeline = replace(self.timeline, e=experiment)

    def sync(self) -> None:
        """The State is always up to date."""

    def close(self) -> None:
        """Nothing to free."""


def _advance_seed(e: Experiment, state: State, block: Block, s: int, rounds: int) -> None:
    seed, first = int(state.seeds[s]), state.round
    a = behaviours.actual_step_sizes(e, first, first + rounds)
    kind, scale = behaviours.tables(e, first, first + rounds)
    weights, present = e.round_weights(first, first + rounds, seed)
    w = state.w[s]
    trajectory = block.w
    assert trajectory is not None
    memory = tuple(array[s] for array in state.memory)
    for k in range(rounds):
        if state.dead_round[s]:
            break
        update = np.zeros_like(w)
        moves = np.zeros((e.num_clients, len(w)))
        last = None if state.last is None else state.last[s]
        sent = memory[: e.server.travels]
        for i in range(e.num_clients):
            mine = w
            if present[k, i]:
                kept = tuple(array[s, i] for array in state.clients)
                mine, kept = local_model(e, (seed, i, first + k), w, a[k, :, i], kept, sent)
                for array, value in zip(state.clients, kept, strict=False):
                    array[s, i] = value
            if not np.all(np.isfinite(mine)):
                state.dead_round[s], state.dead_client[s] = first + k + 1, i
                break
            moves[i] = mine - w
            if present[k, i]:
                place = (seed, first + k)
                moves[i] = behaviours.sent(kind[k, i], scale[k, i], mine - w, i, last, place)
            block.update_norms[s, k, i] = np.linalg.norm(moves[i])
            update = update + weights[k, i] * moves[i]
        else:
            if state.last is not None:
                state.last[s] = moves
            if block.updates is not None:
                block.updates[s, k] = moves
            there = present[k]
            if is_combining(e.server) and there.any():
                update = e.server.combine(moves[there], weights[k, there])
            w, memory = e.server.step(w, update, memory)
            facts = taken_part(e, first + k, weights[k], present[k])
            memory = e.server.learn(update, *facts, memory)
            trajectory[s, k] = w
    state.w[s] = w
    for array, value in zip(state.memory, memory, strict=True):
        array[s] = value


def _advance_late(timeline: Timeline, state: State, block: Block, s: int, rounds: int) -> None:
    """A round with late updates: each is made from the model that its client was sent."""
    e, seed, first = timeline.e, int(state.seeds[s]), state.round
    slots = timeline.arrivals[s][first : first + rounds]
    weights = e.server_weights(e.step_sums(first, first + rounds))
    w, memory = state.w[s].copy(), tuple(array[s] for array in state.memory)
    assert block.w is not None and state.history is not None
    for k in range(rounds):
        if state.dead_round[s]:
            break
        moves = np.zeros((e.num_clients, len(w)))
        update = np.zeros_like(w)
        last = None if state.last is None else state.last[s]
        for slot, i in enumerate(slots.client[k].tolist()):
            if i < 0:
                continue
            sent = state.history[s, slots.base[k, slot] % timeline.depth]
            row, draw = int(slots.row[k, slot]), int(slots.draw[k, slot])
            a = behaviours.actual_step_sizes(e, row, row + 1)[0, :, i]
            move = local_model(e, (seed, i, draw), sent, a, (), ())[0] - sent
            if e.behaviours:
                kind, scale = (table[0, i] for table in behaviours.tables(e, row, row + 1))
                move = behaviours.sent(kind, scale, move, i, last, (seed, draw))
            if not np.all(np.isfinite(move)):
                state.dead_round[s], state.dead_client[s] = first + k + 1, i
                break
            moves[i] += move
            update = update + weights[k, i] * slots.factor[k, slot] * move
        else:
            block.update_norms[s, k] = np.linalg.norm(moves, axis=1)
            if block.updates is not None:
                block.updates[s, k] = moves
            if last is not None:
                arrived = slots.client[k][slots.client[k] >= 0]
                last[arrived] = moves[arrived]
            w, memory = e.server.step(w, update, memory)
            memory = e.server.learn(update, *timeline.taken_part(s, first + k), memory)
            block.w[s, k] = w
            state.history[s, (first + k + 1) % timeline.depth] = w
    state.w[s] = w
    for array, value in zip(state.memory, memory, strict=True):
        array[s] = value


def local_model(
    e: Experiment, place: tuple[int, int, int], w: Array, a: Array, kept: Memory, sent: Memory
) -> tuple[Array, Memory]:
    """A client's model and memory after one round's local updates from w, with step sizes a.

    ``place`` is (seed, client, round); ``kept`` is the memory of earlier rounds; ``sent`` is what
    came with the model.
    """
    seed, client, round_ = place
    mine, memory = w.copy(), restarted(e.local, w, kept, sent)
    part = "loss" if e.problem.kind == "network" else "gradient"
    with own_code(part, e.name(client), round_ + 1):
        for step, batch in zip(a, e.problem.batches(e, seed, client, round_), strict=False):
            gradient = e.problem.gradient(client, mine, batch)
            mine, memory = e.local.step(mine, gradient, w, step, memory)
    return mine, e.local.finish(mine, w, float(a.sum()), memory)


def answers_of(
    e: Experiment, seed: int, clients: list[int], model: Array, round_: int, a: Array
) -> Array:
    """What each of some clients sends back for a model."""
    with np.errstate(over="ignore", invalid="ignore"):
        trained = (local_model(e, (seed, i, round_), model, a[:, i], (), ())[0] for i in clients)
        each = [mine - model for mine in trained]
    return np.array(each).reshape(len(clients), len(model))


ENGINE = Reference()
