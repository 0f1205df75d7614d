"""Torch's settings for a GPU while an engine computes; afterwards the caller's are back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

RECOMPILED = 64  # times that one function may be compiled: for each shape and type of its arguments

# PyTorch's compiler still reads the old settings, and nobody has to be told that they will go
warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")


@contextmanager
def single_precision(device: str, exact: bool) -> Iterator[None]:
    """Products on a GPU in TF32 (ten bits of each factor and full sums), unless ``exact``.

    Set by the old switches: they set PyTorch 2.9's new ones too, but not the other way round, and
    the compiler raises where the two disagree.
    """
    if device == "cpu":
        yield
        return
    units = _new_switches()
    new = [unit.fp32_precision for unit in units]
    products, convolutions = _old_switches(units)
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        for unit, value in zip(units, new, strict=True):
            unit.fp32_precision = value


def _new_switches() -> list[Any]:
    """What has a ``fp32_precision`` and is set by the old switches too."""
    if torch.__version__ < "2.9":
        return []
    there: Any = torch.backends
    return [there.cuda.matmul, there.mkldnn.matmul, there.cudnn.conv, there.cudnn.rnn]


def _old_switches(units: list[Any]) -> tuple[str, bool]:
    """The old switches: of products by name, and of convolutions.

    Where they disagree with the new ones, reading them raises an error, so the new ones are set
    to what can be read under any old one, or under one of the two.
    """
    for unit, readable in zip(units, ("ieee", "ieee", "tf32", "tf32"), strict=False):
        unit.fp32_precision = readable
    products = torch.get_float32_matmul_precision()
    try:
        return products, torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return products, False


@contextmanager
def captured_kernels(exact: bool, compiled: bool) -> Iterator[None]:
    """For the steps of images: the precision, cuDNN's quickest kernels, and room to compile."""
    before = torch.backends.cudnn.benchmark
    with ExitStack() as settings:
        settings.enter_context(single_precision("cuda", exact))
        if compiled:
            limit = torch._dynamo.config.patch(recompile_limit=RECOMPILED)
            settings.enter_context(limit)
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before
