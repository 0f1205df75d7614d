"""A picture of who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import figure

NUMBERED, TICKED = 12, 20  # clients for which cells have room for a number, the axis for a tick


def draw_holdings(problem: Any, path: str | Path) -> Path:
    """Samples of each class at each client: the darker, the more, with numbers where they fit.

    Args:
        problem: an ``ImageClassification``.
        path: the image file to write.
    """
    held = problem.holdings.T
    classes, clients = held.shape
    with figure(path, height=min(6.0, 0.9 + 0.22 * classes)) as axes:
        axis = axes[0, 0]
        cells = axis.imshow(held, cmap="Blues", vmin=0, origin="lower", aspect="auto")
        if clients <= NUMBERED:
            for (c, i), count in np.ndenumerate(held):
                dark = count > 0.6 * held.max()
                axis.text(i, c, str(count), ha="center", va="center", fontsize=5.5,
                          color="white" if dark else "#222222")  # fmt: skip
        else:
            axis.figure.colorbar(cells, ax=axis, label="samples")
        axis.set(xlabel="client", ylabel="class")
        if clients <= TICKED:
            axis.set_xticks(range(clients))
        names = problem.data.classes
        labels = [f"{k}" if name == str(k) else f"{name} ({k})" for k, name in enumerate(names)]
        axis.set_yticks(range(classes), labels)
        axis.set_title(f"{problem.data_set}: samples held")
        axis.grid(False)
    return Path(path)
