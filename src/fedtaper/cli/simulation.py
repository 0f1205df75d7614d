"""``fedtaper run`` and ``fedtaper demo``."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedtaper.cli import paths
from fedtaper.cli.names import federation_of
from fedtaper.cli.terminal import aside, errors, give, output, say, show, status, table
from fedtaper.core.errors import FedtaperError, StabilityWarning
from fedtaper.core.schedules import Constant, Power
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.rules import presets
from fedtaper.show import labels
from fedtaper.show.report import report, sentences
from fedtaper.simulation.drive import run as simulate
from fedtaper.storage import store
from fedtaper.storage.config import read_how, read_log, read_toml
from fedtaper.storage.logs import Log


def run(
    file: Annotated[
        Path,
        typer.Argument(help="A TOML file that describes the experiment.", callback=paths.settings),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Run folder to write [default: runs/NAME_OF_FILE].")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Run seeds 0 to N-1 in one batch.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Any engine of the table that fedtaper engines prints."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where networks run: cpu, or cuda for a GPU.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of networks on a GPU: bf16 or float32.")
    ] = None,
    way: Annotated[
        str | None,
        typer.Option(help="How to train a network's clients: per-client, stacked or compiled."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    thin: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Record every N-th round.")
    ] = None,
    updates: Annotated[
        bool, typer.Option("--updates", help="Record every client's update, for an audit.")
    ] = False,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Store the file's data in the run folder too.")
    ] = False,
    tensorboard: Annotated[
        str | None, typer.Option(help="Folder for TensorBoard's event file.", metavar="DIR")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(help="Tracking address of MLflow.", metavar="URI")
    ] = None,
) -> None:
    """Simulate an experiment and store the run.

    Example: fedtaper run examples/case3.toml --seeds 100
    """
    folder = out or Path("runs") / file.stem
    output.stopped = f"stopped: repeat the command with --resume to continue in {folder}"
    chosen = None if seeds is None else range(seeds)
    written = read_log(file) or Log()
    log = Log(tensorboard or written.tensorboard, mlflow or written.mlflow)
    asked = {"engine": engine, "device": device, "precision": precision, "way": way}
    means = read_how(file) | {key: value for key, value in asked.items() if value is not None}
    how: dict[str, Any] = {"resume": resume, "thin": thin, "updates": updates}
    how |= {"log": None if log == Log() else log, "progress": output.progress}
    by_flower = means.get("engine") == "flower"
    if by_flower and seeds is not None:
        raise FedtaperError("the flower engine runs one seed at a time: leave out --seeds")
    if not by_flower and "task" in federation_of(file):
        raise FedtaperError(f"{file}: only sites can run its task: add --engine flower")
    if means == {"engine": "flower"}:
        from fedtaper.deploy.simulated import run_file

        how["progress"] = output.progress is None and errors.is_terminal  # else one line a round
        made = run_file(file, out=folder, say=aside, **how)
    else:
        how |= {"keep_data": keep_data} | means
        made = simulate(read_toml(file), seeds=chosen, out=folder, **how)
    give(folder=folder)
    show_run(made)
    say(f"Stored in {folder}. A page about it: fedtaper report {folder}")
    if made.diverged:
        raise typer.Exit(1)


def show_run(made: Run) -> None:
    """A run's last round and each client's influence, as tables."""
    if made.diverged:
        for text in sentences(made):
            show("diverged:", text, "red")
    many = len(made.seeds) > 1
    if len(made.round):
        rows = [
            [_shown(name), *(f"{q:.4g}" for q in _quantiles(values[..., -1])[: 3 if many else 1])]
            for name, values in labels.metrics(made).items()
        ]
        head = [f"round {made.round[-1]:,}", *(["median", "10 %", "90 %"] if many else ["value"])]
        seeds = f"{len(made.seeds)} seeds" if many else f"seed {made.seeds[0]}"
        table(f"{seeds}, {made.seconds:.2f} s, {made.engine} engine", head, rows)
    e, names, last = made.experiment, labels.clients(made), made.last_round
    give(
        rounds=int(made.round[-1]) if len(made.round) else 0,
        seeds=made.seeds,
        seconds=made.seconds,
        engine=made.engine,
        metrics={n: v[..., -1] for n, v in made.metrics.items() if v.shape[-1]},
        influence={"now": e.influence(last).effective, "limit": e.limit_influence},
        diverged=[vars(d) for d in made.diverged],
    )
    table(
        "Influence",
        ["clients", "step size", f"at n = {last * e.period:,}", "in the limit"],
        [
            [labels.who(names, g), g.taper, f"{g.effective:.4g}", f"{g.limit:.4g}"]
            for g in e.groups(last)
        ],
        left=2,
    )
    if not made.diverged:
        for text in sentences(made):
            say(text)


def _shown(name: str) -> str:
    """A metric as the charts call it; scripts get the name that the files have."""
    return name if output.json else labels.title(name)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    seeds: Annotated[
        int, typer.Option(min=2, metavar="N", help="Number of seeds for each run.")
    ] = 20,
) -> None:
    """Run the paper's three step-size cases and the baselines, in under two minutes.

    Example: fedtaper demo --seeds 5 --out demo
    """
    began = time.perf_counter()
    store.prepare(out, resume=True)
    rows: list[list[str]] = []
    made: list[Run] = []
    say(
        f"Ten clients, linear regression with the paper's settings, 5,000 rounds, {seeds} seeds "
        "each."
    )
    experiments = demo_experiments()
    with status() as shown, warnings.catch_warnings():
        warnings.simplefilter("ignore", StabilityWarning)
        for name, experiment in experiments.items():
            shown.update(f"run {len(made) + 1}/{len(experiments)}, {name}")
            folder = out / name
            store.clear(folder)
            found = simulate(experiment, seeds=range(seeds), out=folder, progress=False)
            made.append(found)
            rows.append(_demo_row(name, found))
    table(
        "",
        ["run", "p_n", "p", "to w*(p_n)", "to w*(p)", "late/early"],
        rows,
    )
    say(
        "\np_n, p: the largest influence among the clients after the first, at this horizon and in "
        "the limit. to w*(p_n), to w*(p): distance of the final model to the optimum of these "
        "influences. late/early: error of the last tenth of the rounds divided by that of the "
        "second tenth; about 0.5 while it settles, 1 if it keeps oscillating."
    )
    page = report(made, out / "report.html")
    give(report=page)
    say(
        f"\nReport: {page} ({time.perf_counter() - began:.0f} s). Open it in a browser: a summary "
        "in words, a comparison, curves to zoom and hide, and for each run its influence and "
        "settings. Next, judge the paper's nine regression claims from data: fedtaper reproduce"
    )


def demo_experiments() -> dict[str, Experiment]:
    """The three cases, and three baselines with constant and with tapering steps."""
    from fedtaper.paper.regression_cases import PAPER_STEP, case_2, case_3
    from fedtaper.problems.linear import LinearRegression

    def make(schedules: Any, preset: str = "fedavg") -> Experiment:
        rules = presets.PRESETS[preset]
        return Experiment(LinearRegression(), schedules, rounds=5000, local_steps=5, **rules)

    return {
        "case-1-equal": make(PAPER_STEP),
        "case-2-two-count": make(case_2()),
        "case-3-one-counts": make(case_3()),
        "fedavg-constant-0.1": make(Constant(0.1)),
        "fedavg-constant-0.05": make(Constant(0.05)),
        "fedprox-constant-0.05": make(Constant(0.05), "fedprox"),
        "fednova-constant-0.05": make(Constant(0.05), "fednova"),
        "fedprox-tapering": make(Power(0.1, 0.76), "fedprox"),
        "fednova-tapering": make(Power(0.1, 0.76), "fednova"),
    }


def _demo_row(name: str, made: Run) -> list[str]:
    e = made.experiment
    others = np.arange(e.num_clients) != e.reference
    now = e.influence().effective[others]
    row = [name, f"{now.max():.3f}", f"{e.limit_influence[others].max():.3f}"]
    if made.diverged:
        return [*row, "diverged", "", f"round {min(d.round for d in made.diverged)}"]
    error, limit = made.metrics["error"], made.metrics["error_limit"]
    late = np.median(error[:, -500:]) / np.median(error[:, 500:1000])
    return [*row, *(f"{np.median(v[:, -1]):.3f}" for v in (error, limit)), f"{late:.2f}"]


def _quantiles(values: Any) -> list[float]:
    array = np.atleast_1d(values)
    array = array[np.isfinite(array)]
    return [float(np.quantile(array, q)) if array.size else np.nan for q in (0.5, 0.1, 0.9)]
