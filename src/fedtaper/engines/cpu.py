"""Networks on the CPU: client after client on one thread each, the clients over all cores.

A worker binds one network to a flat vector, so an update is one operation on that vector.
Workers are forked processes that share memory with the parent (Python threads would wait for
one another between the many small operations). The sums are made in the order of the clients,
so the number of workers changes nothing in the result.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import (
    Block,
    Capabilities,
    Memory,
    Memoryless,
    Options,
    State,
    as_network,
    is_combining,
)
from fedtaper.core.sketch import SKETCH, sketch
from fedtaper.engines import KEEP_DIM
from fedtaper.experiment import Experiment
from fedtaper.problems.network import bind
from fedtaper.rules.behaviours import SCALED, actual_step_sizes, sent, tables

SLOT_BYTES = 2**29  # clients' models held at once
WORTHWHILE = 1.0  # seconds of work left that pay for starting workers


class Cpu:
    """Networks on all cores."""

    name = "cpu"
    capabilities = Capabilities(
        problems=frozenset({"network"}), updates=True, behaviours=True, combining=True
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


class Client:
    """One network on one thread: trains any client's model from the shared one."""

    def __init__(self, experiment: Experiment, device: str = "cpu") -> None:
        self.e, self.device = experiment, device
        self.problem = as_network(experiment.problem)
        self.module = self.problem.module().to(device)
        self.w = torch.zeros(experiment.problem.dim, device=device)
        self.gradient = torch.zeros_like(self.w)
        bind(self.module, self.w, self.gradient)

    def train(self, client: int, seed: int, round_: int, anchor: Any, a: Any) -> tuple[float, ...]:
        """Local updates from ``anchor``; the model is left in ``self.w``."""
        problem = self.problem
        self.w.copy_(anchor)
        losses, right = [], []
        memory = self.e.local.init(self.w)
        for step, batch in enumerate(problem.batches(self.e, seed, client, round_)):
            loss, share = problem.batch_loss(self.module, *self._taken(client, batch))
            self.gradient.zero_()
            loss.backward()
            with torch.no_grad():
                memory = self._moved(anchor, float(a[step]), memory)
            losses.append(loss.detach())
            right.append(share)
        mean = float(torch.stack(losses).mean())
        share = math.nan if right[0] is None else float(torch.stack(right).mean())
        return mean, share, float((self.w - anchor).norm())

    def _moved(self, anchor: Any, a: float, memory: Memory) -> Memory:
        """One local update of ``self.w``, in place."""
        local = self.e.local
        if isinstance(local, Memoryless):
            self.w.sub_(local.direction(self.gradient, self.w, anchor), alpha=a)
            return memory
        new, memory = local.step(self.w, self.gradient, anchor, a, memory)
        self.w.copy_(new)
        return memory

    def _taken(self, client: int, batch: Any) -> Any:
        taken = self.problem.take(client, batch)
        return taken if self.device == "cpu" else [t.to(self.device) for t in taken]


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
        self.own = Client(experiment, device)
        self.kinds: Any = ()
        dim, clients = experiment.problem.dim, experiment.num_clients
        self.group = max(1, min(clients, SLOT_BYTES // (4 * dim)))
        self.workers = min(workers or _cores(), clients)
        self.pool: _Workers | None = None
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
        weights = e.server_weights(e.step_sums(*span))
        if state.keep_updates:
            block.updates = np.full((*block.update_norms.shape, min(e.problem.dim, SKETCH)), np.nan)
        with one_thread():
            for k in range(rounds):
                for s in np.flatnonzero(state.dead_round == 0):
                    self._round(block, int(s), k, a[k], weights[k])
                state.round += 1
        return block

    def _round(self, block: Block, s: int, k: int, a: Any, weights: Any) -> None:
        began = time.perf_counter()
        e, round_, seed = self.e, self.state.round, int(self.state.seeds[s])
        present = np.flatnonzero(e.present(round_, round_ + 1, seed)[0])
        anchor = self.w[s]
        update = torch.zeros_like(anchor)
        found = np.full((e.num_clients, 3), np.nan)
        keep = self.state.last is not None or is_combining(e.server)
        moves = np.zeros((e.num_clients, len(anchor))) if keep else None
        if block.updates is not None:
            block.updates[s, k] = 0.0
        for low in range(0, len(present), self.group):
            members = present[low : low + self.group]
            for i, values, model in self._trained(members, seed, round_, anchor, a):
                found[i] = values
                if not math.isfinite(values[2]):
                    self.state.dead_round[s], self.state.dead_client[s] = round_ + 1, i
                    return
                honest = model - anchor
                move = self._sent(honest, i, k, s)
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
        self.w[s], self.memory[s] = e.server.step(anchor, update, self.memory[s])
        block.update_norms[s, k] = np.where(np.isnan(found[:, 2]), 0.0, found[:, 2])
        self._measure(block, s, k, found, float((self.w[s] - anchor).norm()))
        self.round_seconds = time.perf_counter() - began
        note(block, s, k, {"seconds": self.round_seconds})

    def _sent(self, honest: Any, i: int, k: int, s: int) -> Any:
        """What the client sends: its update, unless it has another behaviour."""
        kind, scale = (table[k, i] for table in self.kinds)
        if kind == SCALED and scale == 1.0:
            return honest
        last = None if self.state.last is None else self.state.last[s]
        place = (int(self.state.seeds[s]), self.state.round)
        other = sent(kind, scale, honest.numpy().astype(np.float64), i, last, place)
        return torch.from_numpy(other).float()

    def _trained(
        self, members: Any, seed: int, round_: int, anchor: Any, a: Any
    ) -> Iterator[tuple[int, tuple[float, ...], Any]]:
        """Each member's loss, accuracy, update norm and model, in the order of the members."""
        if self._pool_wanted() and len(members) > 1:
            assert self.pool is not None
            yield from self.pool.train(self.own, members, seed, round_, anchor, a)
            return
        for i in members.tolist():
            yield i, self.own.train(i, seed, round_, anchor, a[:, i]), self.own.w

    def _pool_wanted(self) -> bool:
        if self.pool is None and self.workers > 1 and "fork" in _METHODS:
            left = self.e.rounds - self.state.round
            if self.round_seconds * left * len(self.state.seeds) > WORTHWHILE:
                self.pool = _Workers(self.e, self.workers - 1, self.group)
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

    def sync(self) -> None:
        """Bring the State up to date with the models held here."""
        bring_back(self.state, self.w, self.memory)

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


def _cores() -> int:
    """How many processes a run may use: all cores, unless runs share them."""
    return int(os.environ.get("FEDTAPER_WORKERS", "0")) or os.cpu_count() or 1


_METHODS = multiprocessing.get_all_start_methods()


class _Workers:
    """Forked processes that take the next client off a shared list until none is left."""

    def __init__(self, experiment: Experiment, count: int, slots: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.anchor = torch.zeros(experiment.problem.dim).share_memory_()
        self.models = torch.zeros(slots, experiment.problem.dim).share_memory_()
        self.values = torch.zeros(slots, 3, dtype=torch.float64).share_memory_()
        self.next = fork.Value("l", 0)
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for _ in range(count):
            here, there = fork.Pipe()
            held = [*self.pipes, here]  # a child keeps no end of the parent's: it sees its death
            process = fork.Process(target=self._serve, args=(experiment, there, held), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def _serve(self, experiment: Experiment, pipe: Any, held: list[Any]) -> None:
        for other in held:
            other.close()
        torch.set_num_threads(1)
        own = Client(experiment)
        with suppress(EOFError, KeyboardInterrupt, OSError):
            while (job := pipe.recv()) is not None:
                try:
                    self._work(own, *job)
                    pipe.send(None)
                except Exception as problem:
                    pipe.send(f"{type(problem).__name__}: {problem}")

    def _work(self, own: Client, members: Any, seed: int, round_: int, a: Any) -> None:
        while True:
            with self.next.get_lock():
                place = self.next.value
                self.next.value += 1
            if place >= len(members):
                return
            i = int(members[place])
            values = own.train(i, seed, round_, self.anchor, a[:, i])
            self.models[place] = own.w
            self.values[place] = torch.tensor(values, dtype=torch.float64)

    def train(
        self, own: Client, members: Any, seed: int, round_: int, anchor: Any, a: Any
    ) -> Iterator[tuple[int, tuple[float, ...], Any]]:
        self.anchor.copy_(anchor)
        self.next.value = 0
        for pipe in self.pipes:
            pipe.send((members, seed, round_, a))
        self._work(own, members, seed, round_, a)
        for pipe in self.pipes:
            try:
                trouble = pipe.recv()
            except EOFError:
                raise FedtaperError(
                    "a worker process died (out of memory?): resume, or use workers=1"
                ) from None
            if trouble is not None:
                raise FedtaperError(f"a worker failed: {trouble}")
        for place, i in enumerate(members.tolist()):
            yield i, tuple(self.values[place].tolist()), self.models[place]

    def close(self) -> None:
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread an operation: two collapse where the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
