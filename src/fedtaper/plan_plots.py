"""Effective influence over a planned run, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper import plots


def influence_over_rounds(plan: Any, path: Path) -> Path:
    """One line a group of clients with one influence; the target at the horizon as a mark."""
    e = plan.experiment
    rounds = np.unique(np.geomspace(1, e.rounds, 200).round().astype(int))
    raw = np.stack([e.influence(int(k)).raw for k in rounds])
    top = int(np.nanargmax(plan.target))
    shown = raw / raw[:, [top]] * plan.target[top]
    groups = e.groups()
    with plots.figure(path) as axes:
        axis = axes[0, 0]
        for number, group in enumerate(groups):
            i = group.clients[0]
            if number < len(plots.COLOURS):
                colour = plots.COLOURS[number]
                axis.plot(rounds, shown[:, i], color=colour, label=group.who)
            else:
                colour = "#999999"
                axis.plot(rounds, shown[:, i], color=colour, linewidth=0.6)
            if not np.isnan(plan.target[i]) and plan.target[i] > 0:
                axis.plot(e.rounds, plan.target[i], "o", color=colour, markersize=4, clip_on=False)
        axis.set_yscale("log")
        plots.rounds_axis(axis)
        axis.set_ylabel("effective influence")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2)
    return path
