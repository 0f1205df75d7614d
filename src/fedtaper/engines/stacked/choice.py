"""Which way of training is fastest for a run, measured on a few updates that are discarded.

The processor time of the rest of the run decides, compilation included, so a short run neither
measures nor waits for a compiler. Measurements are remembered on disk, by model, sizes and
machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import State, as_network
from fedtaper.engines import WAYS
from fedtaper.engines.network_client import Apart, Client, Lane, Trainer
from fedtaper.engines.stacked import remembered
from fedtaper.engines.stacked.batches import turns
from fedtaper.engines.stacked.stack import Stack
from fedtaper.engines.stacked.trial import objection
from fedtaper.experiment import Experiment

PER_CLIENT, STACKED, COMPILED = WAYS
WORTH_A_TRIAL = 5.0  # seconds of work, client by client, that pay for trying the other ways
WORTH_COMPILING = 30.0  # seconds of work, by the best way yet, that pay for trying the compiler
CONVOLUTIONS = 4.0  # times as many with convolutions on a CPU: they compile slowly and gain less
MARGIN = 0.9  # a way must need less than this share of a simpler one's time
UPDATES = 4  # of each lane, in a trial
TRIALS = 2
MANY_UPDATES = 50 * UPDATES * TRIALS  # of the whole run, that pay for those of a first trial


@dataclass(frozen=True)
class Measured:
    """Seconds of processor time per round for each way, None where it was not tried."""

    per_client: float
    stacked: float | None = None
    compiled: float | None = None
    compiling: float = 0.0  # seconds before the first compiled update

    def best(self, rounds: int) -> str:
        """The way that needs the least time for this many rounds.

        >>> Measured(1.0, 0.5, 0.1, compiling=20.0).best(10)
        'stacked'
        >>> Measured(1.0, 0.5, 0.1, compiling=20.0).best(100)
        'compiled'
        """
        way, least = PER_CLIENT, self.per_client * rounds
        if self.stacked is not None and self.stacked * rounds < MARGIN * least:
            way, least = STACKED, self.stacked * rounds
        if self.compiled is not None:
            whole = self.compiled * rounds + self.compiling
            way = COMPILED if whole < MARGIN * least else way
        return way

    def words(self) -> str:
        """What was measured, in one line."""
        parts = [f"{self.per_client * 1e3:.3g} ms of processor time per round client by client"]
        if self.stacked is not None:
            parts.append(f"{self.stacked * 1e3:.3g} stacked")
        if self.compiled is not None:
            parts.append(f"{self.compiled * 1e3:.3g} compiled")
            parts.append(f"{self.compiling:.3g} s to compile")
        return ", ".join(parts)


def choose(e: Experiment, state: State, own: Client, width: Callable[[], int]) -> tuple[str, str]:
    """The way for this run, and why."""
    if not as_network(e.problem).in_memory:
        return PER_CLIENT, "its data are read as they are needed"
    left = e.rounds - state.round
    if left * float((e.steps * e.rates).sum()) * len(state.seeds) < MANY_UPDATES:
        return PER_CLIENT, "a short run"
    found = Measured(_apart(e, state, own))
    if found.per_client * left < WORTH_A_TRIAL:
        return PER_CLIENT, "a short run"
    why = objection(e, own.device)
    if why is not None:
        return PER_CLIENT, why
    lanes = width()
    key = remembered.key(e, lanes, own.device)
    found = remembered.read(key, Measured) or found
    if found.stacked is None:
        found = replace(found, stacked=_together(e, state, Stack(e, lanes, device=own.device)))
    assert found.stacked is not None
    least = min(found.per_client, found.stacked)
    if found.compiled is None and least * left > _worth_compiling(e, own.device):
        found = _with_compiler(e, state, found, lanes, own.device)
    remembered.write(key, found)
    return found.best(left), found.words()


def _worth_compiling(e: Experiment, device: str) -> float:
    """Seconds of work that pay for trying the compiler."""
    parts = as_network(e.problem).module().modules()
    slow = device == "cpu" and any(isinstance(part, _ConvNd) for part in parts)
    return WORTH_COMPILING * (CONVOLUTIONS if slow else 1.0)


def _apart(e: Experiment, state: State, own: Client) -> float:
    """Seconds of a round, client by client."""
    tried = min(UPDATES, int(e.steps[0]))
    updates = float((e.steps * e.rates).sum()) * len(state.seeds)
    return _trial(e, state, Apart(own), [0]) / tried * updates


def _together(e: Experiment, state: State, stack: Stack) -> float:
    """Seconds of a round of stacks like this one."""
    problem, seed = as_network(e.problem), int(state.seeds[0])
    clients = np.resize(np.arange(e.num_clients), stack.width).tolist()
    sizes = [problem.batches(e, seed, i, state.round).size for i in clients]  # type: ignore[attr-defined]  # in memory
    tried, whole = len(turns([s[:UPDATES] for s in sizes])), len(turns(sizes))
    stacks = float(e.rates.sum()) * len(state.seeds) / stack.width
    return _trial(e, state, stack, clients) / tried * whole * stacks


def _with_compiler(
    e: Experiment, state: State, found: Measured, lanes: int, device: str
) -> Measured:
    """The measurement with the compiled step too, unless the compiler fails."""
    began = time.perf_counter()
    try:
        stack = Stack(e, lanes, compiled=True, device=device)
    except FedtaperError:
        raise
    except Exception as trouble:  # no C++ compiler, or one that cannot take this model
        warn(f"torch.compile failed ({type(trouble).__name__}): continuing without it")
        return found
    compiling = time.perf_counter() - began
    return replace(found, compiled=_together(e, state, stack), compiling=compiling)


def _trial(e: Experiment, state: State, trainer: Trainer, clients: list[int]) -> float:
    """Seconds for the first updates of a round of these clients: the better of two trials."""
    seed, device = int(state.seeds[0]), trainer.device
    lanes = [Lane(0, seed, i, state.round) for i in clients]
    a = e.step_sizes(state.round, state.round + 1)[0][:UPDATES]
    anchor = torch.from_numpy(state.w[0]).float().to(device)
    kept = tuple(torch.from_numpy(c[:1].copy()).float().to(device) for c in state.clients)
    travel = state.memory[: e.server.travels]
    sent = [tuple(torch.from_numpy(m[0]).float().to(device) for m in travel)]
    spent = []
    for _ in range(TRIALS):
        began = _now(device)
        trainer.train(lanes, [anchor], a, kept, sent)
        spent.append(_now(device) - began)
    return min(spent)


def _now(device: str) -> float:
    """Processor time of this thread (not affected by a busy machine); for a GPU, wall time."""
    if device == "cpu":
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()
