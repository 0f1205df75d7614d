"""Runs and files of federations, with their sites' names in place of client 0, client 1, ..."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, quietly
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.show.labels import clients
from fedtaper.storage.config import read_toml
from fedtaper.storage.store import CONFIG, SITES, load


def load_run(folder: Path, own: bool = False) -> Run:
    """The run in a folder.

    With ``own``, a problem of the user's own code is made again by the function that the settings
    name; it must have the same data. Without, no function is called.
    """
    run = load(folder)
    if (folder / SITES).is_file():
        return replace(run, experiment=_named(run.experiment, clients(run)))
    if not own or run.experiment.problem.kind != "recorded":
        return run
    with quietly():
        problem = read_toml(folder / CONFIG).problem
    return run if problem.kind == "recorded" else load(folder, problem=problem)


def read_file(file: Path) -> Experiment:
    """The experiment of a TOML file."""
    table = federation_of(file)
    if "task" in table:
        raise FedtaperError(
            f"{file}: only the sites have the data of the task {table['task']}, so look at a run: "
            f"fedtaper run {file} --engine flower"
        )
    sites = table.get("sites")
    return _named(read_toml(file), sites if isinstance(sites, list) else ())


def federation_of(file: Path) -> dict[str, Any]:
    """The table [federation] of a TOML file, if it can be read and has one."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("federation", {})
    except (OSError, ValueError):
        return {}  # whoever reads the experiment says what is wrong
    return table if isinstance(table, dict) else {}


def _named(e: Experiment, names: Sequence[Any]) -> Experiment:
    good = all(isinstance(name, str) and name for name in names)
    if e.names is not None or not good or not len(set(names)) == len(names) == e.num_clients:
        return e
    with quietly():
        return replace(e, names=tuple(names))
