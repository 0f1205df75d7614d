"""The names of runs, clients and metrics in tables, legends and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedtaper.core.influence import ClientGroup
from fedtaper.core.tables import capital
from fedtaper.results import Run
from fedtaper.storage import store

METRICS = {  # in the order of tables
    "error": "distance to w*(p_n)",
    "error_limit": "distance to w*(p)",
    "test_accuracy": "test accuracy",
    "rare_test_accuracy": "test accuracy, rare class",
    "test_loss": "test loss",
    "rare_test_loss": "test loss, rare class",
    "train_accuracy": "train accuracy",
    "train_loss": "train loss",
    "gradient_norm": "aggregated gradient norm",
    "change": "step of the shared model",
    "answered": "clients that answered",
}
ACRONYMS = ("auc", "roc", "auroc", "auprc", "mse", "rmse", "mae", "iou", "f1", "r2")
HIDDEN = ("seconds",)  # about the machine, not about the model


def metric(name: str) -> str:
    """A metric in words; the user's own keep their names."""
    return METRICS.get(name, name.replace("_", " "))


def metrics(run: Run) -> dict[str, Any]:
    """The metrics of a run that a reader should see."""
    shown = [name for name, v in run.metrics.items() if name not in HIDDEN and v.shape[-1]]
    return {name: run.metrics[name] for name in ordered(shown)}


def ordered(names: Iterable[str]) -> list[str]:
    """Metrics in the order of tables: the user's own first, steps last."""
    place = {name: number for number, name in enumerate(METRICS)}
    return sorted(names, key=lambda name: place.get(name, -1))


def clients(run: Run) -> tuple[str, ...]:
    """The clients' names: the experiment's, or the sites', else "client 0" and so on."""
    number = run.experiment.num_clients
    if run.experiment.names is not None:
        return run.experiment.names
    if run.path is not None and (run.path / store.SITES).is_file():
        rows = json.loads((run.path / store.SITES).read_text(encoding="utf-8"))
        if len(rows) == number:
            return tuple(str(row["site"]) for row in rows)
    return tuple(f"client {i}" for i in range(number))


def who(names: Sequence[str], group: ClientGroup) -> str:
    """The clients of a group in words: "north, south", "clients 2 to 9", "a, b, c and 7 more"."""
    count = len(group.clients)
    if names[group.clients[0]] == f"client {group.clients[0]}":
        return f"clients {group.clients[0]} and {group.clients[1]}" if count == 2 else group.who
    shown = [names[i] for i in group.clients]
    if count <= 4:
        return ", ".join(shown)
    return (
        f"all {count} clients"
        if count == len(names)
        else (f"{', '.join(shown[:3])} and {count - 3} more")
    )


def short(names: Sequence[str], width: int = 14) -> list[str]:
    """Names that fit beside an axis: long ones lose their middle, and stay different.

    >>> short(["north", "University Hospital 1", "University Hospital 2"])
    ['north', 'Universi…tal 1', 'Universi…tal 2']
    """
    front, back = width - 6, 5
    out = [n if len(n) <= width else f"{n[:front].rstrip()}…{n[-back:].lstrip()}" for n in names]
    return [
        name if out.count(name) == 1 else f"{name[: width - 4].rstrip('… ')}… {i}"
        for i, name in enumerate(out)
    ]


def taper(group: ClientGroup) -> str:
    """A group's step size as a formula that no line break divides."""
    return group.taper.replace(" ", "\N{NO-BREAK SPACE}")


def title(name: str) -> str:
    """A metric as the title of a chart: "AUC", "Log loss".

    >>> title("auc"), title("roc_auc"), title("log loss")
    ('AUC', 'ROC AUC', 'Log loss')
    """
    words = metric(name).split(" ")
    return capital(" ".join(w.upper() if w in ACRONYMS else w for w in words))


def runs(given: Sequence[Run]) -> list[str]:
    """One name per run: its folder's, made unique if two are the same."""
    names: list[str] = []
    for number, run in enumerate(given):
        name = run.path.name if run.path else ("run" if len(given) == 1 else f"run {number + 1}")
        alike = [r for r in given if r.path is not None and r.path.name == name]
        if len(alike) > 1 and run.path is not None:
            name = f"{run.path.parent.name}/{name}"
        while name in names:
            name += "'"
        names.append(name)
    return names


def number(value: float) -> str:
    """A number for a table: four digits.

    >>> number(0.123456), number(1.86e149)
    ('0.1235', '1.86e149')
    """
    return f"{value:.4g}".replace("e+", "e") if np.isfinite(value) else "not finite"


def middle(values: Any) -> float:
    """The median over the finite seeds."""
    found = np.atleast_1d(np.asarray(values, dtype=np.float64))
    found = found[np.isfinite(found)]
    return float(np.median(found)) if found.size else float("nan")
