"""The server of a federation: the run over a grid of sites, its events and its audit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.core.memory import give_memory_back
from fedtaper.deploy.progress import Progress, print_line
from fedtaper.deploy.sites import site_files
from fedtaper.deploy.watch import Watch
from fedtaper.engines import KEEP_DIM
from fedtaper.engines.flower.roster import Roster, Site
from fedtaper.engines.flower.rounds import GridEngine
from fedtaper.engines.flower.sizes import check_samples
from fedtaper.engines.flower.source import Source
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.simulation.drive import run as drive
from fedtaper.storage import store
from fedtaper.storage.loading import EVENTS


def make_server_app(
    find: Callable[[Context], Source], settings: Callable[[Context], dict[str, Any]]
) -> ServerApp:
    """A ServerApp that runs the experiment; ``settings`` gives the arguments of :func:`serve`.

    An unfinished run in the run folder is continued from its last complete round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        give_memory_back()
        words = settings(context)
        try:
            serve(grid, find(context), **words)
        except BaseException as trouble:
            Progress(words["out"]).stopped(trouble)
            raise

    return app


def serve(
    grid: Grid,
    source: Source,
    out: Path | None,
    nodes: dict[str, str] | None = None,
    say: Callable[[str], None] = print_line,
    **how: Any,
) -> Run:
    """Make the whole run over a grid of sites; ``nodes`` binds sites to node ids.

    ``say`` gets each line about the progress; rounds only if no progress bar shows them.
    """
    federation = source.federation
    if nodes:
        federation = replace(federation, nodes=federation.nodes | nodes)
    if out is not None:
        store.prepare(out, resume=True)
        if store.is_complete(out):
            raise FedtaperError(f"{out} holds a finished run: name another folder")
    how.setdefault("progress", False)
    progress = Progress(out, say=say, bar=how["progress"] is not False)
    roster = Roster(grid, federation, event_log(out, say))
    needed = len(federation.sites) if federation.task else federation.enough
    experiment = _experiment(source, roster.wait(federation.wait, needed, progress))
    saved = store.load_checkpoint(out) if out is not None else None
    watch = Watch(experiment, federation.sites, roster.tell, saved)
    progress.rounds = experiment.rounds

    def seen(k: int, norms: Any, updates: Any, values: dict[str, float]) -> None:
        if federation.buffer is None:
            watch(k, norms, updates)
        progress.round(k + 1, values)

    how.setdefault("updates", experiment.problem.dim <= KEEP_DIM)  # what an audit sees best
    earlier = None if saved is None else saved["norms"][0]
    engine = GridEngine(grid, federation, roster, seen, earlier, watch.follow)
    how["also"] = lambda run: site_files(run, federation)
    return drive(experiment, engine=engine, out=out, resume=out is not None, **how)


def event_log(out: Path | None, say: Callable[[str], None]) -> Callable[..., None]:
    """A function that reports what went wrong: one line in the run folder, and in the log."""

    def tell(round_: int, site: str, kind: str, why: str) -> None:
        say(f"round {round_} {site or 'server'} {kind}: {why}")
        if out is not None:
            entry = {"round": round_, "site": site, "kind": kind, "why": why}
            entry["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            try:
                with (out / EVENTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
            except OSError as trouble:
                where = out / EVENTS
                raise FedtaperError(f"{where} cannot be written: {one_line(trouble)}") from None

    return tell


def _experiment(source: Source, here: dict[str, Site]) -> Experiment:
    """The experiment with what the sites reported: sizes, and their own schedules."""
    sites = [here.get(name) for name in source.federation.sites]
    check_samples(
        source.federation, {site.name: site.samples for site in sites if site and site.samples}
    )
    e = source.experiment([site.samples or 0 if site else 0 for site in sites])
    pairs = zip(sites, e.schedules, strict=True)
    declared = tuple(site.schedule if site and site.schedule else sent for site, sent in pairs)
    return replace(e, schedules=declared)
