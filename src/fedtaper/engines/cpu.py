"""Networks on the CPU: client after client on one thread each, the clients over all cores.

A worker binds one network to a flat vector, so an update is one operation on that vector.
Workers are forked processes that share memory with the parent (Python threads would wait for
one another between the many small operations). The sums are made in the order of the clients,
so the result does not depend on the number of workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedtaper.core.memory import keep_memory
from fedtaper.core.protocols import (
    Block,
    Capabilities,
    Options,
    State,
    is_combining,
)
from fedtaper.core.sketch import SKETCH, sketch
from fedtaper.engines import KEEP_DIM, WAYS, taken_part
from fedtaper.engines.network_client import Client, Lane
from fedtaper.engines.precision import single_precision
from fedtaper.engines.stacked.ways import trainer_of
from fedtaper.engines.steered import network_losses
from fedtaper.engines.workers import Workers, can_fork, cores
from fedtaper.experiment import Experiment
from fedtaper.problems.network import one_thread
from fedtaper.rules.behaviours import SCALED, actual_step_sizes, sent, tables

SLOT_BYTES = 2**29  # clients' models held at once
WORTHWHILE = 1.0  # seconds of work left that pay for starting workers


class Cpu:
    """Networks on all cores, in step or not."""

    name = "cpu"
    capabilities = Capabilities(
        problems=frozenset({"network"}),
        stateful_rules=True,
        updates=True,
        behaviours=True,
        combining=True,
        challenges=True,
        delays=True,
        statistics=True,
        steering=True,
        ways=WAYS,
    )

    def check(self) -> None:
        """It runs everywhere that torch does."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One: a round of a network takes a while."""
        return 1

    def open(self, experiment: Experiment, state: State, options: Options) -> CpuSession:
        """A session in step if all clients are in step, else one with old models."""
        from fedtaper.engines.late import LateSession

        kind = CpuSession if experiment.in_step else LateSession
        return kind(experiment, state, way=options.way)


ENGINE = Cpu()


class CpuSession:
    """The rounds of one run: shared model, server memory, workers.

    Workers start when the first rounds have shown that they pay off.
    """

    def __init__(
        self, experiment: Experiment, state: State, workers: int | None = None,
        device: str = "cpu", way: str | None = "per-client", dtype: torch.dtype = torch.float32,
        exact: bool = True,
    ) -> None:  # fmt: skip
        self.e, self.state, self.dtype, self.exact = experiment, state, dtype, exact
        keep_memory()  # this process trains, too
        self.w = [torch.from_numpy(w).to(device, dtype) for w in state.w]
        self.memory = [
            tuple(torch.from_numpy(array[s]).to(device, dtype) for array in state.memory)
            for s in range(len(state.seeds))
        ]
        # where workers can reach it: every client's memory, (seeds, L, ...)
        self.kept = tuple(
            torch.from_numpy(array).to(device, dtype).share_memory_() for array in state.clients
        )
        self.own = Client(experiment, device)
        self.kinds: Any = ()
        dim, lanes = experiment.problem.dim, experiment.num_clients * len(state.seeds)
        self.group = max(1, min(lanes, SLOT_BYTES // (4 * dim)))
        self.workers = min(workers or cores(), lanes)
        with self._computing():
            self.trainer = trainer_of(experiment, state, way, self.own, self.workers, dtype)
        self.pool: Workers | None = None
        self.round_seconds = 0.0
        self.shared_seconds = 0.0  # of the round under way, for each seed
        self.ready: dict[int, list[tuple[Lane, Any, Any]]] = {}

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Torch as this session needs it; the caller's settings and generators are kept."""
        device = self.own.device
        gpus = [] if device == "cpu" else [device]
        precision = single_precision(device, self.exact)
        with one_thread(), torch.random.fork_rng(gpus), precision:
            yield

    def advance(self, rounds: int) -> Block:
        """Advance every seed by this many rounds."""
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
        with self._computing():
            for k in range(rounds):
                alive = np.flatnonzero(state.dead_round == 0).tolist()
                self._side_by_side(alive, a[k])
                for s in alive:
                    self._round(block, s, k, a[k])
                state.round += 1
        return block

    def _side_by_side(self, alive: list[int], a: Any) -> None:
        """Train the lanes of all seeds together, if a stack has room for several."""
        self.ready, self.shared_seconds = {}, 0.0
        if self.trainer.width == 1 or len(alive) == 1:
            return
        began, round_ = time.perf_counter(), self.state.round
        lanes = []
        for s in alive:
            seed = int(self.state.seeds[s])
            there = np.flatnonzero(self.e.present(round_, round_ + 1, seed)[0])
            lanes += [Lane(s, seed, i, round_) for i in there.tolist()]
        if len(lanes) > self.group:
            return
        self.ready = {s: [] for s in alive}
        for found in self._lanes_trained(lanes, self.w, a):
            self.ready[found[0].row].append(found)
        self.shared_seconds = (time.perf_counter() - began) / len(alive)

    def _round(self, block: Block, s: int, k: int, a: Any) -> None:
        began = time.perf_counter() - self.shared_seconds
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
                    moves[i] = move.cpu().numpy()
                if block.updates is not None:
                    block.updates[s, k, i] = sketch(move.cpu().numpy().astype(np.float64))
        if moves is not None and self.state.last is not None:
            self.state.last[s] = moves
        if moves is not None and is_combining(e.server) and len(present):
            combined = e.server.combine(moves[present], weights[present])
            update = torch.from_numpy(combined).to(anchor)
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
        other = sent(kind, scale, honest.cpu().numpy().astype(np.float64), i, last, place)
        return torch.from_numpy(other).to(honest)

    def _trained(
        self, members: Any, s: int, round_: int, anchor: Any, a: Any
    ) -> Iterator[tuple[int, tuple[float, ...], Any]]:
        """Each member's loss, accuracy, update norm and model, in the order of the members."""
        seed = int(self.state.seeds[s])
        lanes = [Lane(s, seed, i, round_) for i in members.tolist()]
        found = self.ready.get(s) or self._lanes_trained(lanes, {s: anchor}, a)
        for lane, values, model in found:
            yield lane.client, values, model

    def _lanes_trained(self, lanes: list[Lane], anchors: Any, a: Any) -> Iterator[Any]:
        """Each lane, its measures and its model, in the order of the lanes."""
        sent = [memory[: self.e.server.travels] for memory in self.memory]
        width = self.trainer.width
        if self._pool_wanted() and len(lanes) > width:
            assert self.pool is not None
            yield from self.pool.train(self.trainer, lanes, anchors, a, sent)
            return
        for low in range(0, len(lanes), width):
            part = lanes[low : low + width]
            values, models = self.trainer.train(part, anchors, a, self.kept, sent)
            for lane, found, model in zip(part, values, models, strict=True):
                yield lane, tuple(map(float, found)), model

    def _pool_wanted(self) -> bool:
        if self.pool is None and self.workers > 1:
            left = self.e.rounds - self.state.round
            seeds = len(self.state.seeds)
            if self.round_seconds * left * seeds > WORTHWHILE:
                if not can_fork():
                    self.workers = 1  # everything in this process
                    return False
                self.pool = Workers(
                    self.e, self.trainer, self.workers - 1, self.group, seeds, self.kept
                )
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
        anchor = torch.from_numpy(model).to(self.own.device, self.dtype)
        lanes = [Lane(s, int(self.state.seeds[s]), i, round_) for i in clients]
        found = np.empty((len(clients), len(model)))
        nothing = {s: ()}  # no memory outlives a round where there are challenges
        with self._computing():
            for low in range(0, len(lanes), self.trainer.width):
                part = lanes[low : low + self.trainer.width]
                _, models = self.trainer.train(part, {s: anchor}, a, (), nothing)
                for row, trained in enumerate(models, start=low):
                    found[row] = (trained - anchor).cpu().numpy()
        return found

    def losses(self, s: int) -> Any:
        """Every client's loss at the shared model."""
        self.own.w.copy_(self.w[s])
        with self._computing():
            return network_losses(self.own.problem, self.own.module)

    def steer(self, experiment: Experiment) -> None:
        """Use other step sizes from here on; workers are sent theirs with every round."""
        self.e = experiment

    def sync(self) -> None:
        """Bring the State up to date with the models held here."""
        bring_back(self.state, self.w, self.memory)
        for array, room in zip(self.state.clients, self.kept, strict=True):
            array[...] = room.cpu().numpy()

    def close(self) -> None:
        """End the workers."""
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
