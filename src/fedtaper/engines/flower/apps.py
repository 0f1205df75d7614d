"""The two Flower apps, ready to be named in an app's pyproject.toml.

[tool.flwr.app.components]
serverapp = "fedtaper.engines.flower.apps:server_app"
clientapp = "fedtaper.engines.flower.apps:client_app"

[tool.flwr.app.config]
federation = "my_federation:federation.toml"
out = "runs/my-federation"
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedtaper.core.errors import FedtaperError
from fedtaper.engines import KEEP_DIM
from fedtaper.engines.flower import client
from fedtaper.engines.flower.roster import Roster, Site
from fedtaper.engines.flower.rounds import Rounds, event_log
from fedtaper.engines.flower.sites import write_sites
from fedtaper.engines.flower.source import FileSource, Source
from fedtaper.engines.flower.watch import Watch
from fedtaper.experiment import Experiment, Run
from fedtaper.simulation.drive import run as simulate
from fedtaper.storage import store

M_MMAP_THRESHOLD = -3  # of mallopt, from malloc.h
LARGE_BLOCK = 2**16


def make_client_app(
    find: Callable[[Context], Source], mods: Sequence[Any] | None = None
) -> ClientApp:
    """A ClientApp whose experiment ``find`` gives; ``mods`` as in Flower (see privacy.py)."""
    app = ClientApp(mods=list(mods or ()))

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return client.describe(message, context, find(context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return client.train(message, context, find(context))

    return app


def make_server_app(
    find: Callable[[Context], Source],
    out: Callable[[Context], Path | None],
    done: Callable[[Run], None] = lambda run: None,
    own_process: bool = False,
    **how: Any,
) -> ServerApp:
    """A ServerApp that runs the experiment and hands the Run to ``done``.

    A run folder that holds an unfinished run is gone on with, from its last whole round. In a
    process of its own it sees to it that memory is given back.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        if own_process:
            give_memory_back()
        done(serve(grid, find(context), out(context), _nodes(context), **how))

    return app


def serve(
    grid: Grid, source: Source, out: Path | None, nodes: dict[str, str] | None = None, **how: Any
) -> Run:
    """The whole run over a grid of sites; ``nodes`` binds sites to node ids."""
    federation = source.federation
    if nodes:
        federation = replace(federation, nodes=federation.nodes | nodes)
    if out is not None:
        store.prepare(out, resume=True)
        if store.is_complete(out):
            raise FedtaperError(f"{out} holds a finished run: name another folder")
    roster = Roster(grid, federation, event_log(out, lambda text: print(text, flush=True)))
    needed = len(federation.sites) if federation.task else federation.enough
    experiment = _experiment(source, roster.wait(federation.wait, needed))
    watch = Watch(experiment, federation.sites, roster.tell)
    watch.catch_up(store.load_checkpoint(out) if out is not None else None)
    how["log"] = how.get("log") or source.log
    how.setdefault("updates", experiment.problem.dim <= KEEP_DIM)  # what an audit sees best
    made = simulate(
        experiment,
        engine=Rounds(grid, federation, roster, None if federation.buffer else watch),
        out=out,
        resume=out is not None,
        **how,
    )
    if out is not None:
        write_sites(made, federation, out)
    return made


def give_memory_back() -> None:
    """Have this process return every large block that it frees.

    The C library keeps blocks up to 32 MiB for later, and what Flower leaves between two
    models is worth two of them. Elsewhere than with glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def _experiment(source: Source, here: dict[str, Site]) -> Experiment:
    """The experiment with what the sites said of themselves: sizes, and schedules of their own."""
    sites = [here.get(name) for name in source.federation.sites]
    e = source.experiment([site.samples or 0 if site else 0 for site in sites])
    pairs = zip(sites, e.schedules, strict=True)  # type: ignore[arg-type]
    declared = tuple(site.schedule if site and site.schedule else sent for site, sent in pairs)
    return replace(e, schedules=declared)


@lru_cache(maxsize=1)
def _file(name: str) -> FileSource:
    return FileSource(name)


def _from_run_config(context: Context) -> FileSource:
    if "federation" not in context.run_config:
        raise FedtaperError('the app\'s config needs federation = "package:file.toml"')
    return _file(str(context.run_config["federation"]))


def _folder(context: Context) -> Path | None:
    name = str(context.run_config.get("out", ""))
    return Path(name).expanduser() if name else None


def _nodes(context: Context) -> dict[str, str]:
    """Sites' node ids, written as site=id,site=id."""
    text = str(context.run_config.get("nodes", ""))
    pairs = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    return {site.strip(): node.strip() for site, _, node in pairs}


server_app = make_server_app(_from_run_config, _folder, own_process=True, progress=False)
client_app = make_client_app(_from_run_config)
