"""``fedtaper check`` and ``fedtaper forecast``."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedtaper.cli import paths
from fedtaper.cli.names import read_file
from fedtaper.cli.terminal import say, table
from fedtaper.core.errors import FedtaperError
from fedtaper.theory.assumptions import THEORIES
from fedtaper.theory.assumptions import check as check_assumptions
from fedtaper.theory.forecast import Forecast
from fedtaper.theory.forecast import forecast as look_ahead

File = Annotated[
    Path,
    typer.Argument(help="A TOML file that describes the experiment.", callback=paths.settings),
]


def check(file: File) -> None:
    """Check whether the theorem's assumptions hold for an experiment, and what baselines need.

    Example: fedtaper check examples/case3.toml
    """
    found = check_assumptions(read_file(file))
    rows = [[r.id, r.status, r.asks, r.number, r.why] for r in found.rows]
    head = ["assumption", "status", "asks that", "decided by", "because"]
    table("Assumptions of the theorem", head, rows, left=5)
    needs = [
        [n.asks, "all" if n.needed_by == THEORIES else ", ".join(n.needed_by), n.status, n.number]
        for n in found.needs
    ]
    head = ["need", "needed by", "here", "decided by"]
    table("\nWhat this theorem and those of the baselines need", head, needs, left=4)


def forecast(
    file: File,
    n: Annotated[
        float | None, typer.Option("--n", help="A clock value, such as 1e12 [default: five].")
    ] = None,
    to: Annotated[
        list[float] | None, typer.Option(help="Show when influences fall to this. Repeatable.")
    ] = None,
) -> None:
    """Predict the model at a far clock value, and when influences will have faded.

    Example: fedtaper forecast examples/case3.toml --n 1e12 --to 0.01
    """
    e = read_file(file)
    began = time.perf_counter()
    end = float(e.rounds * e.period)
    clock = (
        [n] if n is not None else sorted({end, *(10.0**k for k in (6, 9, 12, 16) if 10**k > end)})
    )
    found = [look_ahead(e, n=one) for one in clock]
    halves, why = _error_bars(found)
    rows = [
        [f"{f.n:.4g}", f"{f.round:.4g}", _vector(f), half, _size(f.distance),
         _size(f.distance_limit)]
        for f, half in zip(found, halves, strict=True)
    ]  # fmt: skip
    table("Model", ["n", "rounds", "w", "95 % +-", "to w*(p_n)", "to w*(p)"], rows)
    if why:
        say(f"No error bars, because {why}.")
    for text in dict.fromkeys(f.note for f in found if f.note):
        say(f"Model: {text}.")
    groups = e.groups()
    head = ["clients", *(f"n = {f.n:.3g}" for f in found), "limit"]
    influences = [
        [g.who, *(f"{f.influence[g.clients[0]]:.4g}" for f in found), f"{g.limit:.4g}"]
        for g in groups
    ]
    table("\nInfluence", head, influences)
    levels = to or [0.1, 0.01, 0.001]
    fading = [found[0].fades(level) for level in levels]
    when = [[g.who, *(_when(one[g.clients[0]]) for one in fading)] for g in groups]
    table("\nn from which influence stays below", ["clients", *(f"{v:g}" for v in levels)], when)
    say(f"\n{time.perf_counter() - began:.2f} s")


def _error_bars(found: list[Forecast]) -> tuple[list[str], str]:
    """Half the width of each model's widest interval, or why there is none."""
    try:
        ends = [f.interval() for f in found]
    except FedtaperError as trouble:
        return [""] * len(found), str(trouble)
    return [f"{float((high - low).max()) / 2:.2g}" for low, high in ends], ""


def _vector(f: Forecast) -> str:
    if np.isnan(f.w).any():
        return "-"
    shown = " ".join(f"{value:.4f}" for value in f.w[:4])
    return shown + (f" ... ({len(f.w)})" if len(f.w) > 4 else "")


def _size(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _when(n: float) -> str:
    if np.isinf(n):
        return "never"
    return "always" if n <= 1 else f"{n:.3g}"
