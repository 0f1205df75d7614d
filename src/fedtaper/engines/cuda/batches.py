"""A round's mini-batches on the device: which samples, and how they are made ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedtaper.problems.network import augmented


@dataclass(frozen=True)
class RoundBatches:
    """The mini-batches of some clients in one round, (steps, clients, batch)."""

    index: torch.Tensor
    share: torch.Tensor  # 1 / batch for a real sample, 0 for padding
    flip: torch.Tensor
    angle: torch.Tensor


def round_batches(e: Any, members: Any, seed: int, round_: int) -> RoundBatches:
    """Counted by (seed, client, round), as everywhere; indices are into the training set."""
    shape = (int(e.steps.max()), len(members), e.batch_size)
    index = np.zeros(shape, dtype=np.int64)
    share = np.zeros(shape, dtype=np.float32)
    flip, angle = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.float32)
    for slot, i in enumerate(members.tolist()):
        found = e.problem.batches(e, seed, i, round_)
        steps = len(found)
        index[:steps, slot] = e.problem.places[i][found.index]
        real = np.arange(e.batch_size) < found.size[:, None]
        share[:steps, slot] = real / found.size[:, None]
        if found.flip is not None:
            flip[:steps, slot], angle[:steps, slot] = found.flip, found.angle
    return RoundBatches(*(torch.from_numpy(array) for array in (index, share, flip, angle)))


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
