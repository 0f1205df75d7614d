"""Flower's simulation on this machine, in the background: sites are processes of a local Ray."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.core.memory import KEPT, KEPT_BLOCK

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # behind everything else on a busy machine a site looks lost
}
# The processes that play the sites copy models around in every message. Getting the memory for
# that from the system anew each time took a third of a round.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(KEPT), "MALLOC_MMAP_THRESHOLD_": str(KEPT_BLOCK)}
LOOK = 0.5  # seconds between two looks whether the program is at its end
END_SECONDS = 60.0  # how long Flower may take to end


class Simulation:
    """Simulated sites, and the grid that reaches them, while this context is open.

    Flower wants to be the caller: it runs a ServerApp and gives it the grid. Ours, in its own
    thread, passes the grid on and waits until it is no longer needed, so that the code that
    opened the simulation drives the rounds.
    """

    def __init__(self, client_app: Any, count: int) -> None:
        self.client_app, self.count = client_app, count
        self.grids: queue.Queue[Any] = queue.Queue()
        self.done = threading.Event()
        self.trouble: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="flower", daemon=True)
        self.settings = ExitStack()

    def __enter__(self) -> Any:
        check()
        self.settings.enter_context(_quiet())
        self.thread.start()
        try:
            grid = self.grids.get()
        except BaseException:
            self.close()
            raise
        if grid is None:
            self.close()
            raise FedtaperError(f"Flower's simulation did not start: {self.trouble}")
        return LiveGrid(grid, self)

    def __exit__(self, *trouble: object) -> None:
        self.close()

    def close(self) -> None:
        """End the simulation and its processes. It may be closed twice."""
        self.done.set()
        try:
            if self.thread.is_alive():
                self.thread.join(END_SECONDS)
        finally:
            self.settings.close()

    def _run(self) -> None:
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        app = ServerApp()

        @app.main()
        def main(grid: Any, context: Any) -> None:
            self.grids.put(grid)
            while not self.done.wait(LOOK):
                if not threading.main_thread().is_alive():
                    return  # nobody closed it, and the program is waiting for this thread

        try:
            run_simulation(
                server_app=app,
                client_app=self.client_app,
                num_supernodes=self.count,
                backend_config=_backend(self.count),
            )
        except BaseException as trouble:  # reported where the simulation is used
            self.trouble = trouble
        finally:
            self.done.set()
            self.grids.put(None)


class LiveGrid:
    """What the rounds use of Flower's grid, for as long as the simulation behind it lives."""

    def __init__(self, grid: Any, simulation: Simulation) -> None:
        self.grid, self.simulation = grid, simulation

    def get_node_ids(self) -> Any:
        """The sites' nodes."""
        if not self.simulation.thread.is_alive():
            why = self.simulation.trouble or "it was closed"
            raise FedtaperError(f"Flower's simulation has ended: {why}")
        return self.grid.get_node_ids()

    def push_messages(self, messages: Any) -> Any:
        """Send; the messages' numbers."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        """The answers that have arrived so far."""
        return self.grid.pull_messages(message_ids)


def check() -> None:
    """Raise if Flower or Ray is not installed."""
    os.environ.update({k: v for k, v in QUIET.items() if k not in os.environ})
    try:
        import flwr.simulation  # noqa: F401
        import ray  # noqa: F401
    except ImportError:
        raise FedtaperError(
            'the Flower engine is not installed: pip install "fedtaper[flower]"'
        ) from None


def _backend(count: int) -> Any:
    used = min(os.cpu_count() or 1, count)
    start: dict[str, Any] = {"num_cpus": used, "include_dashboard": False, "log_to_driver": False}
    start["logging_level"] = logging.ERROR
    return {"init_args": start, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


@contextmanager
def _quiet() -> Iterator[None]:
    """While it runs: only errors in Flower's own log, and its processes' memory is kept."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    added = {k: v for k, v in KEEP_MEMORY.items() if k not in os.environ}
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
