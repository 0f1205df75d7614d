"""A network for many clients at once: every parameter has the clients as its first axis.

The images of all clients go through as one batch, client after client. A layer with parameters
applies each client's own to that client's part; every other layer sees more samples and nothing
else, so whatever a network does between its layers (residual sums, pooling, reshaping samples)
stays as it is written. Only layers listed in ``FORMS`` can be stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, pad


class _Convolution(nn.Conv2d):
    """3 x 3, stride 1, padded by 1; weights (clients, out, in, 3, 3)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each client's convolution, in one kernel."""
        from fedtaper.engines.cuda.convolution import convolve

        missing = -x.shape[1] % 16
        w = self.weight
        if missing:
            x, w = pad(x, (0, 0, 0, 0, 0, missing)), pad(w, (0, 0, 0, 0, 0, missing))
        out: torch.Tensor = convolve(x, w)
        if self.bias is None:
            return out
        samples = out.shape[0] // len(self.bias)
        return out + self.bias.repeat_interleave(samples, 0)[:, :, None, None]


def group_norm(x: Any, weight: Any, bias: Any, groups: int, eps: float) -> torch.Tensor:
    """GroupNorm as sums over places and one multiply-add; weight and bias (clients, channels).

    Images are (samples, channels, ...), with any number of axes of places, or none.

    The same numbers as each client's ``torch.nn.GroupNorm``, to rounding, in a form that the
    compiler keeps channels-last: the usual one views groups of channels as contiguous, which
    costs a copy of the images before and after every layer.
    """
    if x.dim() == 2:
        return group_norm(x[..., None], weight, bias, groups, eps)[..., 0]
    clients, channels = weight.shape
    places = tuple(range(2, x.dim()))
    shape = (clients, x.shape[0] // clients, groups, channels // groups)
    wide = x.float()
    count = x.shape[2:].numel() * shape[3]
    mean = wide.sum(places).view(shape).sum(3, keepdim=True) / count
    square = (wide * wide).sum(places).view(shape).sum(3, keepdim=True) / count
    deviation = torch.rsqrt((square - mean * mean).clamp_min(0) + eps)
    scale = weight.float().view(clients, 1, *shape[2:]) * deviation
    shift = bias.float().view(clients, 1, *shape[2:]) - mean * scale
    each = (-1, channels, *[1] * len(places))
    out = wide * scale.view(each) + shift.view(each)
    return out.to(x.dtype)


class _Norm(nn.GroupNorm):
    """Weights (clients, channels)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each client's GroupNorm."""
        return group_norm(x, self.weight, self.bias, self.num_groups, self.eps)


class _Linear(nn.Linear):
    """Weights (clients, out, in)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each client's product, as one batched product."""
        out = x.reshape(len(self.weight), -1, x.shape[-1]) @ self.weight.transpose(1, 2)
        if self.bias is not None:
            out = out + self.bias[:, None]
        return out.reshape(*x.shape[:-1], -1)


FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: _Convolution,
    nn.GroupNorm: _Norm,
    nn.Linear: _Linear,
}


def _can(layer: nn.Module) -> bool:
    """Whether a layer has a stacked form, or no parameters and so needs none."""
    if type(layer) is nn.Conv2d:
        form = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
        usual = form == ((3, 3), (1, 1), (1, 1), (1, 1), 1) and layer.padding_mode == "zeros"
        return usual and layer.out_channels % 16 == 0
    if type(layer) is nn.GroupNorm:
        return layer.affine
    return type(layer) is nn.Linear or not list(layer.parameters(recurse=False))


def can_stack(module: nn.Module) -> bool:
    """Whether every layer with parameters has a stacked form and owns them alone."""
    layers = list(module.modules())
    owned = [id(p) for layer in layers for p in layer.parameters(recurse=False)]
    trained = all(p.requires_grad for p in module.parameters())
    return trained and len(owned) == len(set(owned)) and all(map(_can, layers))


def stacked(module: nn.Module) -> nn.Module:
    """The module with its layers in their stacked form, in place."""
    for layer in module.modules():
        if type(layer) in FORMS:
            layer.__class__ = FORMS[type(layer)]
    return module


def loss_of(module: nn.Module, names: tuple[str, ...]) -> Callable[..., Any]:
    """The clients' losses as a function of tensors: what is compiled.

    Their sum has each client's own gradient in its part of a parameter. Beside it each client's
    mean loss and accuracy, (clients, 2).
    """

    def loss(params: Any, x: Any, y: Any, share: Any) -> Any:
        answers = functional_call(module, dict(zip(names, params, strict=True)), (x,)).float()
        losses = cross_entropy(answers, y.flatten(), reduction="none") * share.flatten()
        right = (answers.argmax(1) == y.flatten()) * share.flatten()
        found = torch.stack([losses.view(y.shape).sum(1), right.view(y.shape).sum(1)], 1)
        return losses.sum(), found.detach()

    return loss


def update_of(local: Any) -> Callable[..., Any]:
    """Local updates as a function of tensors, of one client (a a number) or many (a vector)."""

    def update(params: Any, masters: Any, anchors: Any, gradients: Any, a: Any) -> None:
        for p, w, anchor, gradient in zip(params, masters, anchors, gradients, strict=True):
            size = a.view([*a.shape, *[1] * (w.dim() - a.dim())])
            new = w - size * local.direction(gradient.float(), w, anchor)
            w.copy_(new)
            if p is not w:
                p.copy_(new)

    return update
