"""What problems with a label for every sample share: tensors, loss and answers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedtaper.problems.network import (
    Minibatches,
    Network,
    cross_entropy_and_accuracy,
    evaluating,
)

if TYPE_CHECKING:
    import torch

TOGETHER = 1000  # samples that are answered at once


class Labelled(Network):
    """Samples ``x`` and labels ``y`` of each client, in memory, and cross-entropy."""

    x: Any
    y: Any

    @cached_property
    def _tensors(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        import torch

        pairs = zip(self.x, self.y, strict=True)
        return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs]

    def take(self, client: int, batch: Minibatches, dtype: Any = None) -> tuple[Any, ...]:
        """A mini-batch as tensors."""
        import torch

        index = torch.from_numpy(batch.index)
        x, y = (tensor[index] for tensor in self._tensors[client])
        return (x if dtype is None else x.to(dtype)), y

    @property
    def in_memory(self) -> bool:
        """True: all samples are in memory."""
        return True

    def batch_loss(self, module: Any, x: Any, y: Any) -> tuple[Any, Any]:
        """Mean cross-entropy, and the share of correct answers."""
        return cross_entropy_and_accuracy(module, x, y)


def answers_of(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The module's answers in evaluation mode, on the CPU wherever the module is."""
    import torch

    device = next(module.parameters()).device
    with evaluating(module):
        return torch.cat([module(part.to(device)).cpu() for part in x.split(TOGETHER)])
