"""A federation file on Flower's simulation: ``fedtaper run FILE --engine flower``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtaper.deploy.app import app_of
from fedtaper.deploy.finished import finished
from fedtaper.deploy.progress import print_line
from fedtaper.deploy.source import FileSource
from fedtaper.engines.flower.simulation import Simulation, check
from fedtaper.results import Run
from fedtaper.storage import store

MEMORY = "memory"  # in the run folder: what simulated sites remember until the run is whole


def run_file(
    file: str | Path,
    *,
    out: str | Path,
    resume: bool = False,
    say: Callable[[str], None] = print_line,
    **how: Any,
) -> Run:
    """Run a federation file on simulated Flower sites; its task is imported from its app.

    ``say`` gets each line about the progress.
    """
    check()
    from fedtaper.deploy.server import serve
    from fedtaper.engines.flower.app import make_client_app

    path = Path(file).resolve()
    root = app_of(path) if path.is_file() else None
    memory = Path(out).resolve() / MEMORY
    source = FileSource(str(path), str(root or path.parent), str(memory))
    if resume and store.is_complete(out):
        return finished(source, out)
    count = len(source.federation.sites)
    place = store.prepare(out, resume=resume)
    with Simulation(make_client_app(lambda _: source), count) as grid:
        made = serve(grid, source, place, say=say, **how)
    shutil.rmtree(memory, ignore_errors=True)
    return made
