"""Whether a model can be stacked: tried on a few samples, against one model after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import NetworkProblem, as_network
from fedtaper.core.rules import restarted
from fedtaper.engines.layout import Layout
from fedtaper.engines.precision import single_precision
from fedtaper.engines.stacked.drawn import drawn, draws_of
from fedtaper.engines.stacked.step import Loss, alone, step_of
from fedtaper.experiment import Experiment
from fedtaper.problems.network import Minibatches, bind, statistics_of
from fedtaper.problems.trial import trial

CLOSE = 1e-3  # of the update, in single precision
LANES = 3


def objection(e: Experiment, device: str = "cpu") -> str | None:
    """Why the clients cannot be stacked, or None if they can."""
    return _of_problem(as_network(e.problem), device) or _of_step(e, device)


def _of_problem(problem: NetworkProblem, device: str) -> str | None:
    if not problem.in_memory:
        return "its data are read as they are needed"
    if len({_shapes(problem, i) for i in range(problem.num_clients)}) > 1:
        return "the clients' samples differ in shape"
    if statistics_of(problem.module()):
        return "the model keeps running statistics"
    try:
        draws = trial(problem, device=device)
    except FedtaperError as trouble:  # client by client the error names the place
        return str(trouble)
    if draws and device != "cpu":
        return "the model draws random numbers as it trains (dropout)"
    return None


def _of_step(e: Experiment, device: str) -> str | None:
    try:
        with single_precision(device, exact=True):
            one_by_one, together = _updates(e, device)
    except Exception as trouble:  # whatever vmap, the model, the loss or the rule object to
        first = str(trouble).strip().partition("\n")[0]
        kind = type(trouble).__name__
        return f"vmap cannot take the model, its loss or the rule ({kind}: {first:.100})"
    off = float((one_by_one - together).norm() / one_by_one.norm().clamp_min(1e-30))
    if not off <= CLOSE:
        return f"the stacked update differs from the clients' own by {off:.1g} of its size"
    return None


def _shapes(problem: NetworkProblem, client: int) -> tuple[Any, ...]:
    """Shapes and types of a sample."""
    taken = problem.take(client, Minibatches(np.zeros(1, dtype=np.int64), np.ones(1, np.int64)))
    return tuple((tuple(t.shape), t.dtype) for t in tree_leaves(taken))


def _updates(e: Experiment, device: str) -> tuple[Any, Any]:
    """An update of a few lanes, model after model and stacked, (lanes, d)."""
    problem = as_network(e.problem)
    rng = np.random.default_rng(0)
    count = min(e.batch_size, int(problem.sizes[0]))
    picks = [rng.integers(int(problem.sizes[0]), size=count) for _ in range(LANES)]
    taken = [_there(problem.take(0, Minibatches(i, np.array([count]))), device) for i in picks]
    first = torch.from_numpy(problem.initial(e.seed)).float().to(device)
    noise = torch.from_numpy(rng.normal(size=(LANES, len(first)))).float().to(device)
    w = first + 0.01 * first.abs().mean() * noise
    sent = tuple(0.01 * w[0] for _ in range(e.local.receives))
    memory = [restarted(e.local, one, e.local.init(one), sent) for one in w]
    a = torch.full((LANES,), 0.01, device=device)
    module = problem.module().to(device)
    gradient = torch.zeros_like(first)
    found = []
    for j, batch in enumerate(taken):
        bind(module, w[j].clone(), gradient.zero_())
        torch.default_generator.manual_seed(j)
        loss, _ = problem.batch_loss(module, *batch)
        loss.backward()
        new, _ = e.local.step(w[j], gradient, first, 0.01, memory[j])
        found.append(new - w[j])
    whole = Loss(problem, problem.module().to(device))
    layout = Layout.of(whole)
    step = step_of(whole, e.local, layout)
    stacked = tuple(torch.stack(parts) for parts in zip(*memory, strict=True))
    batch = tree_map(lambda *parts: torch.stack(parts), *taken)
    arguments = (w, stacked, first.expand_as(w), a, None)
    with torch.no_grad():
        draws = draws_of(
            lambda: alone(whole, layout, w, batch), lambda: step(*arguments, (), batch)
        )
        new, *_ = step(*arguments, drawn(draws, range(LANES)), batch)
    return torch.stack(found), new - w


def _there(batch: Any, device: str) -> Any:
    return tree_map(lambda t: t.to(device), batch)


def bytes_per_lane(e: Experiment, device: str = "cpu") -> int:
    """A lane's bytes of memory: models, gradient, memories, and what the backward pass keeps."""
    problem = as_network(e.problem)
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    count = min(e.batch_size, int(problem.sizes.max()))
    client = int(problem.sizes.argmax())
    batch = _there(problem.take(client, Minibatches(np.arange(count), np.array([count]))), device)
    module = problem.module().to(device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        problem.batch_loss(module, *batch)
    return int(4 * problem.dim * 8 + 2 * sum(kept))
