"""``fedtaper reproduce`` and ``fedtaper report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedtaper.cli import paths
from fedtaper.cli.terminal import give, output, say, status, table
from fedtaper.problems.data.sources import FOLDER_VARIABLE
from fedtaper.show.report import report as write_report


def reproduce(
    claims: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims by id or family, such as R1 T2 I: R regression, T theory, I images, "
            "A audit, E seizure detection, O outcomes, X late and moving clients; or all "
            "[default: R]."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for claims.json and the figures.")] = Path(
        "reproduced"
    ),
    seeds: Annotated[
        int, typer.Option(min=10, metavar="N", help="Number of seeds for every claim.")
    ] = 100,
    data_set: Annotated[
        str, typer.Option(help="Data set of claims I1 to I6 (and A3): digits, bloodmnist, ...")
    ] = "digits",
    device: Annotated[
        str, typer.Option(help="Where claims I1 to I6 are run: cpu or cuda.")
    ] = "cpu",
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data set's .npz [default: download it].")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Spread claims over a Ray cluster: local, auto or an address."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Skip claims judged there with the same seeds and version."),
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and exit.")] = False,
) -> None:
    """Judge the paper's claims from data.

    Each claim is re-run over many seeds and gets a verdict: reproduced, not-at-this-horizon
    or not-with-these-settings, with the numbers that decide it and the nearest setting that
    shows it. Example: fedtaper reproduce R1 R3 --seeds 200
    """
    from fedtaper.paper import LEDGER, pick
    from fedtaper.paper import reproduce as judge

    chosen = pick(LEDGER, claims or ["all" if list_ else "R"])
    images = any(claim.id.startswith("I") for claim in chosen) or data_set != "digits"
    if data is not None:
        os.environ[FOLDER_VARIABLE] = str(data)
    if list_:
        table("", ["claim", "statement"], [[c.id, c.statement] for c in chosen], left=2)
        return
    output.stopped = f"stopped: repeat the command with --resume to continue in {out}"
    order = [claim.id for claim in chosen]
    with status() as shown:

        def tell(text: str) -> None:
            claim = text.partition(":")[0]
            at = f"claim {order.index(claim) + 1}/{len(order)}, " if claim in order else ""
            shown.update(at + text)

        options = {"data_set": data_set, "device": device} if images else {}
        if ray is not None:
            from fedtaper.paper.cluster import reproduce_on_ray

            rows = reproduce_on_ray(
                chosen, out, ray, seeds=seeds, options=options, resume=resume, say=tell
            )
        else:
            rows = judge(chosen, out, seeds=seeds, options=options, resume=resume, say=tell)
    give(folder=out, claims=rows)
    table(
        "",
        ["claim", "verdict", "what was found", "seconds"],
        [[r["id"], _coloured(r["verdict"]), r["summary"], f"{r['seconds']:.1f}"] for r in rows],
        left=3,
    )
    say(f"\nNumbers and thresholds: {out}/claims.json. As a page: fedtaper report {out}")


def report(
    sources: Annotated[list[Path], typer.Argument(help="Run folders and claims folders.")],
    out: Annotated[
        Path, typer.Option(help="The page to write.", callback=paths.file_to_write)
    ] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for its charts as PNG and SVG.", metavar="DIR")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs and claims.

    Example: fedtaper report runs/case3 reproduced --out report.html
    """
    page = write_report(sources, out, figures=figures)
    give(report=page)
    say(f"Written: {page}")
    if figures is not None:
        say(f"Figures: {figures}")


def _coloured(verdict: str) -> Text:
    return Text(verdict, style="green" if verdict == "reproduced" else "yellow")
