"""Drawing: one look for every figure. Nothing here computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

COLUMN, PAGE = 3.5, 7.0  # inches
# Okabe and Ito: told apart with any kind of colour vision, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
}


@contextmanager
def figure(
    path: str | Path, rows: int = 1, columns: int = 1, height: float = 2.3, **how: Any
) -> Iterator[Any]:
    """Axes to draw on; the figure is written to ``path`` at the end.

    One column of axes is 3.5 inches wide (a journal's column), more are 7 (its page).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    width = COLUMN if columns == 1 else PAGE
    with pyplot.rc_context(_STYLE):
        made, axes = pyplot.subplots(
            rows, columns, figsize=(width, height * rows), squeeze=False, **how
        )
        try:
            yield axes
            made.savefig(path)
        finally:
            pyplot.close(made)


def band(
    axis: Any, x: Any, quantiles: Any, label: str, colour: str, style: str = "-", width: float = 1.2
) -> None:
    """A median line with the band between the outer two quantiles."""
    low, middle, high = (np.where(np.isfinite(q), q, np.nan) for q in quantiles)
    axis.plot(x, middle, style, color=colour, label=label, linewidth=width)
    axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def shade(number: int, count: int) -> Any:
    """One of ``count`` ordered colours, light to dark, for a swept quantity."""
    import matplotlib

    return matplotlib.colormaps["viridis_r"](0.12 + 0.85 * number / max(1, count - 1))


def rounds_axis(axis: Any) -> None:
    """Rounds, on a log axis."""
    axis.set_xscale("log")
    axis.set_xlabel("round")


def parameters(axis: Any, k: Any, w: Any, window: tuple[float, float]) -> None:
    """Components of the shared model; stretches far outside the window are left out."""
    middle = 0.5 * (window[0] + window[1])
    far = np.abs(w - middle).max(axis=(0, 2)) > 3 * (window[1] - window[0])
    shown = np.where(far[None, :, None], np.nan, w)
    for j in range(w.shape[-1]):
        band(axis, k, shown[:, :, j], f"component {j + 1}", COLOURS[j])
    if far.any():
        peak = np.nanmax(np.abs(w))
        axis.axvspan(k[far][0], k[far][-1], color="#eeeeee", lw=0, zorder=0)
        at = np.sqrt(k[far][0] * k[far][-1])
        axis.annotate(
            f"climbs\nto {peak:.0e}", (at, middle), ha="center", va="center", fontsize=6.5
        )
