"""A federation file: an experiment's TOML with a table [federation]."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.engines.flower.federation import Federation, numbered
from fedtaper.experiment import Experiment
from fedtaper.storage import durable
from fedtaper.storage.config import from_toml, log_of
from fedtaper.storage.logs import Log


@dataclass(frozen=True)
class FederationFile:
    """A federation file as read: the text of its experiment, and who takes part."""

    text: str
    folder: Path
    federation: Federation
    log: Log | None = None

    def experiment(self, problem: Any = None) -> Experiment:
        """The experiment; ``problem`` if that comes from a task."""
        return from_toml(self.text, self.folder, problem)


def read_federation(path: str | Path, sites: int | None = None) -> FederationFile:
    """A federation file: an experiment's TOML with a table [federation].

    ``sites`` is the number of sites if the file has no such table.
    """
    path = Path(path)
    try:
        text = durable.text_of(path)
        tree = tomllib.loads(text)
    except FileNotFoundError:
        raise FedtaperError(f"there is no file {path}") from None
    except FedtaperError:
        raise
    except (OSError, ValueError, RecursionError) as trouble:
        raise FedtaperError(f"{path} cannot be read: {trouble}") from None
    try:
        found = _federation(tree, text, path.parent, sites)
        return FederationFile(text, path.parent, found, log_of(tree))
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None


def _federation(tree: dict[str, Any], text: str, folder: Path, sites: int | None) -> Federation:
    table = tree.get("federation", {})
    known = [f.name for f in fields(Federation)]
    if not isinstance(table, dict):
        raise FedtaperError("[federation] must be a table")
    for word in table:
        if word not in known:
            raise FedtaperError(
                f"unknown key {word!r} in [federation]{nearest(word, known)}"
                f" (known: {', '.join(known)})"
            )
    if "sites" not in table:
        count = sites
        if count is None and "task" not in table:
            count = from_toml(text, folder).num_clients
        if count is None:
            raise FedtaperError('[federation] needs sites, such as sites = ["north", "south"]')
        table = table | {"sites": numbered(count)}
    made = Federation(**table)
    if made.task is None:
        clients = from_toml(text, folder).num_clients
        if clients != len(made.sites):
            raise FedtaperError(
                f"{len(made.sites)} sites for {clients} clients: the numbers must match"
            )
    return made
