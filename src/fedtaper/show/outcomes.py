"""Figures of outcomes: shares and losses, prices, contributions, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import as_path
from fedtaper.show import labels
from fedtaper.show.style import COLOURS, figure

TICKS = 15  # clients whose names an axis has room for
LEVEL = 24  # characters that fit side by side under half a page


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
        share.plot(place, found.share_before, "_", color="k", markersize=8, label="before")
        share.bar(place, found.p, color=COLOURS[1], width=0.7, label="after")
        share.set_ylabel("share of the influence")
        share.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        for axis in (losses, share):
            client_ticks(axis.xaxis, len(place), found.names)
            axis.set_xlabel("client")
    return path


def error_bars(found: Any, path: Path) -> Path:
    """Every client's loss with its interval, or every parameter if losses are not known."""
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
        client_ticks(axis.xaxis, len(place), () if found.losses is None else found.names)
    return path


def coverage(checks: Any, limits: tuple[float, float], path: Path) -> Path:
    """Coverage with its interval, one line per scenario and quantity.

    Values beyond the axis, as of a wrong covariance, are written at its edge.
    """
    left, right = 0.9, 1.0
    with figure(path, height=0.17 * len(checks) + 0.8) as axes:
        axis = axes[0, 0]
        axis.axvspan(*limits, color="#009E73", alpha=0.15, linewidth=0)
        axis.axvline(0.95, color="k", linewidth=0.6)
        for place, check in zip(range(len(checks) - 1, -1, -1), checks, strict=True):
            if not left <= check.value < right:
                low = check.value < left
                where, side = (left + 0.002, "left") if low else (right - 0.002, "right")
                text = f"{check.value:.1%}"
                axis.text(where, place, text, ha=side, va="center", color=COLOURS[1], fontsize=7)
                continue
            error = [[check.value - check.low], [check.high - check.value]]
            axis.errorbar(check.value, place, xerr=error, fmt="o", color=COLOURS[0], markersize=3)
        axis.set_yticks(range(len(checks) - 1, -1, -1), [c.name for c in checks])
        axis.set_xlim(left, right)
        axis.set_xlabel("coverage")
    return path


def contributed(found: Any, path: Path) -> Path:
    """Shapley values with intervals and leave-one-out, and who contributed what to whom."""
    place = np.arange(len(found.shapley))
    with figure(path, columns=2, height=2.8) as axes:
        bars, heat = axes[0]
        bars.bar(place, found.shapley, color=COLOURS[0], width=0.7, label="Shapley value")
        if not found.exact:
            error = [found.shapley - found.low, found.high - found.shapley]
            bars.errorbar(place, found.shapley, yerr=error, fmt="none", color="k", capsize=2)
        bars.plot(place, found.leave_one_out, "D", color=COLOURS[1], label="leave-one-out")
        bars.axhline(0, color="k", linewidth=0.6)
        bars.set_xlabel("client")
        bars.set_ylabel("lower mean loss")
        bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        client_ticks(bars.xaxis, len(place), found.names)
        words = ("contributed by client", "to the loss of client")
        _heat(heat, found.for_whom, *words, found.names, flip=True)
    return path


def price_map(found: Any, path: str | Path) -> Path:
    """Prices as a heat map: blue where a loss falls."""
    path = as_path(path)
    with figure(path, height=3.0) as axes:
        words = ("1 % more for client", "change of the loss of client")
        _heat(axes[0, 0], found.loss, *words, found.names)
        rows = labels.short(found.names) or [str(i) for i in range(found.loss.shape[1])]
        client_ticks(axes[0, 0].yaxis, len(found.clients), [rows[i] for i in found.clients])
    return path


def _heat(
    axis: Any, values: Any, rows: str, columns: str, names: Sequence[str], flip: bool = False
) -> None:
    far = float(np.abs(values).max()) or 1.0
    colours = "RdBu" if flip else "RdBu_r"
    shown = axis.imshow(values, cmap=colours, vmin=-far, vmax=far, aspect="auto")
    bar = axis.figure.colorbar(shown, ax=axis, shrink=0.9)
    bar.set_label("lower loss" if flip else "change of the loss")
    axis.set_ylabel(rows)
    axis.set_xlabel(columns)
    axis.grid(visible=False)
    client_ticks(axis.xaxis, values.shape[1], names)
    client_ticks(axis.yaxis, values.shape[0], names)


def client_ticks(axis: Any, count: int, names: Sequence[str] = ()) -> None:
    """The clients' names, or whole numbers; not too many, and no two over each other."""
    places = np.arange(0, count, max(1, -(-count // TICKS)))
    shown = labels.short(names)
    texts = [shown[int(i)] for i in places] if shown else None
    axis.set_ticks(places, texts)
    if axis.axis_name == "x" and texts and sum(map(len, texts)) > LEVEL:
        for text in axis.get_ticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
