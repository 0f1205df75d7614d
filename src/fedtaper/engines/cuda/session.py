"""Networks on one GPU: data and models stay on the device, metrics come back once a round.

All clients make a step side by side (``captured_steps.py``): compiled, and captured as one CUDA
graph that reads its mini-batch by a counter on the device, so that a round is a row of graph
replays with no Python between them. Weights are kept in float32 beside the bf16 copies that
compute: a tapered step is too small for bf16 to add.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import Array, Block, State
from fedtaper.core.sketch import SKETCH, signs
from fedtaper.engines import KEEP_DIM, cpu, taken_part
from fedtaper.engines.cuda.batches import RoundBatches, round_batches
from fedtaper.engines.cuda.captured_steps import (
    DeviceRound,
    channels_last,
    network_of,
    tested_of,
)
from fedtaper.engines.cuda.compiling import compile_once
from fedtaper.engines.cuda.layout import empty, views
from fedtaper.engines.cuda.sending import Sending
from fedtaper.engines.cuda.trial import stacks
from fedtaper.engines.layout import Layout
from fedtaper.engines.network_client import Client
from fedtaper.engines.precision import captured_kernels
from fedtaper.engines.steered import network_losses
from fedtaper.experiment import Experiment
from fedtaper.rules.behaviours import actual_step_sizes

STREAMS = 10
TEST_CHUNK = 2000
BUSY = 0.7  # share of the clients with a step to make, on average, that pays for stacking
PRECISIONS = {"bf16": torch.bfloat16, "float32": torch.float32}


class CudaSession:
    """The rounds of one or more seeds on one device."""

    def __init__(
        self,
        experiment: Any,
        state: State,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cuda",
        compiled: bool = True,
        streams: int = STREAMS,
        stacked: bool | None = None,
    ) -> None:
        self.e, self.state, self.dtype, self.device = experiment, state, dtype, device
        self.on_gpu = device.startswith("cuda")
        self.compiled = self.on_gpu and compiled
        problem = experiment.problem
        # its frozen weights and buffers compute in the type of the trained ones
        self.module = channels_last(problem.module().to(device, dtype))
        self.layout = Layout.of(self.module)
        self.w = [self._there(w) for w in state.w]
        self.memory = [
            tuple(self._there(array[s]) for array in state.memory) for s in range(len(self.w))
        ]
        self._load(problem)
        self.streams = [torch.cuda.Stream() for _ in range(streams)] if self.on_gpu else []
        judged = channels_last(problem.module().to(device, dtype)).eval()
        self.tested: Callable[..., Any] = tested_of(judged, self.layout.names, dtype)
        if self.compiled:
            self.tested = compile_once(("test", *network_of(experiment), dtype), self.tested)
        self.ahead: tuple[Any, Any] | None = None
        self.width = experiment.num_clients
        self.stacked = self._stackable() if stacked is None else stacked
        self.device_round: DeviceRound | None = None
        self.sending = Sending(experiment, state, device)
        self.judge: Client | None = None  # for the clients' losses, where they are asked for
        self.signs: torch.Tensor | None = None

    def _stackable(self) -> bool:
        """Whether one kernel a layer for all clients is possible, and quicker than streams."""
        e = self.e
        busy = float(np.mean(e.steps * e.rates)) / float(e.steps.max())
        wanted = self.on_gpu and self.dtype == torch.bfloat16 and busy >= BUSY
        return wanted and stacks(e)

    def _computing(self) -> AbstractContextManager[None]:
        """Torch as this session needs it; the caller's settings are kept."""
        if not self.on_gpu:
            return nullcontext()
        return captured_kernels(self.dtype == torch.float32, self.compiled)

    def _there(self, plain: Any) -> torch.Tensor:
        return torch.from_numpy(plain).float().to(self.device)

    def _load(self, problem: Any) -> None:
        data, device = problem.data, self.device
        self.images = torch.from_numpy(np.ascontiguousarray(data.train_x)).to(device)
        self.labels = torch.from_numpy(data.train_y).to(device)
        self.scale = tuple(torch.from_numpy(v).to(device) for v in data.scale)
        self.test_x = torch.from_numpy(np.ascontiguousarray(data.test_x)).to(device)
        self.test_y = torch.from_numpy(data.test_y).to(device)

    def advance(self, rounds: int) -> Block:
        """Move every seed on by so many rounds."""
        e, state = self.e, self.state
        small = e.problem.dim <= KEEP_DIM
        block = Block(
            np.full((len(self.w), rounds, e.problem.dim), np.nan) if small else None,
            np.full((len(self.w), rounds, e.num_clients), np.nan),
            {},
        )
        if state.keep_updates:
            block.updates = np.full((*block.update_norms.shape, min(e.problem.dim, SKETCH)), np.nan)
        with self._computing():
            for k in range(rounds):
                for s in np.flatnonzero(state.dead_round == 0):
                    self._round(block, int(s), k)
                state.round += 1
        return block

    def _round(self, block: Block, s: int, k: int) -> None:
        began = time.perf_counter()
        e, round_, seed = self.e, self.state.round, int(self.state.seeds[s])
        a = actual_step_sizes(e, round_, round_ + 1)
        (shares,), (there,) = e.round_weights(round_, round_ + 1, seed)
        weights = torch.from_numpy(np.array(shares)).float()
        order = self._order(seed, round_)
        anchor = self.w[s]
        update, found = torch.zeros_like(anchor), []
        if block.updates is not None:
            block.updates[s, k] = 0.0
        for members, moved in self._moved(order, seed, round_, anchor, a[0]):
            self.sending.replace(s, round_, members, moved)
            update += weights[members].to(self.device) @ moved
            found.append(self._found(members, moved))
            if block.updates is not None:
                block.updates[s, k, members] = self._sketched(moved)
        new, memory = e.server.step(anchor, update, self.memory[s])
        memory = e.server.learn(update, *taken_part(e, round_, shares, there), memory)
        tested = self._tested(new)
        self._look_ahead(seed, round_ + 1)
        values = torch.cat(found).cpu().numpy().astype(np.float64) if found else np.empty((0, 3))
        if not np.all(np.isfinite(values)):
            bad = int(order[np.flatnonzero(~np.isfinite(values).all(axis=1))[0]])
            self.state.dead_round[s], self.state.dead_client[s] = round_ + 1, bad
            return
        change = float((new - anchor).norm())
        self.w[s], self.memory[s] = new, memory
        self.sending.end(s)
        block.update_norms[s, k] = 0.0
        block.update_norms[s, k, order] = values[:, 2]
        noted = {"change": change}
        if len(values):
            noted |= {"train_loss": values[:, 0].mean(), "train_accuracy": values[:, 1].mean()}
        noted |= e.problem.test_metrics(*(v.cpu().numpy() for v in tested))
        noted["seconds"] = time.perf_counter() - began
        cpu.note(block, s, k, noted)
        if block.w is not None:
            block.w[s, k] = new.cpu().numpy()

    def _order(self, seed: int, round_: int) -> Any:
        """Who takes part, those with the most steps first: the active ones stay in front."""
        present = np.flatnonzero(self.e.present(round_, round_ + 1, seed)[0])
        return present[np.argsort(-self.e.steps[present], kind="stable")]

    def _moved(
        self, order: Any, seed: int, round_: int, anchor: Any, a: Any
    ) -> Iterator[tuple[Any, torch.Tensor]]:
        """Some clients at a time, those with the most steps first, and how far each one went."""
        low = 0
        while low < len(order):
            members = order[low : low + self.width]
            try:
                batches = self._plan(members, seed, round_)
                if self.device_round is None:
                    self.device_round = DeviceRound(self, self.width)
                self.device_round.begin(anchor, len(members))
                self.device_round.train(batches, members, a)
                moved = self.device_round.models(len(members)) - anchor
            except torch.cuda.OutOfMemoryError:
                self._narrow()
                continue
            yield members, moved
            low += len(members)

    def _found(self, members: Any, moved: torch.Tensor) -> torch.Tensor:
        """Mean loss, accuracy and update norm of clients that have just been trained."""
        assert self.device_round is not None
        steps = torch.from_numpy(self.e.steps[members]).to(self.device)
        means = self.device_round.sums[: len(members)] / steps[:, None]
        return torch.cat([means, moved.norm(dim=1, keepdim=True)], 1)

    def _sketched(self, moved: torch.Tensor) -> Array:
        """The updates as ``core.sketch`` has them, made on the device."""
        if self.signs is None:
            self.signs = torch.from_numpy(signs(moved.shape[1])).to(self.device)
        signed = moved.double() * self.signs
        room = torch.nn.functional.pad(signed, (0, -signed.shape[1] % SKETCH))
        return np.asarray(room.view(len(moved), -1, SKETCH).sum(1).cpu().numpy())

    def _narrow(self) -> None:
        """Memory is short: half as many clients side by side."""
        if self.width == 1:
            raise FedtaperError(
                "the GPU's memory does not hold even one client: use a smaller model or batch"
            ) from None
        self.device_round = None
        if self.on_gpu:
            torch.cuda.empty_cache()
        self.width = -(-self.width // 2)
        warn(f"the GPU's memory is short: going on with {self.width} clients at a time")

    def _plan(self, members: Any, seed: int, round_: int) -> RoundBatches:
        key = (seed, round_, members.tolist())
        if self.ahead is not None and self.ahead[0] == key:
            return self.ahead[1]
        return round_batches(self.e, members, seed, round_)

    def _look_ahead(self, seed: int, round_: int) -> None:
        """Make the next round's mini-batches on the host while the device works."""
        if round_ < self.e.rounds and len(self.w) == 1:
            members = self._order(seed, round_)[: self.width]
            self.ahead = (
                (seed, round_, members.tolist()),
                round_batches(self.e, members, seed, round_),
            )

    def _tested(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each test image's loss and whether it is right."""
        parts = empty(self.layout, self.device, self.dtype)
        torch._foreach_copy_(parts, views(self.layout, w))
        count = len(self.test_y)
        found = []
        with torch.no_grad():
            for low in range(0, count, TEST_CHUNK):
                place = torch.arange(low, low + min(count, TEST_CHUNK), device=self.device)
                place.clamp_max_(count - 1)  # chunks of one shape: one compilation
                some = self.test_x[place], self.test_y[place]
                found.append(self.tested(parts, *some, self.scale))
        losses, right = (torch.cat(column)[:count] for column in zip(*found, strict=True))
        return losses, right

    def answers(self, s: int, clients: list[int], model: Any, round_: int, a: Any) -> Any:
        """What clients send back for any model."""
        anchor, seed = self._there(model), int(self.state.seeds[s])
        place = {i: row for row, i in enumerate(clients)}
        order = np.array(sorted(clients, key=lambda i: -int(self.e.steps[i])), dtype=np.int64)
        found = np.empty((len(clients), len(model)), dtype=np.float32)
        with self._computing():
            for members, moved in self._moved(order, seed, round_, anchor, a):
                found[[place[i] for i in members.tolist()]] = moved.cpu().numpy()
        return found

    def losses(self, s: int) -> Array:
        """Every client's loss at the shared model, in float32."""
        if self.judge is None:
            self.judge = Client(self.e, self.device)
        self.judge.w.copy_(self.w[s])
        with self._computing():
            return network_losses(self.judge.problem, self.judge.module)

    def steer(self, experiment: Experiment) -> None:
        """Other step sizes from here on."""
        self.e = self.sending.e = experiment

    def sync(self) -> None:
        """Bring the State up to date with the models on the device."""
        cpu.bring_back(self.state, self.w, self.memory)
        self.sending.sync()

    def close(self) -> None:
        """Free what the device holds."""
        self.device_round = None
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
