"""What 1 % more influence does to every client's loss, by differentiating the equilibrium."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.tables import Brief, html, label, plain
from fedtaper.theory.equilibria import minimiser, sensitivity
from fedtaper.theory.losses import losses_of

Array = NDArray[np.float64]
PERCENT = 0.01


@dataclass(frozen=True, repr=False)
class Price(Brief):
    """How losses change when one client's influence rises by 1 % and the others' stay.

    Attributes:
        loss: change of client j's loss (column) for client i's influence (row), (L, L).
        accuracy: the same for the share of correct answers, or None.
        share: the influences at which the prices hold, as shares.
        losses: each client's loss at those influences.
        low, high: a 95 % interval for ``loss``; None if it is exact.
        method: "exact" by implicit differentiation, or "runs" by paired runs.
        clients: which clients' influences were changed: the rows.
    """

    loss: Array
    accuracy: Array | None = field(repr=False)
    share: Array
    losses: Array
    low: Array | None = field(repr=False)
    high: Array | None = field(repr=False)
    method: str
    clients: tuple[int, ...]
    seconds: float = field(repr=False)
    names: tuple[str, ...] = ()  # of the clients, where they have any

    @property
    def title(self) -> str:
        """What this is, in one line."""
        how = "exact" if self.method == "exact" else "paired runs, 95 % intervals for the mean"
        return f"What 1 % more influence does to the losses ({how})"

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first: own loss, mean loss, who gains and loses most."""
        rows = [["client", "share", "own loss", "mean loss", "gains most", "loses most"]]
        rounding = 1e-9 * float(np.abs(self.loss).max())
        for exact, i in zip(self.loss, self.clients, strict=True):
            row = np.where(np.abs(exact) < rounding, 0.0, exact)
            mean = float(exact.mean()) if abs(exact.mean()) > rounding else 0.0
            gains, loses = int(np.argmin(row)), int(np.argmax(row))
            mine, best, worst = (label(self.names, k) for k in (i, gains, loses))
            cells = [mine, f"{self.share[i]:.4g}", f"{row[i]:+.4g}", f"{mean:+.4g}"]
            rows.append([*cells, f"{best} ({row[gains]:+.3g})", f"{worst} ({row[loses]:+.3g})"])
        return rows

    def __str__(self) -> str:
        return "\n".join([self.title, *plain(self.rows())])

    def _repr_html_(self) -> str:
        return html(self.title, self.rows())

    def plot(self, path: str | Path) -> Path:
        """Draw the prices as a heat map."""
        from fedtaper.show.outcomes import price_map

        return price_map(self, path)


def exact_price(problem: Any, share: Array) -> Price:
    r"""Prices at w*(p): :math:`\partial f_j / \partial p_i = -\nabla f_j' H(p)^{-1} \nabla f_i`."""
    began = time.perf_counter()
    losses = losses_of(problem)
    w = minimiser(losses, share)
    moved = PERCENT * sensitivity(losses, w, share) * share  # (d, L): by 1 % more of each
    accuracy = losses.accuracies(w)
    if accuracy is not None:
        there = [losses.accuracies(w + step) for step in moved.T]
        accuracy = np.stack([a - accuracy for a in there if a is not None])
    return Price(
        loss=(losses.gradients(w) @ moved).T,
        accuracy=accuracy,
        share=share,
        losses=losses.values(w),
        low=None,
        high=None,
        method="exact",
        clients=tuple(range(len(share))),
        seconds=time.perf_counter() - began,
    )
