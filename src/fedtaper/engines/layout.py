"""Where each trained parameter of a network is in its flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
        each = [parts[name] for name in self.names]
        return torch.cat([part.reshape(len(part), -1) for part in each], dim=1)
