"""Whether a problem's loss works: tried on a few samples before a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.problems.network import Minibatches
from fedtaper.problems.randomness import seeded

if TYPE_CHECKING:
    import torch


def trial(problem: Any, client: int = 0, device: str = "cpu") -> bool:
    """Try the loss on a few of a client's samples; returns whether the model drew random numbers.

    Mistakes in the model, the loss or the data are reported here, before a run begins.
    """
    import torch

    from fedtaper.problems.samples import converted

    module = problem.module().to(device)
    first = np.arange(min(4, int(problem.sizes[client])))
    taken = problem.take(client, Minibatches(first, np.array([len(first)])))
    taken = converted(taken, lambda t: t.to(device))
    with seeded(0, torch.device(device)):
        before = _states(device)
        try:
            problem.batch_loss(module, *taken)
        except FedtaperError:
            raise
        except Exception as trouble:
            raise FedtaperError(_in_words(trouble, client, taken)) from trouble
        return not all(map(torch.equal, before, _states(device)))


def _states(device: str) -> list[torch.Tensor]:
    """The states of torch's generators that a model on this device draws from."""
    import torch

    gpu = [] if device == "cpu" else [torch.cuda.get_rng_state(device)]
    return [torch.get_rng_state(), *gpu]


def _in_words(trouble: Exception, client: int, taken: tuple[Any, ...]) -> str:
    """What went wrong in the user's loss, in the user's terms."""
    import torch

    shapes = [
        f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"
        if isinstance(t, torch.Tensor)
        else type(t).__name__
        for t in taken
    ]
    return (
        f"loss(model, *batch) failed on client {client}'s first samples "
        f"({type(trouble).__name__}: {trouble}); the batch is {', '.join(shapes)}"
    )
