"""Warm starts: a run's first model from a Run, a torch module, a state_dict or a vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Array, as_network, is_network
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.storage.durable import array_digest

Start = Any  # a Run, a torch.nn.Module, a state_dict, or a vector


def warm(e: Experiment, start: Start | None, seeds: NDArray[np.int64]) -> tuple[Array | None, str]:
    """Every seed's first model, (seeds, d), and a name for it; None without a warm start."""
    if start is None:
        return None, ""
    if isinstance(start, Run):
        found, what = _from_run(e, start, seeds), "run"
    else:
        found, what = _vector(e, start)[None], type(start).__name__
    if found.shape[1] != e.problem.dim:
        raise FedtaperError(
            f"start has {found.shape[1]} numbers, but the model has {e.problem.dim} parameters"
        )
    if not np.all(np.isfinite(found)):
        raise FedtaperError("start holds NaN or infinity")
    whole = np.broadcast_to(found, (len(seeds), found.shape[1])).copy()
    return whole, f"{what} {array_digest(found)[:16]}"


def _from_run(e: Experiment, run: Run, seeds: NDArray[np.int64]) -> Array:
    if run.diverged:
        raise FedtaperError("start: that run diverged, so it has no model to start from")
    if run.many and len(run.seeds) > 1:
        if list(run.seeds) != seeds.tolist():
            raise FedtaperError(
                f"start: that run has {len(run.seeds)} seeds, so it can start only a run of the "
                "same seeds; for one of its models give start=run.state_dict(seed)"
            )
        return np.asarray(run.final, dtype=np.float64)
    seed = run.seeds[0] if run.many else None
    if is_network(e.problem) and is_network(run.experiment.problem):
        return _vector(e, run.state_dict(seed))[None]
    return np.asarray(run.final if not run.many else run.final[0], dtype=np.float64)[None]


def _vector(e: Experiment, start: Any) -> Array:
    """One model as a vector."""
    if is_network(e.problem):
        import torch

        if isinstance(start, torch.nn.Module):
            return _named(e, start.state_dict())
        if isinstance(start, torch.Tensor):
            start = start.detach().cpu().numpy()
    if isinstance(start, Mapping):
        if is_network(e.problem):
            return _named(e, start)
        start = start.get("w")
    try:
        found = np.asarray(start, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros((0, 0))
    if found.ndim != 1:
        raise FedtaperError(
            "start must be a Run, a torch module, a state_dict or a vector, not "
            f"{type(start).__name__}"
        )
    return found


def _named(e: Experiment, tensors: Mapping[str, Any]) -> Array:
    """A state_dict as the vector that is trained; the rest must equal the problem's own."""
    import torch

    from fedtaper.problems.network import flat_parameters, parameters_of, statistics_of

    module = as_network(e.problem).module()
    own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given = {name: torch.as_tensor(tensor) for name, tensor in tensors.items()}
    try:
        module.load_state_dict(given)
    except RuntimeError as trouble:
        text = " ".join(str(trouble).split()).partition(": ")[2] or str(trouble)
        raise FedtaperError(f"start does not fit the problem's model: {text:.300}") from None
    moves = {id(t) for t in (*parameters_of(module), *statistics_of(module))}
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in state.items():
        if id(tensor) not in moves and name in own and not torch.equal(tensor, own[name]):
            raise FedtaperError(
                f"start: {name} is not trained, and differs from the one that init makes, which a "
                "run would use: load it in init"
            )
    return np.asarray(flat_parameters(module).double().numpy())
