"""Every client's loss at the shared model: what a controller looks at between rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Array, NetworkProblem, Problem, is_network, is_quadratic
from fedtaper.problems.network import Minibatches, bind, evaluating
from fedtaper.problems.quadratic import losses
from fedtaper.problems.samples import converted

TOGETHER = 1000  # samples of a network evaluated at once


def client_losses(problem: Problem, w: Array) -> Array:
    """Each client's mean loss on all its samples, (L,), in double precision."""
    if is_quadratic(problem):
        return losses(problem.moments, w)
    if not is_network(problem):
        raise FedtaperError(
            f"{type(problem).__name__} does not give its clients' losses: pass judge=, a function "
            "from the model to every client's loss"
        )
    import torch

    module = problem.module().double()
    bind(module, torch.from_numpy(np.array(w, dtype=np.float64)))
    return network_losses(problem, module, torch.float64)


def network_losses(problem: NetworkProblem, module: Any, dtype: Any = None) -> Array:
    """Each client's mean loss with a module, in evaluation mode."""
    clients = range(problem.num_clients)
    return np.array([network_loss(problem, module, i, dtype) for i in clients])


def network_loss(problem: NetworkProblem, module: Any, client: int, dtype: Any = None) -> float:
    """One client's mean loss with a module, in evaluation mode."""
    total, count = 0.0, 0
    device = next(module.parameters()).device
    with evaluating(module):
        for batch, size in _parts(problem.every_sample(client), int(problem.sizes[client])):
            taken = problem.take(client, batch, dtype)
            if device.type != "cpu":
                taken = converted(taken, lambda t: t.to(device))
            loss, _ = problem.batch_loss(module, *taken)
            total, count = total + size * float(loss), count + size
    return total / count


def _parts(whole: Any, size: int) -> list[tuple[Any, int]]:
    """A client's samples in pieces, if they are numbered; else as one."""
    if not isinstance(whole, Minibatches):
        return [(whole, size)]
    cuts = [whole.index[low : low + TOGETHER] for low in range(0, size, TOGETHER)]
    return [(Minibatches(cut, np.array([len(cut)])), len(cut)) for cut in cuts]
