"""A run's numbers to TensorBoard or MLflow while it runs, one round at a time.

The run folder has all of it and more; this is for watching many runs in one place. It works the
same on every engine: :func:`fedtaper.run` reports each round when it is complete.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, FedtaperWarning, one_line
from fedtaper.experiment import Experiment

Row = tuple[int, dict[str, float]]  # a round, and its numbers by name
Note = Callable[[Sequence[Row]], None]
MARK = "fedtaper.mark"  # the tag by which a resumed run finds itself in MLflow
METRICS_AT_ONCE = 1000  # numbers that MLflow takes at once


@dataclass(frozen=True)
class Log:
    """Where a run's numbers go besides its folder: the table [log] of a TOML file.

    Args:
        tensorboard: a folder for TensorBoard's event file.
        mlflow: a tracking address of MLflow, such as "http://host:5000" or
            "sqlite:///mlflow.db"; the run appears there in the experiment "fedtaper".

    >>> Log(tensorboard="logs/case3")
    Log(tensorboard='logs/case3', mlflow=None)
    """

    tensorboard: str | None = None
    mlflow: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (isinstance(value, str) and value):
                raise FedtaperError(f"[log]: {name} must be a text, not {value!r:.80}")

    @contextmanager
    def opened(
        self, e: Experiment, out: str | Path | None, done: int
    ) -> Iterator[Callable[[Callable[[], Sequence[Row]]], None]]:
        """Opens the logs: yields what takes new rounds; ``done`` were made before a resume."""
        with ExitStack() as stack:
            notes: list[Note] = []
            if self.tensorboard is not None:
                notes.append(stack.enter_context(_tensorboard(self.tensorboard, done)))
            if self.mlflow is not None:
                notes.append(stack.enter_context(_mlflow(self.mlflow, e, out, done)))

            def note(rows: Callable[[], Sequence[Row]]) -> None:
                found = rows() if notes else ()  # stores refuse NaN, and no plot shows it
                shown = [(k, {n: x for n, x in r.items() if math.isfinite(x)}) for k, r in found]
                for one in tuple(notes):
                    try:
                        one(shown)
                    except Exception as trouble:  # a log is not worth a run
                        notes.remove(one)
                        why = one_line(trouble)
                        warnings.warn(f"logging stopped: {why}", FedtaperWarning, stacklevel=2)

            yield note


@contextmanager
def _tensorboard(folder: str, done: int) -> Iterator[Note]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise FedtaperError(_missing("tensorboard")) from None
    try:
        file = EventFileWriter(folder)
    except OSError as trouble:
        raise FedtaperError(f"{folder} is not writable: {trouble.strerror}") from None
    if done:  # what an earlier file has from the next round on is void
        start = SessionLog(status=SessionLog.START)
        file.add_event(Event(wall_time=time.time(), step=done + 1, session_log=start))

    def note(rows: Sequence[Row]) -> None:
        for step, numbers in rows:
            values = [Summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]
            file.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        file.flush()

    try:
        yield note
    finally:
        file.close()


@contextmanager
def _mlflow(address: str, e: Experiment, out: str | Path | None, done: int) -> Iterator[Note]:
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise FedtaperError(_missing("mlflow")) from None
    try:
        client = MlflowClient(tracking_uri=address)
        run_id = _mlflow_run(client, out, resumed=bool(done))
        if not done:
            params = [Param(name, value) for name, value in settings(e).items()]
            client.log_batch(run_id, params=params)
    except MlflowException as trouble:
        raise FedtaperError(f"MLflow at {address}: {str(trouble)[:200]}") from None

    def note(rows: Sequence[Row]) -> None:
        now = int(time.time() * 1000)
        every = [Metric(k, x, now, step) for step, numbers in rows for k, x in numbers.items()]
        for low in range(0, len(every), METRICS_AT_ONCE):
            client.log_batch(run_id, metrics=every[low : low + METRICS_AT_ONCE])

    status = "FAILED"
    try:
        yield note
        status = "FINISHED"
    finally:
        with suppress(MlflowException):
            client.set_terminated(run_id, status)


def _mlflow_run(client: Any, out: str | Path | None, resumed: bool) -> str:
    """The id of a new run, or that of the resumed run in the same folder."""
    found = client.get_experiment_by_name("fedtaper")
    number = found.experiment_id if found else client.create_experiment("fedtaper")
    if out is None:
        return str(client.create_run(number).info.run_id)
    folder = Path(out).resolve()
    mark = hashlib.sha256(str(folder).encode()).hexdigest()
    for run in client.search_runs([number], f"tags.`{MARK}` = '{mark}'") if resumed else ():
        return str(run.info.run_id)
    tags = {MARK: mark, "fedtaper.folder": str(folder)}
    return str(client.create_run(number, run_name=folder.name, tags=tags).info.run_id)


def settings(e: Experiment) -> dict[str, str]:
    """What an experiment was, in a few words: rules, rounds, each group's step sizes."""
    found = {name: getattr(e, name) for name in ("rounds", "local_steps", "local_epochs")}
    found |= {name: getattr(e, name) for name in ("batch_size", "clock", "seed")}
    found |= {"local": e.local, "server": e.server, "clients": e.num_clients}
    found |= {f"step size of {group.who}": group.taper for group in e.groups()}
    return {_plain(name): str(value)[:500] for name, value in found.items() if value is not None}


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-./ " else " " for c in name)[:200]


def _missing(extra: str) -> str:
    return f'logging to {extra} needs a package: pip install "fedtaper[{extra}]"'
