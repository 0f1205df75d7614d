"""Effective influence over a planned run, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show import labels, style

SHOWN, NUMBERS = 3, 12  # names, and numbers, of clients that a legend has room for
ROOM = 24  # characters of a name in a legend of two columns


def influence_over_rounds(plan: Any, path: Path) -> Path:
    """One line per group of clients with the same influence; marks for the target."""
    e = plan.experiment
    rounds = np.unique(np.geomspace(1, e.rounds, 200).round().astype(int))
    raw = np.stack([e.influence(int(k)).raw for k in rounds])
    top = int(np.nanargmax(plan.target))
    shown = raw / raw[:, [top]] * plan.target[top]
    groups: dict[tuple[float, ...], list[int]] = {}
    for i in range(e.num_clients):  # clients whose curves coincide are one line
        groups.setdefault(tuple(np.round(np.log(shown[:, i]), 6)), []).append(i)
    with style.figure(path, height=2.8) as axes:
        axis = axes[0, 0]
        for number, members in enumerate(groups.values()):
            i = members[0]
            colour, line = style.look(number)
            axis.plot(rounds, shown[:, i], line, color=colour, label=_who(e.names, members))
            if np.nan_to_num(plan.target[i]) > 0:
                axis.plot(e.rounds, plan.target[i], "o", color=colour, markersize=4, clip_on=False)
        style.log_axis(axis)
        style.rounds_axis(axis, log=e.rounds > 50)
        axis.set_ylabel("effective influence")
        longest = max(len(text) for text in axis.get_legend_handles_labels()[1])
        style.key(axes, columns=1 if longest > ROOM else 2)
    return path


def _who(names: Sequence[str] | None, clients: list[int]) -> str:
    if names:
        shown = labels.short(names)
        if len(clients) > SHOWN:
            return f"{', '.join(shown[i] for i in clients[:2])} and {len(clients) - 2} more"
        return ", ".join(shown[i] for i in clients)
    if len(clients) == 1:
        return f"client {clients[0]}"
    if len(clients) > 2 and clients[-1] - clients[0] == len(clients) - 1:
        return f"clients {clients[0]} to {clients[-1]}"
    if len(clients) > NUMBERS:
        return f"{len(clients)} clients"
    return "clients " + ", ".join(map(str, clients))
