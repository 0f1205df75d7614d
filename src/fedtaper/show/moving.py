"""Figures of the claims about late, rare and moving clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import COLOURS, figure

Lines = Mapping[str, tuple[Any, Any]]


def errors(lines: Lines, path: Path) -> None:
    """Error against the round: the median of the seeds, and 80 % of them as a band."""
    with figure(path) as axes:
        axis = axes[0, 0]
        for colour, (name, (rounds, levels)) in zip(COLOURS, lines.items(), strict=False):
            axis.loglog(rounds, levels[1], color=colour, label=name)
            axis.fill_between(rounds, levels[0], levels[2], color=colour, alpha=0.2, linewidth=0)
        axis.set(xlabel="round", ylabel="distance to the equilibrium")
        axis.legend()


def predictions(checks: Sequence[Any], limit: float, path: Path) -> None:
    """Distance to each prediction in standard errors, with the factor and without it."""
    with_factor = {c.name.split(":")[0]: c.value for c in checks if "predicted" in c.name}
    without = {c.name.split(":")[0]: c.value for c in checks if "without the factor" in c.name}
    y = np.arange(len(with_factor))[::-1]
    with figure(path, height=3.0) as axes:
        axis = axes[0, 0]
        axis.semilogx(list(with_factor.values()), y, "o", ms=4, color=COLOURS[0], label="predicted")
        places = [place for place, name in zip(y, with_factor, strict=True) if name in without]
        values = list(without.values())
        axis.semilogx(values, places, "x", ms=5, color=COLOURS[1], label="without the factor")
        axis.axvline(limit, color="#888888", linestyle="--", linewidth=1)
        axis.set(yticks=y, yticklabels=list(with_factor), xlabel="distance in standard errors")
        axis.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=2)


def fading(shares: Lines, path: Path) -> None:
    """One client's share of the arrivals, over stretches that double."""
    with figure(path) as axes:
        axis = axes[0, 0]
        for colour, (name, (edges, share)) in zip(COLOURS, shares.items(), strict=False):
            axis.loglog(edges, share, "o-", ms=3, color=colour, label=f"working time {name}")
        axis.set(xlabel="arrivals so far", ylabel="share of the client")
        axis.legend()


def race(panels: Mapping[str, Lines], labels: Mapping[str, str], path: Path) -> None:
    """Error or accuracy against simulated time, one panel per problem."""
    with figure(path, columns=len(panels)) as axes:
        for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for colour, (name, (time, value)) in zip(COLOURS, lines.items(), strict=False):
                axis.plot(time, value, color=colour, label=name)
            axis.set(title=title, xlabel="simulated time", ylabel=labels[title], xscale="log")
            if labels[title].startswith("distance"):
                axis.set(yscale="log")
        axes[0, 0].legend()
