"""``sweep``: one experiment with some of its settings varied, every combination, all seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import whole_list
from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.core.tables import html, plain
from fedtaper.experiment import Experiment
from fedtaper.results import Run, need_pandas
from fedtaper.simulation.jobs import run_many
from fedtaper.storage import store

OF_SCHEDULES = ("c", "delta", "offset", "a")  # set in every client's schedule
PROBLEM = "problem."
TABLE = "sweep.csv"


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a sweep, in the order of its points.

    Attributes:
        points: of each run, the settings that were varied, in words or numbers.
        runs: one Run per point, over all seeds.
    """

    points: tuple[dict[str, Any], ...]
    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        over = ", ".join(self.points[0])
        return f"Sweep({len(self.runs)} runs over {over}, {len(self.runs[0].seeds)} seeds each)"

    def __str__(self) -> str:
        return "\n".join(plain(self.rows()))

    def _repr_html_(self) -> str:
        return html("Sweep: the last round, medians over the seeds", self.rows())

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first: each point's last round, medians over the seeds."""
        names = [n for n in self.runs[0].metrics if n != "seconds"]
        rows = [[*self.points[0], *names]]
        for point, run in zip(self.points, self.runs, strict=True):
            ends = [_middle(run.metrics.get(name)) for name in names]
            rows.append([*(str(v) for v in point.values()), *(f"{v:.4g}" for v in ends)])
        return rows

    def to_frame(self) -> Any:
        """All rounds of all runs as one pandas DataFrame, with a column per varied setting."""
        pandas = need_pandas()
        parts = []
        for point, run in zip(self.points, self.runs, strict=True):
            frame = run.to_frame()
            for place, (name, value) in enumerate(point.items()):
                frame.insert(place, name, value)
            parts.append(frame)
        return pandas.concat(parts, ignore_index=True)

    def plot(self, metric: str | None = None, path: str | Path | None = None) -> Any:
        """One line per point over the rounds: the median, with a band over the seeds.

        Args:
            metric: which; by default the first that says how good the model is.
            path: a file to write, PNG or SVG. Without it the figure is returned.
        """
        from fedtaper.show.run_plots import sweep_plot

        return sweep_plot(self, metric, path)


def sweep(
    base: Experiment,
    over: Mapping[str, Iterable[Any] | Mapping[str, Any]],
    seeds: Iterable[int] | None = None,
    *,
    out: str | Path | None = None,
    **how: Any,
) -> Sweep:
    """Run an experiment with some settings varied: every combination, for all seeds.

    Args:
        base: the experiment whose other settings stay.
        over: by name, the values of a setting: any of an Experiment's; ``c``, ``delta``,
            ``offset`` or ``a`` of all clients' schedules; or ``problem.NAME`` of the problem's.
            Values that are not numbers can be named: ``{"sgd": ft.Sgd(), "prox": ft.Proximal()}``.
        seeds: of every run.
        out: a folder for the run folders and a table, ``sweep.csv``. A stopped sweep continues
            when it is called again with the same folder.
        how: further arguments of :func:`fedtaper.run_many` and :func:`fedtaper.run`.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=60)
    >>> base = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=3, local_steps=2)
    >>> found = ft.sweep(base, over={"delta": [0.76, 0.9], "local_steps": [1, 4]}, seeds=range(3))
    >>> found
    Sweep(4 runs over delta, local_steps, 3 seeds each)
    >>> found.points[1]
    {'delta': 0.76, 'local_steps': 4}
    """
    if not isinstance(base, Experiment):
        raise FedtaperError(f"sweep needs an Experiment, not {type(base).__name__}")
    if not isinstance(over, Mapping) or not over:
        raise FedtaperError('over must name settings and their values, such as {"c": [0.1, 0.3]}')
    choices = {name: list(_choices(name, values)) for name, values in over.items()}
    points, experiments = [], {}
    for chosen in product(*choices.values()):
        point = {name: word for name, (word, _) in zip(choices, chosen, strict=True)}
        made = base
        for name, (_, value) in zip(choices, chosen, strict=True):
            made = _changed(made, name, value)
        points.append(point)
        experiments[_folder(point, len(points))] = made
    if seeds is not None:
        how["seeds"] = whole_list("seeds", seeds)
    found = Sweep(tuple(points), tuple(run_many(experiments, out=out, **how)))
    if out is not None:
        store.write_text(Path(out) / TABLE, _table(found))
    return found


def _choices(name: str, values: Any) -> Iterator[tuple[Any, Any]]:
    """Each value with the word or number that stands for it in tables."""
    if isinstance(values, Mapping):
        yield from values.items()
        return
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise FedtaperError(f"over: {name} needs a list of values, not {values!r:.80}")
    seen = list(values)
    if not seen:
        raise FedtaperError(f"over: {name} has no values")
    for value in seen:
        plain_value = value.item() if isinstance(value, np.generic) else value
        simple = plain_value is None or isinstance(plain_value, (bool, int, float, str))
        yield (plain_value if simple else repr(value)), plain_value


def _changed(e: Experiment, name: str, value: Any) -> Experiment:
    """The experiment with one setting changed."""
    known = {f.name for f in fields(Experiment)}
    if name in OF_SCHEDULES:
        return replace(e, schedules=[_schedule(s, name, value, e) for s in e.schedules])
    if name.startswith(PROBLEM):
        return replace(e, problem=_problem(e.problem, name.removeprefix(PROBLEM), value))
    if name not in known:
        choice = [*known, *OF_SCHEDULES]
        raise FedtaperError(f"over: there is no setting {name!r}{nearest(name, choice)}")
    other = {"local_steps": "local_epochs", "local_epochs": "local_steps"}.get(name)
    changes: dict[str, Any] = {name: value}
    if other is not None:
        changes[other] = None
        changes |= {} if getattr(e, other) is None else {"clock": None}  # its own default again
    return replace(e, **changes)


def _schedule(schedule: Any, name: str, value: Any, e: Experiment) -> Any:
    """A client's schedule with one number changed, where all clients have the same."""
    if not is_dataclass(schedule) or name not in {f.name for f in fields(schedule)}:
        raise FedtaperError(
            f"over: {schedule!r} has no {name} to vary; vary whole schedules instead"
        )
    held = {getattr(s, name, None) for s in e.schedules}  # clients may differ in kind
    if len(held) > 1:
        raise FedtaperError(
            f"over: the clients differ in {name}, and one value for all would change their "
            "influence; vary whole schedules instead"
        )
    return replace(schedule, **{name: value})  # type: ignore[type-var]  # a dataclass, as checked


def _problem(problem: Any, name: str, value: Any) -> Any:
    known = {f.name for f in fields(problem) if f.init} if is_dataclass(problem) else set()
    if name not in known:
        raise FedtaperError(
            f"over: {type(problem).__name__} has no setting {name!r}{nearest(name, known)}"
        )
    return replace(problem, **{name: value})


def _folder(point: Mapping[str, Any], number: int) -> str:
    """The name of a run's folder: its settings, as far as they make a short name."""
    words = ",".join(f"{name}={value}" for name, value in point.items())
    safe = all(letter.isalnum() or letter in "=.,_-+" for letter in words)
    return words if safe and len(words) <= 100 else f"point-{number}"


def _middle(values: Any) -> float:
    """The median of the last round over the seeds."""
    last = np.atleast_1d(np.nan if values is None else values[..., -1])
    last = last[np.isfinite(last)]
    return float(np.median(last)) if last.size else float("nan")


def _table(found: Sweep) -> str:
    """One row per point and seed: the last round's metrics."""
    names = list(dict.fromkeys(name for run in found.runs for name in run.metrics))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*found.points[0], "seed", "round", *names])
    for point, run in zip(found.points, found.runs, strict=True):
        for s, seed in enumerate(run.seeds):
            ends: Sequence[Any] = [
                "" if n not in run.metrics or not len(run.round)
                else float(run.metrics[n][(s, -1) if run.many else -1])
                for n in names
            ]  # fmt: skip
            last = int(run.round[-1]) if len(run.round) else 0
            rows.writerow([*point.values(), seed, last, *ends])
    return text.getvalue()
