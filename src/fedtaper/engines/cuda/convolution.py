"""Many clients' 3 x 3 convolutions as one operation: every client its own images and weights.

Images are (clients * batch, channels, height, width), channels-last; weights (clients, out, in,
3, 3), with ``in`` innermost in memory. On a GPU each is one Triton kernel for all clients
(convolution_kernels.py; channels in multiples of 16); elsewhere PyTorch's, client after client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight


def room(x: torch.Tensor, channels: int) -> torch.Tensor:
    """As many images, with other channels, channels-last."""
    shape = (x.shape[0], channels, *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _packed(w: torch.Tensor) -> torch.Tensor:
    """Weights with the input's channels innermost, (clients, out, 3, 3, in) in memory."""
    return w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _toward_images(dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    shape = (len(dy), w.shape[1], *dy.shape[2:])
    return conv2d_input(shape, w, dy, padding=1)


@torch.library.custom_op("fedtaper::convolve", mutates_args=())
def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each client's 3 x 3 convolution, borders padded with zeros."""
    if x.is_cuda:
        from fedtaper.engines.cuda.convolution_kernels import multiplied

        return multiplied(_last(x), _packed(w), False)
    parts = zip(x.chunk(len(w)), w, strict=True)
    return _last(torch.cat([conv2d(part, own, padding=1) for part, own in parts]))


@convolve.register_fake
def _(x: Any, w: Any) -> Any:
    return room(x, w.shape[1])


@torch.library.custom_op("fedtaper::convolve_back", mutates_args=())
def convolve_back(dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The gradient towards the images."""
    if dy.is_cuda:
        from fedtaper.engines.cuda.convolution_kernels import multiplied

        return multiplied(_last(dy), _packed(w), True)
    parts = zip(dy.chunk(len(w)), w, strict=True)
    back = [_toward_images(part, own) for part, own in parts]
    return _last(torch.cat(back))


@convolve_back.register_fake
def _(dy: Any, w: Any) -> Any:
    return room(dy, w.shape[2])


@torch.library.custom_op("fedtaper::convolve_weights", mutates_args=())
def convolve_weights(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The gradient towards the weights, shaped as they are."""
    if x.is_cuda:
        from fedtaper.engines.cuda.convolution_kernels import gradient

        return gradient(_last(x), _last(dy), w)
    parts = zip(x.chunk(len(w)), dy.chunk(len(w)), w, strict=True)
    return _packed(torch.stack([conv2d_weight(a, own.shape, b, padding=1) for a, b, own in parts]))


@convolve_weights.register_fake
def _(x: Any, dy: Any, w: Any) -> Any:
    clients, wide, deep = w.shape[:3]
    return w.new_empty((clients, wide, 3, 3, deep)).permute(0, 1, 4, 2, 3)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: Any, dy: Any) -> Any:
    x, w = ctx.saved_tensors
    dx = convolve_back(dy, w) if ctx.needs_input_grad[0] else None
    return dx, convolve_weights(x, dy, w)


convolve.register_autograd(_back, setup_context=_keep)
