"""Figures of a run's metrics, and of a sweep: what ``run.plot()`` and ``sweep.plot()`` draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.results import Run
from fedtaper.show import labels, style
from fedtaper.show.charts import Chart, draw_on
from fedtaper.show.report_run import metric_charts
from fedtaper.show.report_view import View

POINTS = 600  # rounds drawn


def metrics_plot(run: Run, names: Sequence[str] | None, path: str | Path | None) -> Any:
    """A panel for every metric, or for the given ones."""
    shown = list(labels.metrics(run)) if names is None else _known(run, names)
    if not shown or not len(run.round):
        raise FedtaperError("the run has no rounds or no metrics to draw")
    view = View(run, "run", POINTS)
    return _panels(metric_charts(view, shown), path)


def sweep_plot(sweep: Any, metric: str | None, path: str | Path | None) -> Any:
    """One metric over the rounds, a line per point."""
    run = sweep.runs[0]
    name = next(iter(labels.metrics(run)), None) if metric is None else _known(run, [metric])[0]
    if name is None:
        raise FedtaperError("these runs have no metrics to draw")
    curves = []
    for point, made in zip(sweep.points, sweep.runs, strict=True):
        words = ", ".join(f"{key} {value}" for key, value in point.items())
        if len(made.round) and name in made.metrics:
            curves.append(View(made, "sweep", POINTS).curve(words, made.metrics[name]))
    if not curves:
        raise FedtaperError(f"no run of the sweep has the metric {name}")
    view = View(run, "sweep", POINTS)
    return _panels([view.chart(name, "", labels.metric(name), curves)], path)


def _known(run: Run, names: Sequence[str]) -> list[str]:
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in run.metrics:
            known = ", ".join(run.metrics)
            raise FedtaperError(
                f"the run has no metric {name!r} (it has {known}){nearest(name, run.metrics)}"
            )
    return given


def _panels(charts: Sequence[Chart], path: str | Path | None) -> Any:
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    lines = max(len(chart.curves) for chart in charts)
    with style.figure(path, rows, columns, height=2.2 + 0.13 * math.ceil(lines / 2)) as axes:
        for axis, chart in zip(axes.flat, charts, strict=False):
            draw_on(axis, chart)
            if lines > 1:
                axis.legend(loc="best", ncols=1 if columns > 1 else 2)
        for axis in axes.flat[len(charts) :]:
            axis.set_visible(False)
    return axes.flat[0].figure if path is None else Path(path)
