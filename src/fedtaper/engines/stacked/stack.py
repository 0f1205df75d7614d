"""Many clients' models as one: trained side by side, a lane for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from fedtaper.core.protocols import Memory, as_network
from fedtaper.core.rules import restarted
from fedtaper.engines.cuda.graphs import Captured
from fedtaper.engines.layout import Layout
from fedtaper.engines.network_client import Lane
from fedtaper.engines.stacked.batches import Resident, RoundBatches, Turn, each, sample_bytes
from fedtaper.engines.stacked.compiling import Compiled
from fedtaper.engines.stacked.drawn import Draw, Drawn, drawn, draws_of
from fedtaper.engines.stacked.step import Loss, Step, alone, step_of
from fedtaper.experiment import Experiment
from fedtaper.problems.network import Minibatches

LOOKED_AT = 100  # clients whose batch sizes are looked at
RESIDENT_SHARE = 0.2  # of a GPU's free memory, for the data
BUSY = 0.5  # share of the lanes with something to do that pays for the compiled step of all


class Stack:
    """Up to ``width`` lanes at once.

    Updates with a usual batch size are made by a step that has one shape: all lanes, where those
    without such a batch are masked. It is compiled, if that is asked for, and captured on a GPU,
    where a masked lane costs little. The plain step does everything else.
    """

    def __init__(
        self, experiment: Experiment, width: int, compiled: bool = False, device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.e, self.width, self.device, self.dtype = experiment, width, device, dtype
        self.problem = as_network(experiment.problem)
        self.loss = Loss(self.problem, self.problem.module().to(device, dtype))
        self.layout = Layout.of(self.loss)
        self.bytes = sample_bytes(self.problem, dtype)
        self.plain: Step = step_of(self.loss, experiment.local, self.layout)
        self.everyone = torch.ones(width, dtype=torch.bool, device=device)
        self.drawing: dict[int, tuple[Draw, ...]] = {}  # what a step draws, by its batch size
        sizes = usual_sizes(experiment) if compiled or device != "cpu" else ()
        self.fast: dict[int, Any] = {}
        if compiled:
            self.fast = {size: self._compile(size) for size in sizes}
        self.resident: Resident | None = None
        if device != "cpu":
            self.resident = self._resident()
            self.capture(sizes)

    def capture(self, sizes: Sequence[int]) -> None:
        """Make graphs of the steps: of all lanes, where batches have one of these sizes."""
        captured = {id(step): Captured(step) for step in (self.plain, *self.fast.values())}
        self.fast = {size: captured[id(self.fast.get(size, self.plain))] for size in sizes}
        self.plain = captured[id(self.plain)]

    def _resident(self) -> Resident | None:
        """The data on the device, if they take a small part of its memory."""
        needed = self.bytes * int(self.problem.sizes.sum())
        free = torch.cuda.mem_get_info()[0]
        if needed > RESIDENT_SHARE * free:
            return None
        return Resident(self.problem, self.device, self.dtype)

    def _compile(self, size: int) -> Compiled:
        """The step of all lanes with batches of that size: made before a fork, to be kept."""
        w, memory, start, a, batch = self._example(size, self.width)
        numbers = drawn(self._draws(size), range(self.width))
        return Compiled(self.plain, w, memory, start, a, self.everyone, numbers, batch)

    def _example(self, size: int, lanes: int) -> tuple[Any, ...]:
        """Models, memories, models at the start, step sizes and mini-batches of that size."""
        first = torch.from_numpy(self.problem.initial(self.e.seed)).to(self.device, self.dtype)
        start = first.repeat(lanes, 1)
        came = tuple(start.clone() for _ in range(self.e.local.receives))
        own = vmap(self.e.local.init)(start) if self.e.local.keeps == "run" else ()
        a = torch.zeros(lanes, device=self.device, dtype=self.dtype)
        index = np.arange(size) % int(self.problem.sizes[0])
        taken = self.problem.take(0, Minibatches(index, np.array([size])), self.dtype)
        batch = tree_map(lambda t: torch.stack([t] * lanes).to(self.device), taken)
        return start.clone(), self._begun(start, own, came), start, a, batch

    def _draws(self, size: int) -> tuple[Draw, ...]:
        """What an update with batches of that size draws: found by making one."""
        if self.device != "cpu":
            return ()  # models that draw are trained client by client there
        if size not in self.drawing:
            w, *others, batch = self._example(size, lanes=2)
            self.drawing[size] = draws_of(
                lambda: alone(self.loss, self.layout, w, batch),
                lambda: self.plain(w, *others, None, (), batch),
            )
        return self.drawing[size]

    def _drawn(self, batches: RoundBatches, turn: Turn) -> Drawn:
        """The numbers that the members' models draw in this update."""
        draws = self._draws(turn.size)
        return drawn(draws, batches.keys(turn)) if draws else ()

    def train(
        self, lanes: Sequence[Lane], anchors: Any, a: Any, kept: Memory, sent: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss, accuracy and update norm of each lane, (lanes, 3), and its model, (lanes, d).

        ``anchors`` and ``sent`` are looked up by the seed's row, ``a`` (updates, L) by client.
        ``kept`` holds every client's memory, (seeds, L, ...), which is changed in place.
        """
        count, room = len(lanes), self._room(len(lanes))
        held = [*lanes, *[lanes[-1]] * (room - count)]  # lanes that nobody needs stand idle
        rows, clients = ([getattr(lane, name) for lane in held] for name in ("row", "client"))
        start = torch.stack([anchors[row] for row in rows]).to(self.device, self.dtype)
        came = tuple(torch.stack(parts) for parts in zip(*(sent[row] for row in rows)))  # noqa: B905 (nothing may be sent)
        own = tuple(memory[rows, clients] for memory in kept)
        steps = torch.from_numpy(np.ascontiguousarray(a[:, clients])).to(self.device, self.dtype)
        memory = self._begun(start, own, came)
        batches = RoundBatches(
            self.e, self.problem, lanes, len(a), self.bytes, self.device, self.dtype,
            self.resident,
        )  # fmt: skip
        with torch.no_grad():
            w, memory, means = self._updated(batches, start, steps, memory)
            if kept:
                after = vmap(self.e.local.finish)(w, start, steps.sum(0), memory)  # type: ignore[arg-type]  # tensors for numbers
                for array, value in zip(kept, after, strict=True):
                    array[rows[:count], clients[:count]] = value[:count].to(array.dtype)
            norms = torch.linalg.vector_norm(w - start, dim=1)
        # a copy: what a captured step returned is overwritten by the next
        models = w[:count] if self.device == "cpu" else w[:count].clone()
        return torch.column_stack([means, norms])[:count].double().cpu(), models

    def _room(self, count: int) -> int:
        """How many lanes there is room for: the compiled step always has all."""
        return self.width if self.fast else count

    def _begun(self, start: Any, own: Memory, came: Memory) -> Memory:
        """The memories at the start of the round."""
        if self.e.local.keeps == "nothing":
            return ()
        begin = vmap(lambda w, kept, sent: restarted(self.e.local, w, kept, sent))
        found: Memory = begin(start, own, came)
        return tuple(part.contiguous() for part in found)

    def _updated(
        self, batches: RoundBatches, start: Any, steps: Any, memory: Memory
    ) -> tuple[Any, Memory, Any]:
        """The models after all updates, the memories, and each lane's mean loss and accuracy."""
        room = len(start)
        w = start.clone()
        sums = torch.zeros(room, 2, device=self.device, dtype=self.dtype)
        for turn in batches.turns:
            m = None if len(turn.members) == room else torch.from_numpy(turn.members)
            if self._pays(turn):
                a, active, every = self._whole(batches, turn, steps)
                batch = each(torch.Tensor.contiguous, batches.of(every))  # as it was compiled
                numbers = self._drawn(batches, every)
                step = self.fast[turn.size]
                w, memory, *both = step(w, memory, start, a, active, numbers, batch)
                found = torch.stack(both, 1)[slice(None) if m is None else m]
            elif m is None:
                a, numbers, batch = _at(steps, turn), self._drawn(batches, turn), batches.of(turn)
                w, memory, *both = self.plain(w, memory, start, a, None, numbers, batch)
                found = torch.stack(both, 1)
            else:
                part = tuple(array[m] for array in memory)
                a, numbers, batch = _at(steps, turn), self._drawn(batches, turn), batches.of(turn)
                new, after, *both = self.plain(w[m], part, start[m], a, None, numbers, batch)
                w, memory = _put(w, m, new), tuple(map(_put, memory, [m] * len(after), after))
                found = torch.stack(both, 1)
            if m is None:
                sums += found
            else:
                sums[m] += found
        made = [len(sizes) for sizes in batches.sizes] + [1] * (room - len(batches.sizes))
        return w, memory, sums / torch.tensor(made, device=self.device)[:, None]

    def _pays(self, turn: Turn) -> bool:
        return turn.size in self.fast and len(turn.members) >= BUSY * self.width

    def _whole(self, batches: RoundBatches, turn: Turn, steps: Any) -> tuple[Any, Any, Turn]:
        """Step sizes, active lanes, and the turn of all lanes, including the idle ones."""
        row = turn.row if len(turn.members) == self.width else None
        if row is not None:
            return steps[row], self.everyone, turn
        rows = np.zeros(self.width, dtype=np.int64)
        rows[turn.members] = turn.rows
        active = np.zeros(self.width, dtype=bool)
        active[turn.members] = True
        lanes = np.arange(self.width)
        a = steps[torch.from_numpy(rows), torch.from_numpy(lanes)]
        every = Turn(np.minimum(lanes, len(batches.lanes) - 1), rows, turn.size)
        return a, torch.from_numpy(active).to(self.device), every


def _at(steps: Any, turn: Turn) -> Any:
    """The members' step sizes."""
    if turn.row is not None and len(turn.members) == steps.shape[1]:
        return steps[turn.row]  # nothing has to be sent to a GPU
    return steps[torch.from_numpy(turn.rows), torch.from_numpy(turn.members)]


def _put(whole: Any, members: Any, part: Any) -> Any:
    """The whole tensor with some lanes replaced."""
    return whole.index_copy(0, members.to(whole.device), part)


def usual_sizes(e: Experiment) -> tuple[int, ...]:
    """The batch sizes worth a compilation: those of at least a fifth of the updates."""
    problem = as_network(e.problem)
    some = np.unique(np.linspace(0, e.num_clients - 1, LOOKED_AT).astype(int)).tolist()
    found = np.concatenate([problem.batches(e, 0, i, 0).size for i in some])  # type: ignore[attr-defined]  # in memory
    sizes, counts = np.unique(found, return_counts=True)
    return tuple(int(s) for s, c in zip(sizes, counts, strict=True) if c >= len(found) / 5)
