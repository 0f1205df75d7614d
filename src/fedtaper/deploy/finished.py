"""A finished federation run that is asked for again: it must be the one that the file describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.engines.flower.source import Source
from fedtaper.results import Run
from fedtaper.storage import store
from fedtaper.storage.fingerprint import fingerprint
from fedtaper.storage.loading import stored_fingerprint
from fedtaper.storage.resuming import compare


def finished(source: Source, out: str | Path) -> Run:
    """The finished run in a folder; an error that names the differences if it is another.

    Sizes, and schedules if sites may have their own, are what the sites reported then.
    """
    run = store.load(out)
    e = source.experiment(run.experiment.problem.sizes.tolist())
    if source.federation.own_schedules:
        e = replace(e, schedules=run.experiment.schedules)
    compare(Path(out), stored_fingerprint(Path(out), e), fingerprint(e))
    if e.rounds > run.experiment.rounds:
        raise FedtaperError(
            f"{out} holds a finished run of {run.experiment.rounds} rounds, and sites keep nothing "
            "of a finished run to continue from: name another folder"
        )
    return run
