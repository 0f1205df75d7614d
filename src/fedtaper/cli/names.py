"""Runs and files of federations, with their sites' names in place of client 0, client 1, ..."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedtaper.core.errors import quietly
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.show.labels import clients
from fedtaper.storage.config import read_toml
from fedtaper.storage.store import SITES, load


def load_run(folder: Path) -> Run:
    """The run in a folder."""
    run = load(folder)
    if not (folder / SITES).is_file():
        return run
    return replace(run, experiment=_named(run.experiment, clients(run)))


def read_file(file: Path) -> Experiment:
    """The experiment of a TOML file."""
    e = read_toml(file)
    table = tomllib.loads(file.read_text(encoding="utf-8")).get("federation", {})
    return _named(e, table.get("sites", ()) if isinstance(table, dict) else ())


def _named(e: Experiment, names: Sequence[str]) -> Experiment:
    if e.names is not None or len(names) != e.num_clients:
        return e
    with quietly():
        return replace(e, names=tuple(map(str, names)))
