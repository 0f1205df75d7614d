"""Effective influence over a planned run, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show import style as plots


def influence_over_rounds(plan: Any, path: Path) -> Path:
    """One line a group of clients with one influence; the target at the horizon as a mark."""
    e = plan.experiment
    rounds = np.unique(np.geomspace(1, e.rounds, 200).round().astype(int))
    raw = np.stack([e.influence(int(k)).raw for k in rounds])
    top = int(np.nanargmax(plan.target))
    shown = raw / raw[:, [top]] * plan.target[top]
    groups: dict[tuple[float, ...], list[int]] = {}
    for i in range(e.num_clients):  # clients whose curves coincide are one line
        groups.setdefault(tuple(np.round(np.log(shown[:, i]), 6)), []).append(i)
    with plots.figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        for number, members in enumerate(groups.values()):
            i = members[0]
            few = number < len(plots.COLOURS)
            colour = plots.COLOURS[number] if few else "#999999"
            label = _who(members) if few else None
            axis.plot(rounds, shown[:, i], color=colour, linewidth=1.2 if few else 0.6, label=label)
            if np.nan_to_num(plan.target[i]) > 0:
                axis.plot(e.rounds, plan.target[i], "o", color=colour, markersize=4, clip_on=False)
        axis.set_yscale("log")
        plots.rounds_axis(axis)
        axis.set_ylabel("effective influence")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2)
    return path


def _who(clients: list[int]) -> str:
    if len(clients) == 1:
        return f"client {clients[0]}"
    if len(clients) > 2 and clients[-1] - clients[0] == len(clients) - 1:
        return f"clients {clients[0]} to {clients[-1]}"
    return "clients " + ", ".join(map(str, clients))
