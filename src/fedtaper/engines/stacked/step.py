"""One local update of all lanes as a function of tensors: what is run, compiled or captured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from fedtaper.core.protocols import LocalRule, Memory, NetworkProblem
from fedtaper.core.rules import Memoryless
from fedtaper.engines.layout import Layout
from fedtaper.engines.stacked.drawn import Drawn, given

# which way is used is measured, so nobody has to be warned that an operation is slow when stacked
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet")

Step = Callable[..., tuple[torch.Tensor, Memory, torch.Tensor, torch.Tensor]]


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


def alone(loss: Loss, layout: Layout, w: torch.Tensor, batch: Any) -> None:
    """The first lane's loss, as that client computes it without the others."""
    parts = {name: part[0].requires_grad_() for name, part in layout.parts(w.clone()).items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the one that draws, on the CPU
        functional_call(loss, parts, tree_map(lambda t: t[0], batch))


def step_of(loss: Loss, local: LocalRule, layout: Layout) -> Step:
    """A local update of all lanes: models, memories and step sizes have lanes as first axis.

    If ``active`` is given, the other lanes do not change. ``numbers`` is what the model draws.
    """

    def loss_of(parts: Any, batch: Any) -> Any:
        return functional_call(loss, parts, batch)

    each = vmap(grad_and_value(loss_of, has_aux=True), randomness="different")
    rule = _memoryless(local) if isinstance(local, Memoryless) else vmap(local.step)

    def step(
        w: Any, memory: Any, anchors: Any, a: Any, active: Any, numbers: Drawn, batch: Any
    ) -> Any:
        # the other kernels of attention have no stacked form
        with sdpa_kernel(SDPBackend.MATH), given(numbers):
            gradients, (losses, shares) = each(layout.parts(w), batch)
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
