"""A picture of who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import figure


def draw_holdings(problem: Any, path: str | Path) -> Path:
    """Samples of each class at each client: dot area and, where there is room, the number.

    Args:
        problem: an ``ImageClassification``.
        path: the image file to write.
    """
    held = problem.holdings
    clients, classes = held.shape
    i, c = np.nonzero(held)
    height = min(6.0, 0.9 + 0.22 * classes)
    with figure(path, height=height) as axes:
        axis = axes[0, 0]
        room = 5200.0 / max(clients, classes) ** 2 * 1.6
        axis.scatter(i, c, s=room * held[i, c] / held.max(), color="#56B4E9", linewidths=0)
        if clients <= 12:
            for x, y in zip(i, c, strict=True):
                axis.annotate(str(held[x, y]), (x, y), ha="center", va="center", fontsize=5)
        axis.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3))
        axis.set_ylim(-0.7, classes - 0.3)
        if clients <= 20:
            axis.set_xticks(range(clients))
        names = problem.data.classes
        labels = [f"{k}" if name == str(k) else f"{name} ({k})" for k, name in enumerate(names)]
        axis.set_yticks(range(classes), labels)
        axis.set_title(f"{problem.data_set}: samples held", loc="left")
        axis.grid(False)
    return Path(path)
