"""``fedtaper fair``, ``price``, ``contributions`` and ``intervals``: what influence leads to."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli import paths
from fedtaper.cli.names import load_run, read_file
from fedtaper.cli.planned import check_out, settings_of, write
from fedtaper.cli.terminal import say, status, table
from fedtaper.cli.theory import File
from fedtaper.core.errors import AssumptionWarning, FedtaperError, warn
from fedtaper.experiment import Experiment
from fedtaper.outcomes.board import board as find_board
from fedtaper.outcomes.contributions import Contributions
from fedtaper.outcomes.contributions import contributions as find_contributions
from fedtaper.outcomes.fair import Fair
from fedtaper.outcomes.fair import fair as find_fair
from fedtaper.outcomes.intervals import METHODS, Intervals
from fedtaper.outcomes.intervals import intervals as find_intervals
from fedtaper.outcomes.limits import WORDS
from fedtaper.outcomes.price import METHODS as PRICES
from fedtaper.outcomes.price import Price
from fedtaper.outcomes.price import price as find_price
from fedtaper.planning.over_time import DRIFT
from fedtaper.rules.goals import GOALS

Plot = Annotated[
    Path | None,
    typer.Option(help="Figure to write, such as figure.png.", callback=paths.picture),
]


def fair(
    file: File,
    goal: Annotated[str, typer.Option(help=f"One of {', '.join(GOALS)}.")] = "minmax",
    constraint: Annotated[
        list[str] | None, typer.Option(help=f"A limit in words, repeatable: {WORDS}.")
    ] = None,
    q: Annotated[float, typer.Option(help="Exponent of the goal q.")] = 1.0,
    t: Annotated[float, typer.Option(help="Tilt of the goal tilt, per unit of loss.")] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="TOML file to write, with these influences.", callback=paths.file_to_write
        ),
    ] = None,
    plot: Plot = None,
) -> None:
    """Find the influences that serve a goal: the worst client, large losses, limits in words.

    Example: fedtaper fair examples/case1.toml --constraint "nobody more than 5% worse"
    """
    e = read_file(file)
    check_out(file, out)
    found = find_fair(e.problem, goal, constraints=constraint or (), q=q, t=t, names=e.names)
    head, *rows = found.rows()
    table(f"Goal: {found.goal}", head, rows)
    for text in (found.certificate, *found.notes):
        say(text)
    if plot is not None:
        say(f"Drawn: {found.plot(plot)}")
    if out is not None:
        _write_plan(found, e, file, out)


def intervals(
    source: Annotated[
        Path,
        typer.Argument(
            help="A run folder, or a TOML file for a future run.", callback=paths.source
        ),
    ],
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "plug-in",
    of: Annotated[
        str, typer.Option(help="Optimum on data (the clients' samples) or on their population.")
    ] = "data",
    plot: Plot = None,
) -> None:
    """Compute error bars for the model and for every client's loss.

    Example: fedtaper intervals runs/case3 --level 0.9
    """
    given = read_file(source) if source.is_file() else load_run(source, own=True)
    found = find_intervals(given, level=level, method=method, of=of)  # type: ignore[arg-type]  # checked there
    _show(found, found.notes, plot)


def price(
    file: File,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(PRICES)}.")] = "auto",
    seeds: Annotated[
        int, typer.Option(min=2, metavar="N", help="Number of seeds for paired runs.")
    ] = 5,
    plot: Plot = None,
) -> None:
    """Show what 1 % more influence for each client does to every client's loss.

    Example: fedtaper price examples/case1.toml --plot price.png
    """
    with status("looking for the prices"):
        found = find_price(read_file(file), method=method, seeds=range(seeds))  # type: ignore[arg-type]  # checked there
    _show(found, (), plot)


def contributions(
    source: Annotated[
        Path,
        typer.Argument(help="A TOML file, or a run folder with updates.", callback=paths.source),
    ],
    method: Annotated[str, typer.Option(help="auto, exact or sampled.")] = "auto",
    permutations: Annotated[int, typer.Option(help="Permutations for sampled values.")] = 200,
    plot: Plot = None,
) -> None:
    """Show what each client contributed: Shapley values and leave-one-out, in units of the loss.

    Example: fedtaper contributions examples/case1.toml
    """
    given = read_file(source) if source.is_file() else load_run(source, own=True)
    with status("looking for what each client contributed"):
        found = find_contributions(given, method=method, permutations=permutations)  # type: ignore[arg-type]  # checked there
    _show(found, found.notes, plot)


def _show(
    found: Contributions | Intervals | Price, notes: Iterable[str], plot: Path | None
) -> None:
    """Print a table and its notes, and draw its figure if wanted."""
    head, *rows = found.rows()
    table(found.title, head, rows)
    for note in notes:
        say(note)
    if plot is not None:
        say(f"Drawn: {found.plot(plot)}")


def board(
    run: Annotated[Path, typer.Argument(help="A run folder.", callback=paths.run_folder)],
    goal: Annotated[
        str | None, typer.Option(help=f"What was asked for: one of {', '.join(GOALS)}.")
    ] = None,
    constraint: Annotated[
        list[str] | None, typer.Option(help="A limit in words, repeatable.")
    ] = None,
    q: Annotated[float, typer.Option(help="Exponent of the goal q.")] = 1.0,
    t: Annotated[float, typer.Option(help="Tilt of the goal tilt, per unit of loss.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed to use, of a run over several.")] = None,
) -> None:
    """Asked, given, certified: one page for the people responsible for a federation.

    Example: fedtaper board runs/case1 --goal minmax
    """
    try:
        made = load_run(run, own=True)
    except FedtaperError as trouble:  # without the losses there is still much to say
        made = load_run(run)
        warn(str(trouble))
    asked = None
    if goal is not None:
        e = made.experiment
        asked = find_fair(e.problem, goal, constraints=constraint or (), q=q, t=t, names=e.names)
    page = find_board(made, asked, seed=seed)
    head, *rows = page.rows()
    table("Asked, given, certified", head, rows)
    for text in page.sentences():
        say(text)


def _write_plan(found: Fair, e: Experiment, file: Path, out: Path) -> None:
    settings = {name: held for name, held in settings_of(e).items() if name != "problem"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        warnings.filterwarnings("ignore", DRIFT)
        made = found.plan(e.rounds, **settings)
    for text in (*(f"warning: {w}" for w in made.warnings), made.advice):
        say(text)
    write(file, made.experiment, out, {})
