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

from fedtaper import store
from fedtaper.errors import FedtaperError
from fedtaper.experiment import Experiment, Run
from fedtaper.federation import Federation, numbered

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    thin: int | None = None,
    cores: int | None = None,
) -> Run:
    """An experiment on simulated Flower sites, one a client."""
    if out is not None:
        if resume and store.is_complete(out):
            return store.load(out, experiment.problem)
        store.prepare(out, resume=resume)
    flower = _flower()
    federation = federation or Federation(numbered(experiment.num_clients))
    made: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="fedtaper-") as folder, _quiet():
        from fedtaper.engines.flower.apps import make_client_app, make_server_app
        from fedtaper.engines.flower.source import PickledSource

        source = PickledSource(_pickled(experiment, federation, Path(folder)))
        place = None if out is None else Path(out)
        server = make_server_app(
            lambda _: source, lambda _: place, made.append, thin=thin, progress=False
        )
        flower(
            server_app=server,
            client_app=make_client_app(lambda _: source),
            num_supernodes=experiment.num_clients,
            backend_config=_backend(experiment, cores),
        )
    return made[0]


def _pickled(experiment: Experiment, federation: Federation, folder: Path) -> str:
    from ray import cloudpickle

    path = folder / "experiment"
    path.write_bytes(cloudpickle.dumps((experiment, federation)))
    return str(path)


def _backend(experiment: Experiment, cores: int | None) -> Any:
    used = min(cores or os.cpu_count() or 1, experiment.num_clients)
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
    """Flower's own log down to errors, for as long as it runs."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
