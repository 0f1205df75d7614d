"""Networks on one GPU: data and models stay on the device for the whole run."""

from __future__ import annotations

import torch

from fedtaper.errors import FedtaperError


def check() -> None:
    """Refuse where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise FedtaperError(
            'there is no CUDA device here: use device="cpu", or install a torch build with CUDA'
        )
