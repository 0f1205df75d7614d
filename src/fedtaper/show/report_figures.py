"""Figures of one run, for its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.protocols import as_quadratic
from fedtaper.results import Run
from fedtaper.show.plots import COLOURS, band, figure, parameters, rounds_axis

Array = NDArray[np.float64]
QUANTILES = (0.1, 0.5, 0.9)
LABELS = {
    "error": "distance to w*(p_n)",
    "error_limit": "distance to w*(p)",
    "gradient_norm": "aggregated gradient norm",
    "change": "step of the shared model",
    "train_loss": "train loss",
    "test_loss": "test loss",
}


def quantiles(values: Array, many: bool) -> Array:
    """Outer quantiles and median over seeds (three times the same for one seed)."""
    if not many:
        return np.stack([values] * 3)
    finite = np.where(np.isfinite(values), values, np.inf)
    return np.asarray(np.quantile(finite, QUANTILES, axis=0, method="nearest"))


def draw_metrics(run: Run, path: Path) -> Path:
    """Distances and norms against the round, log scales."""
    first = ("error", "error_limit") if "error" in run.metrics else ("train_loss", "test_loss")
    pairs = (first, ("gradient_norm", "change"))
    with figure(path, columns=2, height=2.5) as axes:
        for axis, names in zip(axes[0], pairs, strict=True):
            shown = [n for n in names if n in run.metrics]
            if shown == ["error", "error_limit"] and np.array_equal(
                run.metrics["error"], run.metrics["error_limit"]
            ):
                shown = ["error"]  # p_n = p: one line is both
            for number, name in enumerate(shown):
                curve = quantiles(run.metrics[name], run.many)
                band(axis, run.round, curve, LABELS[name], COLOURS[number])
            axis.set_yscale("log")
            rounds_axis(axis)
            if shown:
                axis.legend(loc="best")
    return path


def draw_trajectory(run: Run, path: Path) -> Path:
    """The shared model's first components against the equilibria."""
    e = run.experiment
    assert run.w is not None
    shown = min(3, e.problem.dim)
    equilibrium = as_quadratic(e.problem).equilibrium
    now = equilibrium(e.effective_influence(e.rounds - 1, e.rounds)[0])
    limit = equilibrium(e.limit_influence)
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        for j in range(shown):
            axis.axhline(now[j], color=COLOURS[j], ls=":", lw=0.9)
            axis.axhline(limit[j], color=COLOURS[j], ls="--", lw=0.9)
        ends = np.concatenate([now[:shown], limit[:shown], run.w[..., -1, :shown].ravel()])
        ends = ends[np.isfinite(ends)]
        room = 0.5 * (ends.max() - ends.min()) + 0.1
        window = (ends.min() - room, ends.max() + room)
        curves = [quantiles(run.w[..., j], run.many) for j in range(shown)]
        parameters(axis, run.round, np.stack(curves, axis=-1), window)
        axis.set_ylim(*window)
        axis.set(ylabel="shared model", title="dotted: w*(p_n), dashed: w*(p)")
        rounds_axis(axis)
        axis.legend(loc="best", ncols=shown)
    return path


def draw_influence(run: Run, path: Path) -> Path:
    """Effective influence of each client against the round; equal ones share a line."""
    e = run.experiment
    rounds = np.unique(np.geomspace(1, e.rounds, 80).astype(int))
    p = np.concatenate([e.effective_influence(k - 1, k) for k in rounds])
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        for number, group in enumerate(e.groups()[: len(COLOURS)]):
            axis.plot(rounds, p[:, group.clients[0]], color=COLOURS[number], label=group.who)
        axis.set(ylabel="effective influence", ylim=(0, None))
        if p.max() > 20 * np.median(p[-1]) or p.max() > 2:
            axis.set(yscale="log", ylim=(max(p.min(), 1e-6) / 2, p.max() * 2))
        rounds_axis(axis)
        axis.legend(loc="best")
    return path
