"""Counterparts of the paper's image figures: lines are means over seeds, bands their range."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.paper.claim import Study
from fedtaper.results import Run
from fedtaper.show.style import COLOURS, band, below, coinciding, figure, key, log_axis, shade

CHANGE = "||change of the shared model||"
NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fednova": "FedNova"}
LABELS = {
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}
TITLES = {
    "equal": "p = (1, 1, ...)",
    "finite": "p = (1, 0.1, ...)",
    "vanishing": "p = (0, 1, ...)",
}


def _name(study: Study, name: str) -> str:
    return f"{name}-{study.options.get('data_set', 'digits')}.png"


def _curve(
    axis: Any, runs: list[Run], metric: str, label: str, colour: Any, style: str = "-"
) -> None:
    values = np.stack([run.metrics[metric] for run in runs])
    ends = (values.min(axis=0), values.mean(axis=0), values.max(axis=0))
    band(axis, runs[0].round, ends, label, colour, style)


def equal(study: Study, runs: list[Run]) -> str:
    """Change, losses and accuracies with equal steps."""
    name = _name(study, "i1-equal-steps")
    with figure(study.figure(name), rows=3, height=2.0) as axes:
        top, middle, bottom = axes[:, 0]
        _curve(top, runs, "change", "FedAvg, tapering", COLOURS[0])
        top.set(ylabel="||change||", xlabel="round")
        log_axis(top)
        for axis, kind in ((middle, "loss"), (bottom, "accuracy")):
            _curve(axis, runs, f"train_{kind}", "clients, training", COLOURS[0])
            _curve(axis, runs, f"test_{kind}", "shared model, test", COLOURS[1], "--")
            axis.set(ylabel=kind, xlabel="round")
        bottom.set_ylim(top=1.02)
        below(bottom, columns=2)
    return name


def holdings(study: Study, run: Run) -> str:
    """Who holds what."""
    from fedtaper.show.holdings import draw_holdings

    name = _name(study, "i1-who-holds-what")
    draw_holdings(run.experiment.problem, study.figure(name))
    return name


def rare(study: Study, runs: dict[str, list[Run]]) -> str:
    """Test loss and accuracy, of all classes and of the rare one, for three influences."""
    name = _name(study, "i2-i3-rare-class")
    with figure(
        study.figure(name), rows=2, columns=3, height=2.0, sharey="row", sharex=True
    ) as axes:
        for column, (case, found) in enumerate(runs.items()):
            for row, kind in enumerate(("accuracy", "loss")):
                axis = axes[row, column]
                _curve(axis, found, f"test_{kind}", "all classes", COLOURS[0])
                _curve(axis, found, f"rare_test_{kind}", "rare class", COLOURS[1])
                if row == 0:
                    axis.set(title=TITLES[case], ylim=(-0.02, 1.02))
                else:
                    axis.set_xlabel("round")
                    log_axis(axis)
            axes[0, 0].set_ylabel("test accuracy")
            axes[1, 0].set_ylabel("test loss")
        key(axes)
    return name


def baselines(study: Study, runs: Any, steps: str) -> tuple[str, ...]:
    """Change, and train and test metrics, of three methods; the other steps as reference."""
    number = "i4" if steps == "constant" else "i5"
    change, metrics = (_name(study, f"{number}-{steps}-{what}") for what in ("change", "metrics"))
    with figure(study.figure(change), height=2.6) as axes:
        _methods(axes[0, 0], runs, steps, "change")
        axes[0, 0].set(ylabel=CHANGE, xlabel="round")
        log_axis(axes[0, 0])
        key(axes, columns=2)
    with figure(study.figure(metrics), rows=2, columns=2, height=2.0, sharex=True) as axes:
        for axis, (metric, label) in zip(axes.ravel(), LABELS.items(), strict=True):
            _methods(axis, runs, steps, metric)
            axis.set(ylabel=label)
            if metric.startswith("test"):
                axis.set_xlabel("round")
        key(axes, columns=4)
    return change, metrics


def _methods(axis: Any, runs: Any, steps: str, metric: str) -> None:
    """Methods whose curves coincide share one line; tapering FedAvg beside constant steps."""
    found = {m: np.stack([r.metrics[metric] for r in runs[m, steps]]).mean(axis=0) for m in NAMES}
    for number, (first, names) in enumerate(coinciding(found, within=1e-6).items()):
        label = ", ".join(NAMES[m] for m in names.split(", "))
        _curve(axis, runs[first, steps], metric, f"{label}, {steps}", COLOURS[number + 1])
    if steps == "constant":
        _curve(axis, runs["fedavg", "tapering"], metric, "FedAvg, tapering", COLOURS[0])


def sweeps(study: Study, swept: dict[str, dict[Any, list[Run]]]) -> tuple[str, ...]:
    """One figure per swept quantity: change, test loss, test accuracy."""
    names = []
    for what, cells in swept.items():
        name = _name(study, f"i6-{what.replace(' ', '-')}")
        with figure(study.figure(name), rows=3, height=1.8, sharex=True) as axes:
            for j, (value, runs) in enumerate(cells.items()):
                for axis, metric in zip(
                    axes[:, 0], ("change", "test_loss", "test_accuracy"), strict=True
                ):
                    _curve(axis, runs, metric, f"{what} {value:g}", shade(j, len(cells)))
            for axis, label in zip(
                axes[:, 0], ("||change||", "test loss", "test accuracy"), strict=True
            ):
                axis.set_ylabel(label)
            log_axis(axes[0, 0])
            axes[2, 0].set_xlabel("round")
            key(axes, columns=2)
        names.append(name)
    return tuple(names)
