"""The evidence of an audit as a picture: declared and estimated taper over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.auditing.history import History
from fedtaper.show import labels, style

COLUMNS, SHOWN = 2, 12
NAME = 22  # characters of a name over half a page, with a verdict
ACCUSED, FINE, UNSURE = style.COLOURS[1], style.COLOURS[2], style.COLOURS[0]


def draw(found: Sequence[History], path: str | Path) -> Path:
    """One panel per client, accused clients first, at most SHOWN of them."""
    order = sorted(found, key=lambda h: (not h.said.accused, h.said.client))[:SHOWN]
    rows = -(-len(order) // COLUMNS)
    with style.figure(path, rows, COLUMNS, height=1.9, sharex=True) as axes:
        for axis, history in zip(axes.flat, order, strict=False):
            _panel(axis, history)
        for axis in list(axes.flat)[len(order) :]:
            axis.set_axis_off()
        for axis in list(axes.flat)[: len(order)][-COLUMNS:]:  # the lowest of each column
            axis.set_xlabel("round")
            axis.tick_params(labelbottom=True)
        for row in axes:
            row[0].set_ylabel("taper (delta)")
    return Path(path)


def _panel(axis: Any, h: History) -> None:
    c = h.said
    colour = ACCUSED if c.accused else FINE if c.verdict == "as declared" else UNSURE
    axis.axhline(c.declared_delta, color="#555555", linestyle="--", linewidth=1)
    axis.fill_between(h.round, h.low, h.high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(h.round, h.delta, color=colour)
    seen = np.isin(h.round, h.asked)
    axis.plot(h.round[seen], h.delta[seen], "o", color=colour, markersize=3)
    if c.since is not None:
        axis.axvline(c.since, color=ACCUSED, linewidth=1)
    known = h.delta[np.isfinite(h.delta)]
    low, high = min(known, default=c.declared_delta), max(known, default=c.declared_delta)
    bottom = min(low, c.declared_delta) - 0.2
    axis.set_ylim(bottom, max(high, c.declared_delta) + 0.2)
    axis.plot(h.asked, np.full(len(h.asked), bottom), "|", color="#555555", markersize=9)
    since = "" if c.since is None else f", since round {c.since}"
    axis.set_title(f"{labels.short([h.name], NAME)[0]}: {c.verdict}{since}")
