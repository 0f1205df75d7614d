"""Room on the device for some clients' models, and the captured step that moves them on.

There are two ways to make a step of all clients. ``Stacked``: every parameter has the clients as
its first axis and each layer is one kernel for all of them. ``PerClientSteps``: each client's
step is compiled by itself and the clients are spread over several streams, for networks with
layers that have no stacked form, and for clients of very unequal size, which would wait for one
another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad_and_value
from torch.nn.functional import cross_entropy

from fedtaper.core.errors import warn
from fedtaper.engines.cuda import stacked
from fedtaper.engines.cuda.batches import RoundBatches, normalised, prepared
from fedtaper.engines.cuda.compiling import compile_once
from fedtaper.engines.cuda.graphs import captured, said
from fedtaper.engines.cuda.layout import empty, joined, views


class ChannelsLastNorm(torch.nn.GroupNorm):
    """GroupNorm of one client in the form that is compiled best."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers as ``torch.nn.GroupNorm``, to rounding."""
        return stacked.group_norm(x, self.weight[None], self.bias[None], self.num_groups, self.eps)


def channels_last(module: torch.nn.Module) -> torch.nn.Module:
    """The network in the form that the captured step compiles best."""
    for part in module.modules():
        if type(part) is torch.nn.GroupNorm and part.affine:
            part.__class__ = ChannelsLastNorm
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack the keyword


def client_step(module: torch.nn.Module, names: tuple[str, ...], local: Any) -> Callable[..., Any]:
    """One local update of one client as a function of tensors: what is compiled."""

    def loss_of(params: Any, x: Any, y: Any, share: Any) -> Any:
        answers = functional_call(module, dict(zip(names, params, strict=True)), (x,)).float()
        loss = (cross_entropy(answers, y, reduction="none") * share).sum()
        return loss, ((answers.argmax(1) == y) * share).sum()

    update = stacked.update_of(local)

    def step(params: Any, masters: Any, anchors: Any, x: Any, y: Any, share: Any, a: Any) -> Any:
        gradients, (loss, right) = grad_and_value(loss_of, has_aux=True)(params, x, y, share)
        update(params, masters, anchors, gradients, a)
        return torch.stack([loss, right])

    return step


def tested_of(
    module: torch.nn.Module, names: tuple[str, ...], dtype: torch.dtype
) -> Callable[..., Any]:
    """Losses and right answers of some test images as a function of tensors: what is compiled."""

    def tested(params: Any, x: Any, y: Any, scale: Any) -> Any:
        x = normalised(x, scale).to(dtype)
        answers = functional_call(module, dict(zip(names, params, strict=True)), (x,)).float()
        return cross_entropy(answers, y, reduction="none"), answers.argmax(1) == y

    return tested


def network_of(e: Any) -> tuple[Any, ...]:
    """What a compiled network depends on."""
    return e.problem.model, e.problem.data.train_x.shape[1:], len(e.problem.data.classes)


class PerClientSteps:
    """Each client's network by itself, side by side on streams."""

    def __init__(self, session: Any, width: int) -> None:
        self.session = session
        layout, device = session.layout, session.device
        # separate tensors, not views of one: the compiler would take views for aliases
        self.masters = [empty(layout, device, torch.float32) for _ in range(width)]
        self.copies = self.masters
        if session.dtype != torch.float32:
            self.copies = [empty(layout, device, session.dtype) for _ in range(width)]
        e = session.e
        self.one = client_step(session.module, layout.names, e.local)
        if session.compiled:
            self.one = compile_once(("per client", *network_of(e), e.local), self.one)

    def set(self, j: int, parts: list[torch.Tensor]) -> None:
        """Client j's model."""
        torch._foreach_copy_(self.masters[j], parts)
        if self.copies is not self.masters:
            torch._foreach_copy_(self.copies[j], parts)

    def get(self, j: int) -> list[torch.Tensor]:
        """Client j's model, by its parameters."""
        return self.masters[j]

    def step(self, sums: Any, anchors: Any, x: Any, y: Any, share: Any, a: Any) -> None:
        """Move the clients of this batch on, shared out over the streams."""
        streams = self.session.streams[: len(y)]
        main: Any = torch.cuda.current_stream() if streams else None
        for stream in streams:
            stream.wait_stream(main)
        for j, images in enumerate(x.split(y.shape[1])):
            if streams:
                with torch.cuda.stream(streams[j % len(streams)]):
                    self._one(j, sums, anchors, images, y[j], share[j], a[j])
            else:
                self._one(j, sums, anchors, images, y[j], share[j], a[j])
        for stream in streams:
            main.wait_stream(stream)

    def _one(self, j: int, sums: Any, anchors: Any, *batch: Any) -> None:
        sums[j] += self.one(self.copies[j], self.masters[j], anchors, *batch)


class Stacked:
    """All clients' networks as one."""

    def __init__(self, session: Any, width: int) -> None:
        self.session, self.width = session, width
        device, layout = session.device, session.layout
        self.masters = empty(layout, device, torch.float32, width)
        self.copies = self.masters
        if session.dtype != torch.float32:
            self.copies = empty(layout, device, session.dtype, width)
        e = session.e
        module = stacked.stacked(e.problem.module().to(device, session.dtype))
        network = network_of(e)
        self.loss = stacked.loss_of(module, layout.names)
        self.update = stacked.update_of(e.local)
        if session.compiled:
            self.loss = compile_once(("stacked", *network, self.width), self.loss)
            self.update = compile_once(("update", *network, self.width, e.local), self.update)

    def set(self, j: int, parts: list[torch.Tensor]) -> None:
        """Client j's model."""
        for whole in (self.masters, self.copies):
            torch._foreach_copy_([w[j] for w in whole], parts)

    def get(self, j: int) -> list[torch.Tensor]:
        """Client j's model, by its parameters."""
        return [w[j] for w in self.masters]

    def step(self, sums: Any, anchors: Any, x: Any, y: Any, share: Any, a: Any) -> None:
        """Move all clients on; one without samples in this batch has a = 0 and stays."""
        leaves = [p.detach().requires_grad_() for p in self.copies]
        total, found = self.loss(leaves, x, y, share)
        gradients = torch.autograd.grad(total, leaves)
        with torch.no_grad():
            self.update(self.copies, self.masters, anchors, gradients, a)
        sums += found


class DeviceRound:
    """A round's mini-batches and models on the device, and one captured step of all clients."""

    def __init__(self, session: Any, width: int) -> None:
        self.session, self.width = session, width
        e, device, layout = session.e, session.device, session.layout
        shape = (int(e.steps.max()), width, e.batch_size)
        self.stacked = session.stacked
        self.way: PerClientSteps | Stacked = (Stacked if self.stacked else PerClientSteps)(
            session, width
        )
        self.anchors = empty(layout, device, torch.float32)
        self.index = torch.zeros(shape, dtype=torch.int64, device=device)
        self.share = torch.zeros(shape, device=device)
        self.flip = torch.zeros(shape, dtype=torch.bool, device=device)
        self.angle = torch.zeros(shape, device=device)
        self.a = torch.zeros(*shape[:2], 4, device=device)  # of which one is used: aligned
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.sums = torch.zeros(width, 2, device=device)
        self.prepare: Callable[..., Any] = prepared
        self.graphs: dict[int, Any] = {}
        self.capturing = session.on_gpu
        if session.compiled:
            self.prepare = compile_once("prepare", prepared)

    def begin(self, anchor: torch.Tensor, count: int) -> None:
        """Every client starts from the shared model."""
        torch._foreach_copy_(self.anchors, views(self.session.layout, anchor))
        for j in range(count):
            self.way.set(j, self.anchors)
        self.sums.zero_()
        self.t.zero_()

    def models(self, count: int) -> torch.Tensor:
        """The first clients' models, (count, parameters)."""
        return torch.stack([joined(self.way.get(j)) for j in range(count)])

    def train(self, plan: RoundBatches, members: Any, a: Any) -> None:
        """All local updates of a round, or the first of them: one for each row of ``a``."""
        count, rows = len(members), len(a)
        for name in ("index", "share", "flip", "angle"):
            getattr(self, name)[:, :count] = getattr(plan, name).to(self.t.device)
        self.a[:rows, :count, 0] = (
            torch.from_numpy(np.ascontiguousarray(a[:, members])).float().to(self.t.device)
        )
        if count < self.width:  # those who are left over take no step
            self.share[:, count:], self.a[:, count:] = 0.0, 0.0
        steps = np.minimum(
            self.session.e.steps[members], rows
        )  # falling: the active clients come first
        for step in range(int(steps[0])):
            active = self.width if self.stacked else int(np.count_nonzero(steps > step))
            self._advance(active, count)

    def _advance(self, active: int, count: int) -> None:
        if self.capturing and active not in self.graphs:
            self._capture(active, count)
        if active in self.graphs:
            self.graphs[active].replay()
        else:
            self._all(active)

    def _capture(self, active: int, count: int) -> None:
        """Capture one step, if that is possible, leaving models and counter as they were."""
        models = [[part.clone() for part in self.way.get(j)] for j in range(count)]
        sums, t = self.sums.clone(), self.t.clone()
        try:
            self.graphs[active], _ = captured(lambda: self._all(active), lambda: self.t.copy_(t))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as trouble:  # whatever a capture does not allow
            warn(f"no CUDA graph of this model ({said(trouble)}): its steps are made one by one")
            self.capturing = False
        for j, parts in enumerate(models):
            self.way.set(j, parts)
        self.sums.copy_(sums)
        self.t.copy_(t)

    def _all(self, active: int) -> None:
        """One step of the first ``active`` clients."""
        session = self.session
        batch = self.prepare(
            session.images, session.labels, session.scale, self.index, self.share, self.flip,
            self.angle, self.a, self.t, active, bool(session.e.problem.augment), session.dtype,
        )  # fmt: skip
        self.way.step(self.sums, self.anchors, *batch)
        self.t += 1
