"""A network's parameters as one vector and as tensors, for one client or many."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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

    def empty(
        self, device: str, dtype: torch.dtype, clients: int | None = None
    ) -> list[torch.Tensor]:
        """Room for the parameters, of many clients or one, convolutions channels-last."""
        many = () if clients is None else (clients,)
        out = []
        for shape in self.shapes:
            last = len(shape) == 4
            stored = (shape[0], *shape[2:], shape[1]) if last else shape
            room = torch.zeros((*many, *stored), device=device, dtype=dtype)
            out.append(room.movedim(-1, len(many) + 1) if last else room)
        return out

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters as views of the vector."""
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    @staticmethod
    def flat(parts: list[torch.Tensor]) -> torch.Tensor:
        """The vector of the parameters."""
        return torch.cat([part.reshape(-1) for part in parts])
