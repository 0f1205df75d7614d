"""``fedtaper plan`` and ``fedtaper audit``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtaper.auditing import Audit
from fedtaper.auditing import audit as audit_run
from fedtaper.cli import paths, planned
from fedtaper.cli.names import load_run, read_file
from fedtaper.cli.terminal import give, say, table
from fedtaper.core.errors import AssumptionWarning, FedtaperError
from fedtaper.planning.over_time import DRIFT
from fedtaper.planning.plan import RULES
from fedtaper.planning.plan import plan as make_plan


def plan(
    target: Annotated[
        list[str],
        typer.Argument(help=f"Numbers, one per client (1 0.1 0.1), or rules: {RULES}."),
    ],
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="The horizon, in rounds.")],
    file: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file whose problem and rules to plan for.", callback=paths.settings
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of clients.")
    ] = None,
    samples: Annotated[str | None, typer.Option(help="Samples of each: 500,1000,500.")] = None,
    local_steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Updates per round.")
    ] = None,
    local_epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Or epochs per round.")
    ] = None,
    participation: Annotated[str | None, typer.Option(help="A rate, or one per client.")] = None,
    clock: Annotated[str | None, typer.Option(help="What n counts: update, epoch, round.")] = None,
    c: Annotated[float, typer.Option(help="The largest scale c.")] = 0.1,
    delta: Annotated[float, typer.Option(help="The taper of clients that do not fade.")] = 0.76,
    stable: Annotated[
        bool, typer.Option("--stable", help="Choose the offset that avoids a climb.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write TOML for `fedtaper run`.", callback=paths.file_to_write),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Figure of influence to write.", callback=paths.picture)
    ] = None,
) -> None:
    """Find step sizes that give each client the influence you want at your horizon.

    Examples: fedtaper plan 1 0.1 0.1 --rounds 100 --local-steps 5 --out plan.toml;
    fedtaper plan "client 0 counts 10x" --clients 10 --rounds 100 --local-steps 5
    """
    given = _given(local_steps, local_epochs, clock, participation)
    settings = given
    if file is not None:
        settings = planned.settings_of(read_file(file))
        planned.check_out(file, out)
        if {"local_steps", "local_epochs"} & given.keys():
            settings |= {"local_steps": None, "local_epochs": None, "clock": None}
        settings |= given
    else:
        if clients is None and samples is None and isinstance(_target(target)[0], str):
            raise FedtaperError("how many clients? Give --clients or --samples, or a --file")
        settings = {**given, "num_clients": clients}
        settings["sizes"] = None if samples is None else _numbers("--samples", samples, int)
        if not {"local_steps", "local_epochs"} & given.keys():
            raise FedtaperError("give --local-steps or --local-epochs, or a --file that has them")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # printed below the table
        warnings.filterwarnings("ignore", DRIFT)
        found = make_plan(
            _target(target), rounds, c=c, delta=delta, offset=None if stable else 0.0, **settings
        )
    head, *rows = found.rows(prices=False)
    e = found.experiment
    table(f"Influence at round {e.rounds:,} (n = {e.rounds * e.period:,})", head, rows)
    for text in (*(f"warning: {w}" for w in found.warnings), found.advice):
        say(text)
    if found.prices is not None:
        head, *rows = found.prices.rows()
        table(f"\n{found.prices.title}", head, rows)
    if plot is not None:
        say(f"Drawn: {found.plot(plot)}")
    if out is not None and file is not None:
        planned.write(file, e, out, given | ({"clock": e.clock} if given else {}))
    elif out is not None:
        say(f"Written: {found.save(out)}. Next: fedtaper run {out}")


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder.", callback=paths.run_folder)],
    seed: Annotated[int | None, typer.Option(help="Seed to use, of a run over several.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Figure of the evidence to write, such as evidence.png.", callback=paths.picture
        ),
    ] = None,
) -> None:
    """Judge which clients contribute as declared, and how certain that is.

    Example: fedtaper audit runs/case3 --figure evidence.png
    """
    loaded = load_run(run)
    if seed is None and len(loaded.seeds) > 1:
        raise FedtaperError(
            f"{run} has {len(loaded.seeds)} seeds: choose one of them, such as --seed "
            f"{loaded.seeds[0]}"
        )
    found = audit_run(loaded, seed=seed, level=level)
    head, *rows = found.rows()
    give(rounds=found.rounds, n=found.n, clients=_clients(found))
    table(found.title, head, rows, left=2)
    for note in found.remarks():
        say(note)
    say(found.caveat)
    if figure is not None:
        from fedtaper.auditing.history import histories
        from fedtaper.show.evidence import draw

        evidence = histories(loaded, seed, level)
        for history in evidence:
            say(history.sentence)
        say(
            f"Drawn: {draw(evidence, figure)}. Dashed: the declared taper; line and band: the "
            "estimate with its interval, with gaps where there is none; dots and marks below: "
            "challenges; vertical line: the round since which the verdict holds."
        )


def _clients(found: Audit) -> list[dict[str, Any]]:
    """The records of all clients, each with its name."""
    return [{"name": found.name(c.client), **asdict(c)} for c in found.clients]


def _given(
    local_steps: int | None, local_epochs: int | None, clock: str | None, participation: str | None
) -> dict[str, Any]:
    """The settings of an experiment that the command line replaces."""
    named = {"local_steps": local_steps, "local_epochs": local_epochs, "clock": clock}
    out: dict[str, Any] = {name: held for name, held in named.items() if held is not None}
    if participation is not None:
        rates = _numbers("--participation", participation, float)
        out["participation"] = rates[0] if len(rates) == 1 else tuple(rates)
    return out


def _target(words: list[str]) -> Any:
    """All numbers, or all rules."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return words


def _numbers(name: str, text: str, kind: Any) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise FedtaperError(f"{name} takes numbers separated by commas, not {text!r}") from None
