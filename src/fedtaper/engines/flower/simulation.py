"""Flower's simulation on this machine: sites are processes of a local Ray."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.engines.flower.federation import Federation, numbered
from fedtaper.experiment import Experiment, Run
from fedtaper.storage import store
from fedtaper.storage.logs import Log

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# The processes that play the sites copy models around in every message. Getting the memory for
# that from the system anew each time took a third of a round.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


def run(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    thin: int | None = None,
    updates: bool = False,
    log: Log | None = None,
) -> Run:
    """An experiment on simulated Flower sites, one a client."""
    _flower()
    if resume and out is not None and store.is_complete(out):
        return store.load(out, experiment.problem)
    federation = federation or Federation(numbered(experiment.num_clients))
    with tempfile.TemporaryDirectory(prefix="fedtaper-") as folder:
        from fedtaper.engines.flower.source import PickledSource

        source = PickledSource(_pickled(experiment, federation, Path(folder)))
        return _simulated(source, out, resume, thin=thin, updates=updates, log=log)


def run_file(
    file: str | Path,
    *,
    out: str | Path,
    resume: bool = False,
    thin: int | None = None,
    updates: bool = False,
    log: Log | None = None,
) -> Run:
    """A federation file on simulated Flower sites; its task is imported from the app around it."""
    _flower()
    from fedtaper.deploy.app import app_of
    from fedtaper.engines.flower.source import FileSource

    path = Path(file).resolve()
    if resume and store.is_complete(out):
        return store.load(out)
    root = app_of(path) if path.is_file() else None
    source = FileSource(str(path), str(root or path.parent))
    return _simulated(source, out, resume, thin=thin, updates=updates, log=log)


def _simulated(source: Any, out: str | Path | None, resume: bool, **how: Any) -> Run:
    from fedtaper.engines.flower.apps import make_client_app, make_server_app

    count = len(source.federation.sites)
    place = None if out is None else store.prepare(out, resume=resume)
    made: list[Run] = []
    server = make_server_app(lambda _: source, lambda _: place, made.append, progress=False, **how)
    with _quiet():
        _flower()(
            server_app=server,
            client_app=make_client_app(lambda _: source),
            num_supernodes=count,
            backend_config=_backend(count),
        )
    return made[0]


def _pickled(experiment: Experiment, federation: Federation, folder: Path) -> str:
    from ray import cloudpickle

    path = folder / "experiment"
    path.write_bytes(cloudpickle.dumps((experiment, federation)))
    return str(path)


def _backend(count: int) -> Any:
    used = min(os.cpu_count() or 1, count)
    start = {"num_cpus": used, "include_dashboard": False, "log_to_driver": False}
    return {"init_args": start, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def _flower() -> Any:
    os.environ.update({k: v for k, v in QUIET.items() if k not in os.environ})
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise FedtaperError(
            'the Flower engine is not installed: pip install "fedtaper[flower]"'
        ) from None
    return run_simulation


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's own log down to errors, and its processes' memory kept, for as long as it runs."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    added = {k: v for k, v in KEEP_MEMORY.items() if k not in os.environ}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            os.environ.update(added)
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
