"""The experiment and the federation from a file in the app, at the server and at every site."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy.federation_file import FederationFile, read_federation
from fedtaper.engines.flower.federation import Federation
from fedtaper.experiment import Experiment
from fedtaper.storage.logs import Log


@dataclass(frozen=True)
class FileSource:
    """A federation file: a path, or "package:file.toml" for one that travels with the app.

    ``root`` is the app's folder, if its modules are not installed; ``memory`` is a folder for
    what simulated sites remember.
    """

    name: str
    root: str = ""
    memory: str = ""

    @cached_property
    def file(self) -> FederationFile:
        """The file, read once."""
        package, colon, name = self.name.partition(":")
        if not colon:
            return read_federation(self.name)
        try:
            folder = importlib.resources.files(package)
        except ImportError as trouble:
            raise FedtaperError(f"federation = {self.name!r}: {trouble}") from None
        return read_federation(Path(str(folder)) / name)

    @property
    def federation(self) -> Federation:
        """Who takes part."""
        return self.file.federation

    @property
    def log(self) -> Log | None:
        """Where else the numbers of each round go."""
        return self.file.log

    @cached_property
    def _task(self) -> Any:
        if self.root and self.root not in sys.path:
            sys.path.insert(0, self.root)
        return self.federation.load_task()

    @lru_cache(maxsize=1)  # noqa: B019 (sources live as long as their process)
    def _data(self, site: str) -> Any:
        return self._task.data(site)

    def samples(self, site: str) -> int | None:
        """How many samples the site holds, if only the site knows."""
        if self._task is None:
            return None
        from fedtaper.problems.custom import Custom

        return int(Custom(self._task.loss, self._task.init, [self._data(site)]).sizes[0])

    def experiment(self, sizes: Sequence[int], client: int | None = None) -> Experiment:
        """The experiment as the server (no client) or as one site sees it."""
        if self._task is None:
            return self.file.experiment()
        own = {} if client is None else {client: self._data(self.federation.sites[client])}
        return self.file.experiment(self._task.problem(sizes, own))

    def folder(self, site: str) -> Path | None:
        """Where a simulated site keeps its memory."""
        return Path(self.memory) / site if self.memory else None
