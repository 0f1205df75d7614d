"""Figures of the claims about late, rare and moving clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import COLOURS, band, figure, key, log_axis, rounds_axis, smoothed

Lines = Mapping[str, tuple[Any, Any]]
MANY, WAVE = 500, 31  # points beyond which a curve is smoothed, and over how many of them


def errors(lines: Lines, path: Path) -> None:
    """Error against the round: the median of the seeds, and 80 % of them as a band."""
    with figure(path) as axes:
        axis = axes[0, 0]
        for colour, (name, (rounds, levels)) in zip(COLOURS, lines.items(), strict=False):
            band(axis, rounds, levels, name, colour)
        rounds_axis(axis)
        log_axis(axis)
        axis.set_ylabel("distance to the equilibrium")
        key(axes)


def predictions(checks: Sequence[Any], limit: float, path: Path) -> None:
    """Distance to each prediction in standard errors, with and without the factor."""
    with_factor = {c.name.split(":")[0]: c.value for c in checks if "predicted" in c.name}
    without = {c.name.split(":")[0]: c.value for c in checks if "without the factor" in c.name}
    y = np.arange(len(with_factor))[::-1]
    with figure(path, height=3.0) as axes:
        axis = axes[0, 0]
        axis.axvline(limit, color="#888888", linestyle="--", linewidth=1, label="limit")
        axis.plot(list(with_factor.values()), y, "o", ms=4, color=COLOURS[0], label="predicted")
        places = [place for place, name in zip(y, with_factor, strict=True) if name in without]
        values = list(without.values())
        axis.plot(values, places, "x", ms=5, color=COLOURS[1], label="without the factor")
        log_axis(axis, "x")
        axis.set(yticks=y, yticklabels=list(with_factor), xlabel="distance in standard errors")
        key(axes)


def fading(shares: Lines, path: Path) -> None:
    """One client's share of the arrivals, over stretches that double."""
    with figure(path) as axes:
        axis = axes[0, 0]
        for colour, (name, (edges, share)) in zip(COLOURS, shares.items(), strict=False):
            axis.plot(edges, share, "o-", ms=3, color=colour, label=f"working time {name}")
        log_axis(axis, "x")
        log_axis(axis)
        axis.set(xlabel="arrivals so far", ylabel="share of the arrivals")
        key(axes, columns=1)


def race(panels: Mapping[str, Lines], labels: Mapping[str, str], path: Path) -> None:
    """Error or accuracy against simulated time, one panel per problem."""
    with figure(path, columns=len(panels)) as axes:
        for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for colour, (name, (time, value)) in zip(COLOURS, lines.items(), strict=False):
                if len(time) > MANY:  # a saw-tooth would be a solid block: its mean over a wave
                    axis.plot(time, value, color=colour, linewidth=0.4, alpha=0.35)
                    late = np.arange(len(value)) >= 2 * WAVE  # before, a wave is most of the time
                    value = np.where(late, smoothed(value, WAVE), value)
                axis.plot(time, value, color=colour, label=name)
            log_axis(axis, "x")
            axis.set(title=title, xlabel="simulated time", ylabel=labels[title])
            if labels[title].startswith("distance"):
                log_axis(axis)
        key(axes)
