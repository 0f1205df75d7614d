"""What influence costs: how every client's loss changes with each client's influence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import check_number, one_of, whole_list
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_network, checked_problem, is_quadratic
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.simulation.drive import run as simulate
from fedtaper.theory.equilibria import refuse_elsewhere, shares
from fedtaper.theory.losses import LARGEST
from fedtaper.theory.network_losses import TorchLosses
from fedtaper.theory.prices import PERCENT, Price, exact_price

Array = NDArray[np.float64]
METHODS = ("auto", "exact", "runs")


def price(
    source: Any,
    p: ArrayLike | None = None,
    *,
    method: Literal["auto", "exact", "runs"] = "auto",
    seeds: Iterable[int] = range(5),
    change: float = 0.25,
    clients: Iterable[int] | None = None,
) -> Price:
    r"""What each client's influence costs every client.

    For convex problems the equilibrium is differentiated:
    :math:`\partial f_j / \partial p_i = -\nabla f_j' H(p)^{-1} \nabla f_i`. For networks the
    experiment is run with and without a change of one client's scale c, with the same draws,
    over several seeds.

    Args:
        source: a convex problem, or an experiment: the influences are its effective ones at
            the horizon.
        p: influences, for a problem; equal by default.
        method: "exact", "runs", or "auto": exact where the model has at most 2,000 parameters.
        seeds: of the paired runs; at least 2.
        change: by how much the scale is changed in paired runs; the result is per 1 %.
        clients: the clients whose influence is changed in paired runs; by default all. Each
            costs one more run per seed.

    >>> import fedtaper as ft
    >>> found = ft.price(ft.LinearRegression(num_clients=3, samples=200))
    >>> bool((found.loss.diagonal() < 0).all())  # more influence lowers one's own loss
    True
    """
    began = time.perf_counter()
    one_of("method", method, METHODS)
    chosen = whole_list("seeds", seeds)
    e = source if isinstance(source, Experiment) else None
    problem = source.problem if e is not None else source
    checked_problem("problem", problem)
    small = is_quadratic(problem) or problem.dim <= LARGEST
    if method == "exact" or (method == "auto" and small):
        given = e.influence().raw if e is not None else p
        share = shares(
            np.ones(problem.num_clients) if given is None else given, problem.num_clients
        )
        try:
            if e is not None:
                refuse_elsewhere(e)
            return replace(exact_price(problem, share), names=_names(e))
        except FedtaperError as trouble:
            hint = (
                "" if e is None else '; paired runs do not need this: --method runs (method="runs")'
            )
            raise FedtaperError(f"{trouble}{hint}") from None
    if e is None:
        raise FedtaperError("prices by paired runs need an experiment, not only a problem")
    found = _paired(e, sorted(set(chosen)), change, clients, began)
    return replace(found, names=_names(e))


def _names(e: Experiment | None) -> tuple[str, ...]:
    return () if e is None or e.names is None else e.names


def _paired(
    e: Experiment, seeds: list[int], change: float, clients: Iterable[int] | None, began: float
) -> Price:
    from scipy.special import stdtrit

    if len(seeds) < 2:
        raise FedtaperError("paired runs need at least 2 seeds for an interval")
    check_number("change", change)
    if change <= -1 or change == 0:
        raise FedtaperError(f"change must be above -1 and not 0, such as 0.25, not {change!r}")
    who = tuple(range(e.num_clients)) if clients is None else tuple(whole_list("clients", clients))
    if not who or max(who) >= e.num_clients:
        raise FedtaperError(f"clients must be numbers from 0 to {e.num_clients - 1}, not {who}")
    judge = TorchLosses(as_network(e.problem), evaluating=True)
    scale = PERCENT / math.log1p(change)
    found, base = np.empty((len(seeds), len(who), e.num_clients)), []
    right: list[Any] = []
    for k, seed in enumerate(seeds):
        plain = _end(replace(e, seed=seed))
        base.append(judge.values(plain))
        others = [_end(replace(e, seed=seed, schedules=_more(e, i, change))) for i in who]
        found[k] = [scale * (judge.values(w) - base[-1]) for w in others]
        at = judge.accuracies(plain)
        if at is not None:
            right.append([scale * (np.asarray(judge.accuracies(w)) - at) for w in others])
    middle = found.mean(axis=0)
    half = float(stdtrit(len(seeds) - 1, 0.975)) * found.std(axis=0, ddof=1)
    half = half / math.sqrt(len(seeds))
    return Price(
        loss=middle,
        accuracy=np.mean(right, axis=0) if right else None,
        share=e.influence().share,
        losses=np.mean(base, axis=0),
        low=middle - half,
        high=middle + half,
        method="runs",
        clients=who,
        seconds=time.perf_counter() - began,
    )


def _more(e: Experiment, client: int, change: float) -> tuple[Any, ...]:
    """The schedules with one client's scale changed."""
    out = list(e.schedules)
    mine = out[client]
    if not isinstance(mine, Power):
        raise FedtaperError(f"paired runs change the scale c of a Power, but got {mine!r}")
    out[client] = replace(mine, c=mine.c * (1 + change))
    return tuple(out)


def _end(e: Experiment) -> Array:
    """The last shared model of a run."""
    made = simulate(e, progress=False)
    if made.diverged:
        raise FedtaperError(f"a paired run diverged: {made.diverged[0]}")
    last = made.model if made.w is None else made.w[-1]
    return np.asarray(last, dtype=np.float64)
