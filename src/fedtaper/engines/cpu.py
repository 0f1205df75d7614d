"""Networks on the CPU: client after client on one thread each, the clients over all cores.

A worker binds one network to a flat vector, so an update is one operation on that vector.
Workers are forked processes that share memory with the parent (Python threads would wait for
one another between the many small operations). The sums are made in the order of the clients,
so the number of workers changes nothing in the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fedtaper.core.protocols import (
    Block,
    Capabilities,
    Options,
    State,
    is_combining,
)
from fedtaper.core.sketch import SKETCH, sketch
from fedtaper.engines import KEEP_DIM, taken_part
from fedtaper.engines.network_client import Client, one_thread
from fedtaper.engines.steered import network_losses
from fedtaper.engines.workers import Workers, can_fork, cores
from fedtaper.experiment import Experiment
from fedtaper.rules.behaviours import SCALED, actual_step_sizes, sent, tables

SLOT_BYTES = 2**29  # clients' models held at once
WORTHWHILE = 1.0  # seconds of work left that pay for starting workers


class Cpu:
    """Networks on all cores."""

    name = "cpu"
    capabilities = Capabilities(
        problems=frozenset({"network"}),
        stateful_rules=True,
        updates=True,
        behaviours=True,
        combining=True,
        challenges=True,
        steering=True,
    )

    def check(self) -> None:
        """It runs everywhere that torch does."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One: a round of a network takes a while."""
        return 1

    def open(self, experiment: Experiment, state: State, options: Options) -> CpuSession:
        """Workers start when the first rounds have shown that they pay."""
        return CpuSession(experiment, state)


ENGINE = Cpu()


class CpuSession:
    """The rounds of one run: shared model, server memory, workers."""

    def __init__(
        self, experiment: Experiment, state: State, workers: int | None = None, device: str = "cpu"
    ) -> None:
        self.e, self.state = experiment, state
        self.w = [torch.from_numpy(w).float().to(device) for w in state.w]
        self.memory = [
            tuple(torch.from_numpy(array[s]).float().to(device) for array in state.memory)
            for s in range(len(state.seeds))
        ]
        # where workers can reach it: every client's memory, (seeds, L, ...)
        self.kept = tuple(
            torch.from_numpy(array).float().to(device).share_memory_() for array in state.clients
        )
        self.own = Client(experiment, device)
        self.kinds: Any = ()
        dim, clients = experiment.problem.dim, experiment.num_clients
        self.group = max(1, min(clients, SLOT_BYTES // (4 * dim)))
        self.workers = min(workers or cores(), clients)
        self.pool: Workers | None = None
        self.round_seconds = 0.0

    def advance(self, rounds: int) -> Block:
        """Move every seed on by so many rounds."""
        e, state = self.e, self.state
        seeds = len(state.seeds)
        small = e.problem.dim <= KEEP_DIM
        block = Block(
            np.full((seeds, rounds, e.problem.dim), np.nan) if small else None,
            np.full((seeds, rounds, e.num_clients), np.nan),
            {},
        )
        span = (state.round, state.round + rounds)
        a, self.kinds = actual_step_sizes(e, *span), tables(e, *span)
        if state.keep_updates:
            block.updates = np.full((*block.update_norms.shape, min(e.problem.dim, SKETCH)), np.nan)
        with one_thread(), torch.random.fork_rng(devices=[]):
            for k in range(rounds):
                for s in np.flatnonzero(state.dead_round == 0):
                    self._round(block, int(s), k, a[k])
                state.round += 1
        return block

    def _round(self, block: Block, s: int, k: int, a: Any) -> None:
        began = time.perf_counter()
        e, round_, seed = self.e, self.state.round, int(self.state.seeds[s])
        (weights,), (there,) = e.round_weights(round_, round_ + 1, seed)
        present = np.flatnonzero(there)
        anchor = self.w[s]
        update = torch.zeros_like(anchor)
        found = np.full((e.num_clients, 3), np.nan)
        keep = self.state.last is not None or is_combining(e.server)
        moves = np.zeros((e.num_clients, len(anchor))) if keep else None
        if block.updates is not None:
            block.updates[s, k] = 0.0
        for low in range(0, len(present), self.group):
            members = present[low : low + self.group]
            for i, values, model in self._trained(members, s, round_, anchor, a):
                found[i] = values
                if not math.isfinite(values[2]):
                    self.state.dead_round[s], self.state.dead_client[s] = round_ + 1, i
                    return
                honest = model - anchor
                move = self._sent(honest, i, k, s, round_)
                update += float(weights[i]) * move
                if move is not honest:
                    found[i, 2] = float(move.norm())
                if moves is not None:
                    moves[i] = move.numpy()
                if block.updates is not None:
                    block.updates[s, k, i] = sketch(move.numpy().astype(np.float64))
        if moves is not None and self.state.last is not None:
            self.state.last[s] = moves
        if moves is not None and is_combining(e.server) and len(present):
            combined = e.server.combine(moves[present], weights[present])
            update = torch.from_numpy(combined).to(anchor.dtype)
        self.w[s], memory = e.server.step(anchor, update, self.memory[s])
        self.memory[s] = e.server.learn(update, *taken_part(e, round_, weights, there), memory)
        block.update_norms[s, k] = np.where(np.isnan(found[:, 2]), 0.0, found[:, 2])
        self._measure(block, s, k, found, float((self.w[s] - anchor).norm()))
        self.round_seconds = time.perf_counter() - began
        note(block, s, k, {"seconds": self.round_seconds})

    def _sent(self, honest: Any, i: int, k: int, s: int, draw: int) -> Any:
        """What the client sends: its update, unless it has another behaviour."""
        kind, scale = (table[k, i] for table in self.kinds)
        if kind == SCALED and scale == 1.0:
            return honest
        last = None if self.state.last is None else self.state.last[s]
        place = (int(self.state.seeds[s]), draw)
        other = sent(kind, scale, honest.numpy().astype(np.float64), i, last, place)
        return torch.from_numpy(other).float()

    def _trained(
        self, members: Any, s: int, round_: int, anchor: Any, a: Any
    ) -> Iterator[tuple[int, tuple[float, ...], Any]]:
        """Each member's loss, accuracy, update norm and model, in the order of the members."""
        sent = self.memory[s][: self.e.server.travels]
        place = (s, int(self.state.seeds[s]), round_)
        if self._pool_wanted() and len(members) > 1:
            assert self.pool is not None
            yield from self.pool.train(self.own, members, place, anchor, a, sent)
            return
        for i in members.tolist():
            kept = tuple(room[s, i] for room in self.kept)
            found = self.own.train(i, *place[1:], anchor, a[:, i], kept, sent)
            yield i, found, self.own.w

    def _pool_wanted(self) -> bool:
        if self.pool is None and self.workers > 1 and can_fork():
            left = self.e.rounds - self.state.round
            if self.round_seconds * left * len(self.state.seeds) > WORTHWHILE:
                self.pool = Workers(self.e, self.workers - 1, self.group, self.kept)
        return self.pool is not None

    def _measure(self, block: Block, s: int, k: int, found: Any, change: float) -> None:
        w = self.w[s]
        self.own.w.copy_(w)
        there = found[~np.isnan(found[:, 0])]
        values = {"change": change}
        if len(there):
            values |= {"train_loss": there[:, 0].mean(), "train_accuracy": there[:, 1].mean()}
        values |= self.own.problem.scores(self.own.module)
        note(block, s, k, values)
        if block.w is not None:
            block.w[s, k] = w.cpu().numpy()

    def answers(self, s: int, clients: list[int], model: Any, round_: int, a: Any) -> Any:
        """What clients send back for any model."""
        anchor = torch.from_numpy(model).float().to(self.own.device)
        found = np.empty((len(clients), len(model)))
        with one_thread():
            for row, i in enumerate(clients):
                self.own.train(i, int(self.state.seeds[s]), round_, anchor, a[:, i])
                found[row] = (self.own.w - anchor).cpu().numpy()
        return found

    def losses(self, s: int) -> Any:
        """Every client's loss at the shared model."""
        self.own.w.copy_(self.w[s])
        with one_thread():
            return network_losses(self.own.problem, self.own.module)

    def steer(self, experiment: Experiment) -> None:
        """Other step sizes from here on; workers are sent theirs with every round."""
        self.e = experiment

    def sync(self) -> None:
        """Bring the State up to date with the models held here."""
        bring_back(self.state, self.w, self.memory)
        for array, room in zip(self.state.clients, self.kept, strict=True):
            array[...] = room.cpu().numpy()

    def close(self) -> None:
        """Send the workers home."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def bring_back(state: State, models: list[Any], memory: list[Any]) -> None:
    """Copy each seed's model and server memory from tensors into the State."""
    for s, w in enumerate(models):
        state.w[s] = w.cpu().numpy()
        for array, value in zip(state.memory, memory[s], strict=True):
            array[s] = value.cpu().numpy()


def note(block: Block, s: int, k: int, values: dict[str, float]) -> None:
    """Put one round's metrics into the block."""
    assert block.metrics is not None
    for name, value in values.items():
        if name == "train_accuracy" and math.isnan(value):
            continue  # a loss of the user's own that gives no accuracy
        if name not in block.metrics:
            block.metrics[name] = np.full(block.update_norms.shape[:2], np.nan)
        block.metrics[name][s, k] = value
