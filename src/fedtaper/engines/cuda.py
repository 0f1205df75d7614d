"""Networks on one GPU: data and models stay on the device, metrics come back once a round.

All clients make a step side by side. One step of one client (forward, backward, update) is
compiled; the steps of all clients are captured on several streams as one CUDA graph, which
reads its mini-batch by a counter on the device, so that a round is a row of graph replays with
no Python between them. Weights are kept in float32 beside the bf16 copies that compute: a
tapered step is too small for bf16 to add.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad_and_value
from torch.nn.functional import cross_entropy

from fedtaper.engines import KEEP_DIM, Block, State, cpu
from fedtaper.errors import FedtaperError, warn
from fedtaper.objectives.network import augmented

STREAMS = 10
WARM_UP = 3
TEST_CHUNK = 2000
PRECISIONS = {"bf16": torch.bfloat16, "float32": torch.float32}


def check() -> None:
    """Refuse where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise FedtaperError(
            'there is no CUDA device here: use device="cpu", or install a torch build with CUDA'
        )


def start(experiment: Any, state: State, precision: str = "bf16", **how: Any) -> Any:
    """Ready to move the state on: captured steps for images, a plain loop for custom losses."""
    if precision not in PRECISIONS:
        raise FedtaperError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if not hasattr(experiment.problem, "data"):
        return cpu.Session(experiment, state, workers=1, device="cuda")
    return Session(experiment, state, PRECISIONS[precision], **how)


@dataclass(frozen=True)
class Layout:
    """A network's trained parameters as one vector, in their order, and apart."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> Layout:
        """The layout of a network."""
        named = [(n, p.shape) for n, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in named), tuple(shape for _, shape in named))

    def empty(self, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Room for the parameters, each by itself, convolutions channels-last."""
        return [
            torch.zeros(shape, device=device, dtype=dtype).contiguous(
                memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format
            )
            for shape in self.shapes
        ]

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters as views of the vector."""
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    @staticmethod
    def flat(parts: list[torch.Tensor]) -> torch.Tensor:
        """The vector of the parameters."""
        return torch.cat([part.reshape(-1) for part in parts])


class ChannelsLastNorm(torch.nn.GroupNorm):
    """GroupNorm as sums over pixels and one multiply-add: what the compiler keeps channels-last.

    The usual form views groups of channels as contiguous, which costs a copy of the images
    before and after every layer.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers as ``torch.nn.GroupNorm``, to rounding."""
        samples, channels = x.shape[:2]
        wide = x.float()
        pixels = x.shape[2] * x.shape[3]
        shape = (samples, self.num_groups, channels // self.num_groups)
        count = pixels * shape[2]
        mean = wide.sum((2, 3)).view(shape).sum(2, keepdim=True) / count
        square = (wide * wide).sum((2, 3)).view(shape).sum(2, keepdim=True) / count
        deviation = torch.rsqrt((square - mean * mean).clamp_min(0) + self.eps)
        scale = self.weight.float().view(1, *shape[1:]) * deviation
        shift = self.bias.float().view(1, *shape[1:]) - mean * scale
        out = wide * scale.reshape(samples, channels, 1, 1) + shift.reshape(samples, channels, 1, 1)
        return out.to(x.dtype)


def channels_last(module: torch.nn.Module) -> torch.nn.Module:
    """The network in the form that the captured step compiles best."""
    for part in module.modules():
        if type(part) is torch.nn.GroupNorm and part.affine:
            part.__class__ = ChannelsLastNorm
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def client_step(module: torch.nn.Module, names: tuple[str, ...], local: Any) -> Callable[..., Any]:
    """One local update of one client as a function of tensors: what is compiled."""

    def loss_of(params: Any, x: Any, y: Any, share: Any) -> Any:
        answers = functional_call(module, dict(zip(names, params, strict=True)), (x,)).float()
        loss = (cross_entropy(answers, y, reduction="none") * share).sum()
        return loss, ((answers.argmax(1) == y) * share).sum()

    def step(params: Any, masters: Any, anchors: Any, x: Any, y: Any, share: Any, a: Any) -> Any:
        gradients, (loss, right) = grad_and_value(loss_of, has_aux=True)(params, x, y, share)
        for p, w, anchor, gradient in zip(params, masters, anchors, gradients, strict=True):
            new = w - a * local.direction(gradient.float(), w, anchor)
            w.copy_(new)
            if p is not w:
                p.copy_(new)
        return torch.stack([loss, right])

    return step


def normalised(x: torch.Tensor, scale: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Bytes (samples, height, width, channels) as float images, channels-last."""
    mean, deviation = scale
    return ((x.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


def prepared(
    images: Any, labels: Any, scale: Any, index: Any, share: Any, flip: Any, angle: Any, a: Any,
    t: Any, active: int, augment: bool, dtype: torch.dtype,
) -> tuple[Any, ...]:  # fmt: skip
    """The active clients' mini-batches of step t: images, labels, shares, step sizes."""
    index, share, flip, angle, a = (
        tensor.index_select(0, t)[0, :active] for tensor in (index, share, flip, angle, a)
    )
    x = normalised(images[index.reshape(-1)], scale)
    if augment:
        x = augmented(x, flip.reshape(-1), angle.reshape(-1))
    x = x.to(dtype).contiguous(memory_format=torch.channels_last)
    return x, labels[index], share, a[:, 0]


_COMPILED: dict[Any, Callable[..., Any]] = {}


def compiled_step(e: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled, once a process for each model and local rule."""
    key = None
    if e is not None:
        shape = e.problem.data.train_x.shape[1:]
        key = (e.problem.model, shape, len(e.problem.data.classes), e.local)
    if key not in _COMPILED:
        torch._dynamo.config.recompile_limit = 64  # one for each shape and type
        _COMPILED[key] = torch.compile(function, dynamic=False)
    return _COMPILED[key]


class Session:
    """The rounds of one or more seeds on one device."""

    def __init__(
        self,
        experiment: Any,
        state: State,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cuda",
        compiled: bool = True,
        streams: int = STREAMS,
    ) -> None:
        self.e, self.state, self.dtype, self.device = experiment, state, dtype, device
        self.on_gpu = device.startswith("cuda")
        self.compiled = compiled
        problem = experiment.problem
        self.module = channels_last(problem.module().to(device))
        self.layout = Layout.of(self.module)
        self.w = [self._there(w) for w in state.w]
        self.memory = [
            tuple(self._there(array[s]) for array in state.memory) for s in range(len(self.w))
        ]
        self._load(problem)
        if self.on_gpu:
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = dtype != torch.float32
        self.streams = [torch.cuda.Stream() for _ in range(streams)] if self.on_gpu else []
        self.ahead: tuple[Any, Any] | None = None
        self.width = experiment.num_clients
        self.slots: Slots | None = None

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
        for k in range(rounds):
            for s in np.flatnonzero(state.dead_round == 0):
                self._round(block, int(s), k)
            state.round += 1
        return block

    def _round(self, block: Block, s: int, k: int) -> None:
        began = time.perf_counter()
        e, round_, seed = self.e, self.state.round, int(self.state.seeds[s])
        a = e.step_sizes(round_, round_ + 1)
        weights = torch.from_numpy(np.array(e.server_weights(a.sum(axis=1))[0])).float()
        order = self._order(seed, round_)
        anchor = self.w[s]
        while True:
            try:
                update, found = self._trained(order, seed, round_, anchor, a[0], weights)
                break
            except torch.cuda.OutOfMemoryError:
                self._narrow()
        new, memory = e.server.step(anchor, update, self.memory[s])
        tested = self._tested(new)
        self._look_ahead(seed, round_ + 1)
        values = torch.cat(found).cpu().numpy().astype(np.float64) if found else np.empty((0, 3))
        if not np.all(np.isfinite(values)):
            bad = int(order[np.flatnonzero(~np.isfinite(values).all(axis=1))[0]])
            self.state.dead_round[s], self.state.dead_client[s] = round_ + 1, bad
            return
        change = float((new - anchor).norm())
        self.w[s], self.memory[s] = new, memory
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

    def _trained(
        self, order: Any, seed: int, round_: int, anchor: Any, a: Any, weights: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The weighted sum of the updates; each client's mean loss, accuracy, update norm."""
        update, found = torch.zeros_like(anchor), []
        for low in range(0, len(order), self.width):
            members = order[low : low + self.width]
            batches = self._plan(members, seed, round_)
            if self.slots is None:
                self.slots = Slots(self, self.width)
            self.slots.begin(anchor, len(members))
            self.slots.train(batches, members, a)
            moved = self.slots.models(len(members)) - anchor
            update += weights[members].to(self.device) @ moved
            steps = torch.from_numpy(self.e.steps[members]).to(self.device)
            means = self.slots.sums[: len(members)] / steps[:, None]
            found.append(torch.cat([means, moved.norm(dim=1, keepdim=True)], 1))
        return update, found

    def _narrow(self) -> None:
        """Memory is short: half as many clients side by side."""
        if self.width == 1:
            raise FedtaperError(
                "the GPU's memory does not hold even one client: use a smaller model or batch"
            ) from None
        self.slots = None
        if self.on_gpu:
            torch.cuda.empty_cache()
        self.width = -(-self.width // 2)
        warn(f"the GPU's memory is short: going on with {self.width} clients at a time")

    def _plan(self, members: Any, seed: int, round_: int) -> Plan:
        key = (seed, round_, members.tolist())
        if self.ahead is not None and self.ahead[0] == key:
            return self.ahead[1]
        return plan(self.e, members, seed, round_)

    def _look_ahead(self, seed: int, round_: int) -> None:
        """Make the next round's mini-batches on the host while the device works."""
        if round_ < self.e.rounds and len(self.w) == 1:
            members = self._order(seed, round_)[: self.width]
            self.ahead = (seed, round_, members.tolist()), plan(self.e, members, seed, round_)

    def _tested(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self.layout.empty(self.device, self.dtype)
        torch._foreach_copy_(parts, self.layout.parts(w))
        params = dict(zip(self.layout.names, parts, strict=True))
        losses, right = [], []
        with torch.no_grad():
            for x, y in zip(
                self.test_x.split(TEST_CHUNK), self.test_y.split(TEST_CHUNK), strict=True
            ):
                x = normalised(x, self.scale).to(self.dtype)
                answers = functional_call(self.module, params, (x,)).float()
                losses.append(cross_entropy(answers, y, reduction="none"))
                right.append(answers.argmax(1) == y)
        return torch.cat(losses), torch.cat(right)

    def sync(self) -> None:
        """Bring the State up to date with the models on the device."""
        for s, w in enumerate(self.w):
            self.state.w[s] = w.cpu().numpy()
            for array, value in zip(self.state.memory, self.memory[s], strict=True):
                array[s] = value.cpu().numpy()

    def close(self) -> None:
        """Free what the device holds."""
        self.slots = None
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Plan:
    """The mini-batches of some clients in one round, (steps, clients, batch)."""

    index: torch.Tensor
    share: torch.Tensor  # 1 / batch for a real sample, 0 for padding
    flip: torch.Tensor
    angle: torch.Tensor


def plan(e: Any, members: Any, seed: int, round_: int) -> Plan:
    """Counted by (seed, client, round), as everywhere; indices are into the training set."""
    shape = (int(e.steps.max()), len(members), e.batch_size)
    index = np.zeros(shape, dtype=np.int64)
    share = np.zeros(shape, dtype=np.float32)
    flip, angle = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.float32)
    for slot, i in enumerate(members.tolist()):
        found = e.problem.minibatches(e, seed, i, round_)
        steps = len(found)
        index[:steps, slot] = e.problem.places[i][found.index]
        real = np.arange(e.batch_size) < found.size[:, None]
        share[:steps, slot] = real / found.size[:, None]
        if found.flip is not None:
            flip[:steps, slot], angle[:steps, slot] = found.flip, found.angle
    return Plan(*(torch.from_numpy(array) for array in (index, share, flip, angle)))


class Slots:
    """Room for some clients' models, and the captured step that moves all of them on."""

    def __init__(self, session: Session, width: int) -> None:
        self.session, self.width = session, width
        e, device, layout = session.e, session.device, session.layout
        shape = (int(e.steps.max()), width, e.batch_size)
        # separate tensors, not views of one: the compiler would take views for aliases
        self.masters = [layout.empty(device, torch.float32) for _ in range(width)]
        self.copies = self.masters
        if session.dtype != torch.float32:
            self.copies = [layout.empty(device, session.dtype) for _ in range(width)]
        self.anchors = layout.empty(device, torch.float32)
        self.index = torch.zeros(shape, dtype=torch.int64, device=device)
        self.share = torch.zeros(shape, device=device)
        self.flip = torch.zeros(shape, dtype=torch.bool, device=device)
        self.angle = torch.zeros(shape, device=device)
        self.a = torch.zeros(*shape[:2], 4, device=device)  # of which one is used: aligned
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.sums = torch.zeros(width, 2, device=device)
        self.step = client_step(session.module, layout.names, e.local)
        self.prepare: Callable[..., Any] = prepared
        self.graphs: dict[int, Any] = {}
        self.compiled = session.on_gpu and session.compiled
        if self.compiled:
            self.step, self.prepare = compiled_step(e, self.step), compiled_step(None, prepared)

    def begin(self, anchor: torch.Tensor, count: int) -> None:
        """Every client starts from the shared model."""
        torch._foreach_copy_(self.anchors, self.session.layout.parts(anchor))
        for j in range(count):
            self._set(j, self.anchors)
        self.sums.zero_()
        self.t.zero_()

    def _set(self, j: int, parts: list[torch.Tensor]) -> None:
        torch._foreach_copy_(self.masters[j], parts)
        if self.copies is not self.masters:
            torch._foreach_copy_(self.copies[j], parts)

    def models(self, count: int) -> torch.Tensor:
        """The first clients' models, (count, parameters)."""
        return torch.stack([Layout.flat(self.masters[j]) for j in range(count)])

    def train(self, plan: Plan, members: Any, a: Any) -> None:
        """All local updates of a round."""
        count = len(members)
        for name in ("index", "share", "flip", "angle"):
            getattr(self, name)[:, :count] = getattr(plan, name).to(self.t.device)
        self.a[:, :count, 0] = torch.from_numpy(a[:, members]).float().to(self.t.device)
        steps = self.session.e.steps[members]  # falling: the active clients come first
        for step in range(int(steps[0])):
            self._advance(int(np.count_nonzero(steps > step)), count)

    def _advance(self, active: int, count: int) -> None:
        if not self.session.on_gpu:
            self._all(active)
            return
        if active not in self.graphs:
            self.graphs[active] = self._capture(active, count)
        self.graphs[active].replay()

    def _capture(self, active: int, count: int) -> Any:
        """Warm up and capture one step, leaving models and counter as they were."""
        models = [[part.clone() for part in self.masters[j]] for j in range(count)]
        sums, t = self.sums.clone(), self.t.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._warm(active)
                self.t.copy_(t)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._all(active)
        for j, parts in enumerate(models):
            self._set(j, parts)
        self.sums.copy_(sums)
        self.t.copy_(t)
        return graph

    def _warm(self, active: int) -> None:
        """One step outside a graph; without the compiler where that fails."""
        try:
            self._all(active)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as trouble:
            if not self.compiled:
                raise
            warn(f"torch.compile failed ({type(trouble).__name__}): steps run uncompiled, slower")
            self.step = client_step(
                self.session.module, self.session.layout.names, self.session.e.local
            )
            self.prepare, self.compiled = prepared, False
            self._all(active)

    def _all(self, active: int) -> None:
        """One step of the first ``active`` clients, shared out over the streams."""
        session = self.session
        x, y, share, a = self.prepare(
            session.images, session.labels, session.scale, self.index, self.share, self.flip,
            self.angle, self.a, self.t, active, bool(session.e.problem.augment), session.dtype,
        )  # fmt: skip
        batch = self.session.e.batch_size
        streams = self.session.streams[:active]
        main: Any = torch.cuda.current_stream() if streams else None
        for stream in streams:
            stream.wait_stream(main)
        for j in range(active):
            args = (x[j * batch : (j + 1) * batch], y[j], share[j], a[j])
            if streams:
                with torch.cuda.stream(streams[j % len(streams)]):
                    self._one(j, *args)
            else:
                self._one(j, *args)
        for stream in streams:
            main.wait_stream(stream)
        self.t += 1

    def _one(self, j: int, x: Any, y: Any, share: Any, a: Any) -> None:
        params, masters = self.copies[j], self.masters[j]
        self.sums[j] += self.step(params, masters, self.anchors, x, y, share, a)
