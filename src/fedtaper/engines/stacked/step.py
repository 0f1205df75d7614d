"""One local update of all lanes as a function of tensors: what is run, compiled or captured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtaper.core.protocols import LocalRule, Memory, NetworkProblem
from fedtaper.core.rules import Memoryless

Step = Callable[..., tuple[torch.Tensor, Memory, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Layout:
    """The place of each trained parameter in a flat model."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> Layout:
        """The layout of a module: the order of ``parameters_of``."""
        named = [(n, p.shape) for n, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in named), tuple(shape for _, shape in named))

    def parts(self, w: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters of flat models (lanes, d) by name, each (lanes, ...): views."""
        pieces = w.split([shape.numel() for shape in self.shapes], dim=1)
        named = zip(self.names, pieces, self.shapes, strict=True)
        return {name: piece.view(len(w), *shape) for name, piece, shape in named}

    def flat(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Parameters (or gradients) by name as flat models (lanes, d)."""
        return torch.cat([parts[name].flatten(1) for name in self.names], dim=1)


class Loss(torch.nn.Module):
    """The problem's loss as a module, so that every part of the model it uses can be replaced."""

    def __init__(self, problem: NetworkProblem, model: torch.nn.Module) -> None:
        super().__init__()
        self.problem, self.model = problem, model

    def forward(self, *batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss of a batch, and the share of correct answers (NaN where there is none)."""
        loss, share = self.problem.batch_loss(self.model, *batch)
        if share is None:
            share = torch.full_like(loss.detach(), math.nan)
        return loss, share.to(loss.dtype)


def step_of(loss: Loss, local: LocalRule, layout: Layout) -> Step:
    """A local update of all lanes: models, memories and step sizes have lanes as first axis.

    If ``active`` is given, the other lanes do not change.
    """

    def loss_of(parts: Any, extra: Any, batch: Any) -> Any:
        return functional_call(loss, {**parts, **extra}, batch)

    each = vmap(grad_and_value(loss_of, has_aux=True))
    rule = _memoryless(local) if isinstance(local, Memoryless) else vmap(local.step)

    def step(w: Any, memory: Any, anchors: Any, a: Any, active: Any, extra: Any, batch: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention have no stacked form
            gradients, (losses, shares) = each(layout.parts(w), extra, batch)
        new, after = rule(w, layout.flat(gradients), anchors, a, memory)
        if active is not None:
            new = torch.where(active[:, None], new, w)
            after = tuple(
                torch.where(active.view(-1, *[1] * (old.ndim - 1)), now, old)
                for now, old in zip(after, memory, strict=True)
            )
        return new, after, losses, shares

    return step


def _memoryless(local: Memoryless) -> Any:
    direction = vmap(local.direction)

    def rule(w: Any, gradient: Any, anchors: Any, a: Any, memory: Any) -> Any:
        return w - a[:, None] * direction(gradient, w, anchors), memory

    return rule
