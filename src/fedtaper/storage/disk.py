"""How a running run is stored: its folder, its checkpoints, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.storage import store
from fedtaper.storage.fingerprint import Fingerprint, fingerprint
from fedtaper.storage.resuming import standing
from fedtaper.storage.written import to_toml

Also = Callable[[Run], Mapping[str, str]]
RECORD = ("norms", "round", "w", "updates")  # of a checkpoint; the rest is where the run stands


class Disk:
    """The folder of a running run, or nothing at all if the run is not stored."""

    def __init__(
        self,
        folder: Path | None,
        experiment: Experiment,
        keep_data: bool = False,
        also: Also | None = None,
        start: str = "",
    ) -> None:
        self.folder, self.e, self.keep_data, self.also = folder, experiment, keep_data, also
        self.known: Fingerprint | None = None if folder is None else fingerprint(experiment)
        if self.known is not None and start:  # of a warm start: another model, another run
            self.known["settings"]["start"] = start

    def standing(self, seeds: NDArray[np.int64], many: bool) -> Run | dict[str, Any] | None:
        """What a resume finds, see :func:`fedtaper.storage.resuming.standing`."""
        if self.folder is None or self.known is None:
            return None
        found = standing(self.folder, self.e, seeds, many, self.known)
        if isinstance(found, Run):
            store.finished(self.folder)  # a fault may have left its checkpoints
        return found

    def checkpoints(self) -> store.Checkpoints:
        """A writer of checkpoints."""
        return store.Checkpoints(self.folder, self.known)

    def describe(self) -> None:
        """Write the settings, unless they are there: they identify an unfinished run."""
        if self.folder is not None and not (self.folder / store.CONFIG).is_file():
            store.write_text(self.folder / store.CONFIG, to_toml(self.e, stored=True))

    def save(self, run: Run, last: dict[str, Any]) -> Run:
        """Store a finished run; ``last`` is what a checkpoint after its last round would hold."""
        if self.folder is None:
            return run
        more = self.also(run) if self.also is not None else None
        state = {k: v for k, v in last.items() if k not in RECORD and not k.startswith("metric_")}
        if (self.folder / store.ARRAYS).is_file():  # more rounds: what was stored stays until now
            store.save_checkpoint(self.folder, last, self.known)
        try:
            return store.save(run, self.folder, state, self.keep_data, more, self.known)
        except BaseException:
            with suppress(FedtaperError, OSError):  # a full disk; else nothing is lost
                store.save_checkpoint(self.folder, last, self.known)
            raise


@contextmanager
def opened(
    out: str | Path | None,
    resume: bool,
    experiment: Experiment,
    keep_data: bool = False,
    also: Also | None = None,
    start: str = "",
) -> Iterator[Disk]:
    """The folder of a run, with this process as its only writer."""
    if out is None:
        yield Disk(None, experiment)
        return
    with store.opened(out, resume) as folder:
        yield Disk(folder, experiment, keep_data, also, start)
