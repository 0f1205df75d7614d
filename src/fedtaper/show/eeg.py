"""Figures about the seizure detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import COLOURS, figure, key, log_axis, rounds_axis

MODELS = {"features": "linear model on features", "cnn": "convolutional network"}


def areas(values: dict[str, tuple[float, float, float]], path: Path) -> None:
    """Each way of training: area under the curve by infant, with its interval."""
    middle, low, high = np.array(list(values.values())).T
    y = np.arange(len(values))[::-1]
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        axis.axvline(0.5, color="#888888", linestyle="--", linewidth=1, label="chance")
        axis.errorbar(
            middle, y, xerr=[middle - low, high - middle], fmt="o", capsize=2, ms=3,
            color=COLOURS[0], label="mean over seeds, 95 % interval",
        )  # fmt: skip
        axis.set(yticks=y, yticklabels=list(values), xlabel="area under the curve by infant")
        key(axes, columns=2)


def changes(lines: dict[str, Any], path: Path) -> None:
    """How far the shared model moves in each round, one panel per model."""
    with figure(path, columns=2) as axes:
        for axis, model in zip(axes[0], MODELS, strict=True):
            mine = {k: v for k, v in lines.items() if k.startswith(model)}
            for colour, (name, change) in zip(COLOURS, mine.items(), strict=False):
                label = name.removeprefix(model + ", ")
                axis.plot(np.arange(1, len(change) + 1), change, color=colour, label=label)
            rounds_axis(axis)
            log_axis(axis)
            axis.set_title(MODELS[model])
        axes[0, 0].set_ylabel("change of the shared model")
        key(axes, columns=4)
