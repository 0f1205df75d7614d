"""How much each client contributed: Shapley values and leave-one-out, in units of the loss.

A coalition S trains with only its own members' influences; its worth is by how much the loss of
its model is below that of no training at all. The Shapley value is a client's mean marginal
contribution over all orders of joining: the values add up to the total worth, and the value of a
client that changes nothing is 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers, as_path, check_whole, one_of
from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import Brief, html, label, plain
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.theory.equilibria import minimiser, refuse_elsewhere, shares
from fedtaper.theory.losses import Losses, QuadraticLosses, losses_of

Array = NDArray[np.float64]
Masks = NDArray[np.bool_]
Game = Callable[[Masks], Array]  # coalitions (K, L) -> what each client's data loses less, (K, M)
MOST = 15  # clients whose coalitions are all solved
LEAST = 20  # permutations


@dataclass(frozen=True, repr=False)
class Contributions(Brief):
    """What each client contributed, in units of the loss.

    Attributes:
        shapley: each client's Shapley value, (L,); they add up to ``worth``.
        low, high: a 95 % interval for each; the value itself where it is exact.
        leave_one_out: by how much the loss grows without the client.
        for_whom: what client i (row) contributed to client j's loss (column), (L, L); its mean
            over the columns, weighted as the losses are, is ``shapley``.
        worth: by how much all together are better than no training.
        coalitions: how many models were solved or evaluated for it.
        exact: whether all coalitions were.
        source: how the contributions were computed, in words.
    """

    shapley: Array
    low: Array
    high: Array
    leave_one_out: Array
    for_whom: Array = field(repr=False)
    worth: float
    coalitions: int
    exact: bool
    source: str
    seconds: float = field(repr=False)
    names: tuple[str, ...] = ()  # of the clients, where they have any

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first."""
        head = ["client", "Shapley value", "share", "leave-one-out"]
        rows = [head if self.exact else [*head, "low", "high"]]
        for i, value in enumerate(self.shapley):
            share = f"{value / self.worth:.1%}" if self.worth > 0 else ""
            cells = [label(self.names, i), f"{value:.5g}", share, f"{self.leave_one_out[i]:.5g}"]
            more = [] if self.exact else [f"{self.low[i]:.5g}", f"{self.high[i]:.5g}"]
            rows.append(cells + more)
        return rows

    @property
    def title(self) -> str:
        """What this is, in one line."""
        how = "all" if self.exact else "sampled"
        return f"{self.source}: worth {self.worth:.5g} ({self.coalitions:,} coalitions, {how})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before using them, in words."""
        out = []
        below = np.flatnonzero(self.high < 0)
        if len(below):
            who = ", ".join(label(self.names, int(i)) for i in below)
            out.append(
                f"Below 0: {who}. On average over all orders of joining they raise the mean loss: "
                "their data differs from the others'. That is not misconduct. Whether a client "
                "did what it declared is for the audit to say."
            )
        return tuple(out)

    def __str__(self) -> str:
        return "\n".join([self.title, *plain(self.rows()), *self.notes])

    def _repr_html_(self) -> str:
        return html(self.title, self.rows(), self.notes)

    def plot(self, path: str | Path) -> Path:
        """Draw the values with their intervals, and who contributed what to whom."""
        from fedtaper.show.outcomes import contributed

        return contributed(self, as_path(path))


def contributions(
    source: Any,
    p: ArrayLike | None = None,
    *,
    held_out: Any = None,
    weights: ArrayLike | None = None,
    nobody: ArrayLike | None = None,
    method: Literal["auto", "exact", "sampled"] = "auto",
    permutations: int = 200,
    seed: int = 0,
) -> Contributions:
    """Leave-one-out and Shapley values of a convex problem's clients, or of a run's.

    Args:
        source: a convex problem, or an experiment: the influences are then its effective
            ones at the horizon. Or a run that kept its updates (``updates=True``) and models:
            then each round's gain is divided among its updates, without any retraining.
        p: influences, for a problem; equal by default.
        held_out: a problem with the same model and clients and other samples, whose losses
            are used; by default the training losses.
        weights: how much each client's loss counts; equal by default.
        nobody: the model of the empty coalition; all zeros by default.
        method: "exact" solves all 2^L coalitions (up to 15 clients), "sampled" draws
            permutations; "auto" chooses.
        permutations: how many pairs of a permutation and its reverse are drawn.
        seed: of the permutations.

    >>> import fedtaper as ft
    >>> found = ft.contributions(ft.LinearRegression(num_clients=4, samples=200))
    >>> found.exact, bool(abs(found.shapley.sum() - found.worth) < 1e-9)
    (True, True)
    """
    began = time.perf_counter()
    names: tuple[str, ...] = ()
    check_whole("permutations", permutations)
    check_whole("seed", seed, low=0)
    if isinstance(source, Run):
        from fedtaper.outcomes.recorded_rounds import from_updates

        found = from_updates(source, held_out, weights, permutations, seed)
        return replace(found, names=source.experiment.names or ())
    if isinstance(source, Experiment):
        refuse_elsewhere(source)
        names = source.names or ()
        p, source = source.influence().raw, source.problem
    losses = losses_of(source)
    judged = losses if held_out is None else losses_of(held_out)
    count = losses.clients
    share = shares(np.ones(count) if p is None else p, count)
    counts = shares(np.ones(count) if weights is None else weights, count)
    first = np.zeros(losses.dim) if nobody is None else as_numbers("nobody", nobody)
    if first.shape != (losses.dim,) or not np.all(np.isfinite(first)):
        raise FedtaperError(f"nobody must be a model of {losses.dim} finite numbers")
    if (judged.clients, judged.dim) != (losses.clients, losses.dim):
        raise FedtaperError("held_out must have the same number of clients and the same model")
    game = _retrained(losses, judged, share, first)
    text = "Contributions by retraining" + ("" if held_out is None else ", on held-out data")
    exact = _chosen(method, count)
    made = evaluate(game, count, counts, text, exact, permutations, seed, began)
    return replace(made, names=names)


def _chosen(method: str, count: int) -> bool:
    one_of("method", method, ("auto", "exact", "sampled"))
    if method == "exact" and count > MOST:
        raise FedtaperError(
            f"{count} clients have 2^{count} coalitions; exact values go to {MOST} clients: "
            'use --method sampled (method="sampled")'
        )
    return method != "sampled" and count <= MOST


def evaluate(
    game: Game,
    count: int,
    weights: Array,
    text: str,
    exact: bool,
    permutations: int,
    seed: int,
    began: float,
) -> Contributions:
    """Values of a game whose worth is a vector, one number for each client's loss."""
    if exact:
        each, low, high, asked = *_exact(game, count, weights), 2**count
    else:
        if permutations < LEAST:
            raise FedtaperError(f"permutations must be at least {LEAST}, not {permutations}")
        each, low, high, asked = _sampled(game, count, weights, permutations, seed)
    every = np.ones(count, dtype=bool)
    without = game(np.concatenate([every[None], ~np.eye(count, dtype=bool)])) @ weights
    empty = game(np.zeros((1, count), dtype=bool)) @ weights
    return Contributions(
        shapley=each @ weights,
        low=low,
        high=high,
        leave_one_out=without[0] - without[1:],
        for_whom=each,
        worth=float(without[0] - empty[0]),
        coalitions=asked,
        exact=exact,
        source=text,
        seconds=time.perf_counter() - began,
    )


def _exact(game: Game, count: int, weights: Array) -> tuple[Array, Array, Array]:
    """All coalitions: number k holds client i where bit i of k is set."""
    number = np.arange(2**count)
    members = (number[:, None] >> np.arange(count)) & 1 == 1
    worth = game(members)
    size = members.sum(axis=1)
    chance = np.array([1 / (count * math.comb(count - 1, s)) for s in range(count)])
    each = np.stack(
        [
            chance[size[~members[:, i]]]
            @ (worth[number[~members[:, i]] | (1 << i)] - worth[~members[:, i]])
            for i in range(count)
        ]
    )
    return each, each @ weights, each @ weights


def _sampled(
    game: Game, count: int, weights: Array, permutations: int, seed: int
) -> tuple[Array, Array, Array, int]:
    """Mean marginal contributions over permutations, each with its reverse.

    The pair is one draw of the mean, so that the interval includes what the reverse saves.
    """
    from scipy.special import stdtrit

    rng = np.random.default_rng(seed)
    known: dict[bytes, Array] = {}
    draws = np.empty((permutations, count, count))
    for k in range(permutations):
        order = rng.permutation(count)
        draws[k] = 0.5 * sum(_marginal(game, one, known) for one in (order, order[::-1]))
    each = draws.mean(axis=0)
    values = draws @ weights
    error = values.std(axis=0, ddof=1) / math.sqrt(permutations)
    half = float(stdtrit(permutations - 1, 0.975)) * error
    middle = values.mean(axis=0)
    return each, middle - half, middle + half, len(known)


def _marginal(game: Game, order: NDArray[np.int64], known: dict[bytes, Array]) -> Array:
    """What each client adds when they join in this order, (L, M)."""
    count = len(order)
    masks = np.zeros((count + 1, count), dtype=bool)
    for place, client in enumerate(order):
        masks[place + 1] = masks[place]
        masks[place + 1, client] = True
    keys = [row.tobytes() for row in masks]
    missing = [j for j, key in enumerate(keys) if key not in known]
    if missing:
        for j, worth in zip(missing, game(masks[missing]), strict=True):
            known[keys[j]] = worth
    worth = np.stack([known[key] for key in keys])
    out = np.empty((count, worth.shape[1]))
    out[order] = np.diff(worth, axis=0)
    return out


def _retrained(losses: Losses, judged: Losses, share: Array, nobody: Array) -> Game:
    """Coalitions by their own equilibria; minus the losses, so that more is better."""

    def game(masks: Masks) -> Array:
        models = np.tile(nobody, (len(masks), 1))
        some = (masks * share).sum(axis=1) > 0
        if isinstance(losses, QuadraticLosses):
            models[some] = _solved(losses, masks[some] * share)
        else:
            for j in np.flatnonzero(some):
                p = masks[j] * share
                models[j] = minimiser(losses, p / p.sum(), models[j - 1] if j else nobody)
        return -judged.values(models)

    return game


def _solved(losses: QuadraticLosses, p: Array) -> Array:
    """Equilibria of many coalitions at once; the smallest model where there are several."""
    a, b, _ = losses.problem.moments
    left, right = np.tensordot(p, a, axes=1), p @ b
    clear = np.linalg.cond(left) < 1e12
    out = np.empty_like(right)
    out[clear] = np.linalg.solve(left[clear], right[clear][..., None])[..., 0]
    for j in np.flatnonzero(~clear):
        out[j] = np.linalg.pinv(left[j], hermitian=True) @ right[j]
    return out
