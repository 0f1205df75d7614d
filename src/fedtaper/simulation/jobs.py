"""Many runs at once: over the cores of this machine or of a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtaper.core.checks import as_path, check_number, check_type, check_whole, taken
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.simulation.drive import run as simulate
from fedtaper.storage import store

LOCAL = "local"
# one thread a run: as many runs go side by side as there are cores
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "FEDTAPER_WORKERS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def run_many(
    experiments: Mapping[str, Experiment] | Iterable[Experiment],
    *,
    out: str | Path | None = None,
    ray: str | None = None,
    retries: int = 3,
    cores: float = 1,
    gpus: float = 0,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> list[Run]:
    """Run experiments, one after another or spread over a Ray cluster.

    The results do not depend on where or in which order they run: every draw is determined by
    seed, client and round. If a worker dies, its unfinished runs start again elsewhere; with
    ``out``, a stopped study continues run by run.

    Args:
        experiments: what to run, by name or in order.
        out: a folder to store them in, a run folder each (by name, or 0, 1, ...).
        ray: None runs here, one after another; "local" over the cores of this machine; an
            address ("auto", "ray://head:10001") on a cluster.
        retries: how often a run is started again after its worker died.
        cores: how many cores one run takes, so that Ray runs as many as fit.
        gpus: the same for GPUs; a fraction lets runs share one.
        say: called with a line when each run is done.
        how: further arguments of :func:`fedtaper.run`, such as seeds or engine.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=60)
    >>> base = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=3, local_steps=2)
    >>> [run.experiment.seed for run in run_many([base, base])]
    [0, 0]
    """
    named = _named(experiments)
    check_whole("retries", retries, low=0)
    for what, value in (("cores", cores), ("gpus", gpus)):
        check_number(what, value, low=0)
    if ray is not None:
        check_type("ray", ray, str)
    base = None if out is None else as_path(out)
    folders = {name: None if base is None else base / name for name in named}
    here = ray is None  # then a run writes its own folder; elsewhere there may be another disk
    done: dict[str, Run] = {}
    for name, folder in folders.items():
        if folder is not None and store.is_complete(folder):
            done[name] = simulate(named[name], out=folder, resume=True, **how)
            say(f"{name}: found")
    left = {name: e for name, e in named.items() if name not in done}
    jobs = {
        name: (_simulated, (e, how | ({"out": folders[name]} if here else {})))
        for name, e in left.items()
    }
    resources = {"num_cpus": cores, "num_gpus": gpus, "max_retries": retries}
    failed = {}
    for name, found in finished(jobs, ray, resources):
        if isinstance(found, Exception):
            failed[name] = found
            continue
        done[name] = found if here or folders[name] is None else _stored(found, folders[name])
        say(f"{name}: done ({len(done)} of {len(named)})")
    if failed:
        told = "; ".join(f"{name}: {problem}" for name, problem in failed.items())
        raise FedtaperError(f"{len(failed)} of {len(named)} runs failed: {told}")
    return [done[name] for name in named]


def _stored(run: Run, folder: Path | None) -> Run:
    assert folder is not None
    with store.opened(folder, resume=True):
        return store.save(run, folder)


Job = tuple[Callable[..., Any], tuple[Any, ...]]


def finished(
    jobs: Mapping[str, Job], ray: str | None, resources: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Each job's result, or the exception it ended with, as they come."""
    if ray is None:
        for name, (work, words) in jobs.items():
            try:
                yield name, work(*words)
            except Exception as problem:
                yield name, problem
        return
    with cluster(ray) as ray_module:
        waiting = {
            ray_module.remote(work).options(**resources).remote(*words): name
            for name, (work, words) in jobs.items()
        }
        while waiting:
            ready, _ = ray_module.wait(list(waiting), num_returns=1)
            for reference in ready:
                name = waiting.pop(reference)
                try:
                    yield name, ray_module.get(reference)
                except ray_module.exceptions.RayTaskError as problem:
                    yield name, problem.cause if problem.cause is not None else problem
                except ray_module.exceptions.RayError as problem:
                    yield name, problem


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Ray, connected; a local one is started and shut down again."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise FedtaperError('Ray is not installed: pip install "fedtaper[ray]"') from None
    where: dict[str, Any] = {} if address == LOCAL else {"address": str(address)}
    if address == LOCAL:
        where = {"num_cpus": os.cpu_count(), "include_dashboard": False}
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(
                **where,
                runtime_env={"env_vars": ONE_CORE},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError, RuntimeError) as problem:
            raise FedtaperError(f"no Ray at {address}: {problem}") from None
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _simulated(experiment: Experiment, how: dict[str, Any]) -> Run:
    resume = how.get("out") is not None
    return simulate(experiment, resume=resume, **{"progress": False, **how})


def _named(experiments: Mapping[str, Experiment] | Iterable[Experiment]) -> dict[str, Experiment]:
    try:
        if isinstance(experiments, Mapping):
            found = dict(experiments)
        else:
            found = {str(i): e for i, e in enumerate(taken("experiments", experiments))}
    except TypeError:
        raise FedtaperError(f"run_many needs experiments, not {experiments!r}") from None
    for name in found:
        plain = isinstance(name, str) and Path(name).name == name and "\0" not in name
        if not plain or name in ("", ".", ".."):
            raise FedtaperError(
                f"{name!r} cannot name a run: the name must also be a folder's name"
            )
    return found
