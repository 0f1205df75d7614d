"""The map p -> w*(p): the model that minimises sum p_i f_i, and how it moves with p."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_combining
from fedtaper.experiment import Experiment
from fedtaper.rules.goals import Total
from fedtaper.theory.convex import solve
from fedtaper.theory.convexity import refuse_endless
from fedtaper.theory.losses import Losses, losses_of
from fedtaper.theory.network_losses import TorchLosses

Array = NDArray[np.float64]
TINY = 1e-6  # of the losses at 0: smaller ones are mostly rounding, and no scale for a solver


def shares(p: ArrayLike, count: int) -> Array:
    """Influences divided by their sum, refused if they make no sense."""
    found = as_numbers("p", p)
    if found.shape != (count,):
        raise FedtaperError(f"p has {found.size} values for {count} clients; give one per client")
    if not (np.all(np.isfinite(found)) and np.all(found >= 0) and found.sum() > 0):
        raise FedtaperError("influences must be finite, at least 0, and not all 0")
    return found / found.sum()


def equilibrium(problem: Any, p: ArrayLike, start: Array | None = None) -> Array:
    """w*(p) of a convex problem: by one linear solve, or by Newton's method in float64.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> w = equilibrium(problem, [1.0, 0.5])
    >>> bool(abs(w - problem.equilibrium([1.0, 0.5])).max() < 1e-10)
    True
    """
    return minimiser(losses_of(problem), shares(p, problem.num_clients), start)


def refuse_elsewhere(e: Experiment) -> None:
    """Refuse an experiment whose model does not go to w*(p) of its influences."""
    if is_combining(e.server):
        raise FedtaperError(
            f"{e.server!r} is not a weighted mean, so the model does not go to the optimum of the "
            "influences (a norm that clips no update changes nothing: then use Average())"
        )
    if e.local.rescales:
        raise FedtaperError(
            f"{e.local!r} scales each coordinate separately, so the model does not go to the "
            "optimum of the influences: use Sgd, or Momentum"
        )
    if e.behaviours:
        who = ", ".join(e.name(client) for client, _ in e.behaviours)
        raise FedtaperError(
            f"behaviours are set ({who}), so the model does not go to the optimum of the declared "
            "influences: replace(e, behaviours={}) is what was declared"
        )


def minimiser(losses: Losses, p: Array, start: Array | None = None) -> Array:
    """w*(p) for shares p."""
    first = np.zeros(losses.dim) if start is None else start
    scale = typical(losses, first)
    none = np.full(losses.clients, np.inf)
    found = solve(losses, Total(p), none, first, scale).w
    if isinstance(losses, TorchLosses):
        last = losses.hessian(found, p)
        sizes = np.linalg.eigvalsh(last)
        if sizes[0] < 1e-6 * max(float(sizes[-1]), scale):  # else there is no doubt
            refuse_endless(losses.hessian(np.zeros(losses.dim), p), last)
    return found


def typical(losses: Losses, w: Array) -> float:
    """A scale of the losses: their mean size at a model, which may be one that fits exactly."""
    here, at_zero = (float(np.mean(np.abs(losses.values(v)))) for v in (w, np.zeros(losses.dim)))
    found = max(here, TINY * at_zero) if np.isfinite(at_zero) else here
    return found if found > 0 else 1.0


def sensitivity(losses: Losses, w: Array, p: Array) -> Array:
    """dw*/dp, (d, L): minus the inverse Hessian of sum p_i f_i times each client's gradient."""
    curvature = losses.hessian(w, p)
    lowest, highest = np.linalg.eigvalsh(curvature)[[0, -1]]
    if lowest <= 1e-12 * highest:
        return -np.linalg.pinv(curvature, rcond=1e-12, hermitian=True) @ losses.gradients(w).T
    return np.asarray(-np.linalg.solve(curvature, losses.gradients(w).T))
