"""Figures of outcomes: shares and losses, prices, contributions, intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import COLOURS, figure


def fair_shares(found: Any, path: Path) -> Path:
    """Every client's loss before and after, and its share of the influence."""
    place = np.arange(len(found.p))
    with figure(path, rows=1, columns=2, height=2.6) as axes:
        losses, share = axes[0]
        losses.plot(place, found.before, "o", color=COLOURS[5], label="before")
        losses.plot(place, found.after, "o", color=COLOURS[1], label="after")
        losses.vlines(place, found.before, found.after, color="#999999", linewidth=0.8)
        limited = np.isfinite(found.limits)
        if limited.any():
            losses.plot(place[limited], found.limits[limited], "_", color="k", label="limit")
        for level, colour in ((found.before, COLOURS[5]), (found.after, COLOURS[1])):
            losses.axhline(float(np.max(level)), color=colour, linewidth=0.6, linestyle="--")
        losses.set_ylabel("loss")
        losses.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        share.bar(place, found.p, color=COLOURS[0], width=0.7)
        share.plot(place, found.share_before, "_", color="k", markersize=8, label="before")
        share.set_ylabel("share of the influence")
        share.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
        for axis in (losses, share):
            client_ticks(axis.xaxis, len(place))
            axis.set_xlabel("client")
    return path


def error_bars(found: Any, path: Path) -> Path:
    """Every client's loss with its interval, or every parameter where losses are not known."""
    band = found.model if found.losses is None else found.losses
    value, low, high = (np.atleast_2d(v)[0] for v in (band.value, band.low, band.high))
    place = np.arange(len(value))
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        axis.errorbar(
            place, value, yerr=[value - low, high - value], fmt="o", color=COLOURS[0], capsize=3
        )
        axis.set_ylabel("parameter" if found.losses is None else "loss at the optimum")
        axis.set_xlabel("parameter" if found.losses is None else "client")
        axis.set_title(f"{found.level:.0%} intervals")
        client_ticks(axis.xaxis, len(place))
    return path


def client_ticks(axis: Any, count: int) -> None:
    """Whole numbers, and not too many."""
    axis.set_ticks(np.arange(0, count, max(1, -(-count // 15))))
