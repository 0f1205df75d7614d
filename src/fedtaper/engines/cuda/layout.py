"""Tensors on the device for a network's parameters, of one client or many."""

from __future__ import annotations

import torch

from fedtaper.engines.layout import Layout


def empty(
    layout: Layout, device: str, dtype: torch.dtype, clients: int | None = None
) -> list[torch.Tensor]:
    """Room for the parameters, of many clients or one, convolutions channels-last."""
    many = () if clients is None else (clients,)
    out = []
    for shape in layout.shapes:
        last = len(shape) == 4
        stored = (shape[0], *shape[2:], shape[1]) if last else shape
        room = torch.zeros((*many, *stored), device=device, dtype=dtype)
        out.append(room.movedim(-1, len(many) + 1) if last else room)
    return out


def views(layout: Layout, w: torch.Tensor) -> list[torch.Tensor]:
    """The parameters of one flat model."""
    return [part[0] for part in layout.parts(w[None]).values()]


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """The flat model of its parameters."""
    return torch.cat([part.reshape(-1) for part in parts])
