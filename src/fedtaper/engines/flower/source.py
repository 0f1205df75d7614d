"""Where a party finds the experiment and the federation: what a site's app asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from fedtaper.engines.flower.federation import Federation
from fedtaper.experiment import Experiment


class Source(Protocol):
    """The experiment as the server or as one site sees it."""

    def __hash__(self) -> int:
        """A hash by content: sources are cached by it."""
        ...

    @property
    def federation(self) -> Federation:
        """Who takes part."""
        ...

    def samples(self, site: str) -> int | None:
        """How many samples the site holds, if only the site knows."""
        ...

    def experiment(self, sizes: Sequence[int], client: int | None = None) -> Experiment:
        """The experiment; with ``client`` that of one site, with its own data."""
        ...

    def folder(self, site: str) -> Path | None:
        """Where a simulated site keeps its memory; a real site names its own folder."""
        ...


@dataclass(frozen=True)
class PickledSource:
    """An experiment object in a temporary file of this machine, for Flower's simulation.

    Simulated sites are processes that get the app again with every message. It must be small,
    so the experiment, which may hold data, is read from the file once.
    """

    path: str

    @classmethod
    def write(cls, experiment: Experiment, federation: Federation, folder: Path) -> PickledSource:
        """Write both into a file of that folder."""
        from ray import cloudpickle

        path = folder / "experiment"
        path.write_bytes(cloudpickle.dumps((experiment, federation)))
        return cls(str(path))

    def folder(self, site: str) -> Path:
        """Beside the file, for as long as the simulation lasts."""
        return Path(self.path).parent / "memory" / site

    @cached_property
    def _loaded(self) -> tuple[Experiment, Federation]:
        return _unpickled(self.path)

    @property
    def federation(self) -> Federation:
        """Who takes part."""
        return self._loaded[1]

    def samples(self, site: str) -> int | None:
        """None: the sizes are known from the experiment."""
        return None

    def experiment(self, sizes: Sequence[int], client: int | None = None) -> Experiment:
        """The experiment, the same for all."""
        return self._loaded[0]


@lru_cache(maxsize=1)
def _unpickled(path: str) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(Path(path).read_bytes())
