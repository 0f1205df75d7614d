"""Networks: ResNet-9 with GroupNorm, LeNet-5, a small CNN. None keeps running statistics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedtaper.core.errors import FedtaperError, nearest

GROUPS = 32


class _Residual(nn.Module):
    """X + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input plus the body's output."""
        return x + self.body(x)


class _GlobalMaxPool(nn.Module):
    """The largest value of each channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (samples, channels, height, width) to (samples, channels)."""
        return nn.functional.max_pool2d(x, (x.shape[-2], x.shape[-1])).flatten(1)


def _block(before: int, after: int, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.GroupNorm(min(GROUPS, after), after),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


def resnet9(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """ResNet-9 with GroupNorm: 6.57 million parameters for three channels and ten classes."""
    return nn.Sequential(
        _block(channels, 64),
        _block(64, 128, pool=True),
        _Residual(_block(128, 128), _block(128, 128)),
        _block(128, 256, pool=True),
        _block(256, 512, pool=True),
        _Residual(_block(512, 512), _block(512, 512)),
        _GlobalMaxPool(),
        nn.Linear(512, classes),
    )


def lenet5(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """LeNet-5: 44 thousand parameters for 28 x 28 images of one channel.

    Pooling comes before the ReLU: the two commute, and the ReLU then has fewer numbers to do.
    """
    side = [((length - 4) // 2 - 4) // 2 for length in (height, width)]
    if min(side) < 1:
        raise FedtaperError(f"lenet5 needs images of at least 16 x 16, not {height} x {width}")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * side[0] * side[1], 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


def cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """A small CNN for small images: two convolutions with GroupNorm and a linear layer."""
    side = (height // 4) * (width // 4)
    if side < 1:
        raise FedtaperError(f"cnn needs images of at least 4 x 4, not {height} x {width}")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16),
        nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.GroupNorm(4, 32),
        nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * side, classes),
    )  # fmt: skip


MODELS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "resnet9": resnet9,
    "lenet5": lenet5,
    "cnn": cnn,
}


def build(model: Any, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """A network by name, or from the user's own function of (channels, height, width, classes).

    >>> sum(p.numel() for p in build("resnet9", 3, 32, 32, 10).parameters())
    6573130
    """
    if isinstance(model, str) and model not in MODELS:
        raise FedtaperError(
            f"there is no model {model!r}: use one of {', '.join(MODELS)}, or a function that "
            f"makes a torch.nn.Module{nearest(model, MODELS)}"
        )
    make = MODELS[model] if isinstance(model, str) else model
    module = make(channels, height, width, classes)
    if not isinstance(module, nn.Module):
        raise FedtaperError(f"the model must be a torch.nn.Module, not {type(module).__name__}")
    return usable(module)


def _as_written(module: nn.Module) -> nn.Module:
    """The module that torch.compile was given: engines compile themselves, clients together."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to load; without it nothing was compiled
    compiled = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return module._orig_mod if compiled else module  # type: ignore[return-value]  # the module inside


def usable(module: nn.Module, average_buffers: bool = False) -> nn.Module:
    """The module in single precision, refused if it cannot be trained as one vector of weights.

    Running statistics are changed by looking at data, not by a step size: no influence
    applies to them. With ``average_buffers`` they are sent and averaged with the weights.
    """
    module = _as_written(module)
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise FedtaperError(
                f"the model{name and f' ({name})'} was compiled with torch.jit, which keeps its "
                'weights to itself: use the module as it is; way="compiled" compiles it'
            )
    for name, p in module.named_parameters():
        if isinstance(p, nn.UninitializedParameter):
            raise FedtaperError(
                f"{name} has no size yet (a lazy layer): give the layer its sizes, or let init() "
                "send a batch through the model before it returns it"
            )
        if p.is_complex() and p.requires_grad:
            raise FedtaperError(f"{name} is complex: train its real and imaginary part instead")
    for name, buffer in module.named_buffers():
        last = name.rsplit(".", 1)[-1]
        if last in ("running_mean", "running_var", "num_batches_tracked") and not average_buffers:
            owner = name.rsplit(".", 1)[0]
            raise FedtaperError(
                f"the model keeps running statistics ({name}): they follow the data, not the "
                "step sizes, so no client's influence on them can be set or checked. Turn "
                f"{owner} into GroupNorm with ft.groupnorm(model), or average the statistics, "
                'which is outside the theorem, with Custom(..., buffers="average")'
            )
        if buffer.is_floating_point() and buffer.requires_grad:
            raise FedtaperError(f"the buffer {name} requires gradients: make it a parameter")
    if not any(p.requires_grad for p in module.parameters()):
        raise FedtaperError("the model has no parameters to train")
    for name, part in module.named_modules():
        counts = isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None
        if counts and part.track_running_stats:
            raise FedtaperError(
                f"{name}: momentum=None counts batches, and counts cannot be averaged; give it a "
                "momentum"
            )
    return module.float()
