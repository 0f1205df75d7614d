"""Charts as data: drawn by static/charts.js on a page, and by matplotlib for print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import writing
from fedtaper.show import style

Array = NDArray[np.float64]
Line = Literal["solid", "dashed", "dotted"]
MOST_CURVES, SOME_CURVES = 21, 9  # seven colours, three kinds of line; of more curves
SHORT, WIDE = 24, 52  # characters of a name: of two beside each other, of one


@dataclass(frozen=True, eq=False)
class Curve:
    """One named line, with a band where ``low`` and ``high`` are given.

    ``colour`` is a number in the palette; if it or ``line`` is not given, it follows from the
    curve's place in its chart. A ``hidden`` curve is shown on a page when its name is clicked,
    and never in print.
    """

    name: str
    x: ArrayLike
    values: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    line: Line | None = None
    colour: int | None = None
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class Chart:
    """Curves over one axis, usually the round.

    ``name`` is the stem of its file if it is written as a figure.
    """

    name: str
    title: str
    ylabel: str
    curves: tuple[Curve, ...]
    xlabel: str = "round"
    log_x: bool = True
    log_y: bool = False

    def spec(self) -> dict[str, Any]:
        """The arguments of ``chart`` in static/charts.js, as plain JSON values."""
        made = {
            "title": self.title,
            "xlabel": self.xlabel,
            "ylabel": self.ylabel,
            "logX": self.log_x,
            "logY": self.log_y,
        }
        shared = all(
            np.array_equal(np.asarray(c.x), np.asarray(self.curves[0].x)) for c in self.curves
        )
        if shared and self.curves:
            made["x"] = plain(self.curves[0].x)
        return made | {"series": [_series(c, shared) for c in self.curves]}


def _series(curve: Curve, shared: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": curve.name, "values": plain(curve.values)}
    if not shared:
        made["x"] = plain(curve.x)
    if curve.low is not None and curve.high is not None:
        made |= {"low": plain(curve.low), "high": plain(curve.high)}
    extra = {"style": curve.line, "colour": curve.colour, "hidden": curve.hidden or None}
    return made | {name: value for name, value in extra.items() if value is not None}


def plain(values: ArrayLike) -> list[float | int | None]:
    """Numbers for JSON: five digits, None where there is none.

    The last number has more: it is read beside tables, and rounding twice may differ from them.

    >>> plain([1.0, 0.123456789, float("nan"), 1176.4996])
    [1, 0.12346, None, 1176.4996]
    """
    found = [float(v) for v in np.asarray(values).ravel()]
    return [*map(_short, found[:-1]), *(_short(v, 10) for v in found[-1:])]


def _short(value: float, digits: int = 5) -> float | int | None:
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def thin(count: int, points: int) -> NDArray[np.int64]:
    """Which of ``count`` places to draw: half evenly spaced, half evenly in log, and both ends.

    >>> thin(5, 10), len(thin(5000, 300)) <= 300
    (array([0, 1, 2, 3, 4]), True)
    """
    if count <= points:
        return np.arange(count)
    half = points // 2
    even = np.linspace(0, count - 1, half)
    log = np.geomspace(1, count, points - half) - 1
    return np.unique(np.concatenate([even, log]).round().astype(np.int64))


def spread(values: ArrayLike) -> list[int]:
    """Which of many curves to draw: all that can be told apart, or some, evenly in their order.

    >>> spread([0.3, 1.0]), spread(range(100))
    ([0, 1], [99, 87, 74, 62, 49, 37, 25, 12, 0])
    """
    found = np.asarray(values, dtype=np.float64)
    if len(found) <= MOST_CURVES:
        return list(range(len(found)))
    order = np.argsort(-found, kind="stable")
    some = np.linspace(0, len(found) - 1, SOME_CURVES).round().astype(int)
    return [int(j) for j in order[some]]


def draw(chart: Chart, path: str | Path) -> Path:
    """The chart as a figure for print, PNG or SVG by the name of the file."""
    chart = replace(chart, curves=tuple(c for c in chart.curves if not c.hidden))
    long = max((len(c.name) for c in chart.curves), default=0) > SHORT
    rows = math.ceil(len(chart.curves) / (1 if long else 2))
    # a run that diverged may reach 1e300, and its axis more
    with np.errstate(over="ignore"), style.figure(path, height=2.2 + 0.13 * rows) as axes:
        draw_on(axes[0, 0], chart)
        if len(chart.curves) > 1:
            style.key(axes, columns=1 if long else 2)
    return Path(path)


def draw_on(axis: Any, chart: Chart) -> None:
    """Draw the chart's curves on existing axes."""
    for number, curve in enumerate(chart.curves):
        _draw_curve(axis, chart, curve, number)
    if chart.log_y:
        style.log_axis(axis)
    if chart.xlabel == "round":
        style.rounds_axis(axis, log=chart.log_x)
    axis.set(xlabel=chart.xlabel, ylabel=chart.ylabel, title=chart.title)


def _draw_curve(axis: Any, chart: Chart, curve: Curve, number: int) -> None:
    colour, line = style.look(number if curve.colour is None else curve.colour)
    line = style.DASHES[curve.line] if curve.line else line
    x = np.asarray(curve.x, dtype=np.float64)

    def clean(values: ArrayLike) -> Array:
        found = np.asarray(values, dtype=np.float64)
        return np.where(np.isfinite(found) & ((found > 0) | (not chart.log_y)), found, np.nan)

    marker = "o" if len(x) <= (1 if curve.line else 12) else None
    label = "\n".join(textwrap.wrap(curve.name, WIDE)) or curve.name
    axis.plot(x, clean(curve.values), line, color=colour, label=label, marker=marker, markersize=3)
    if curve.low is not None and curve.high is not None:
        edges = clean(curve.low), clean(curve.high)
        axis.fill_between(x, *edges, color=colour, alpha=0.18, linewidth=0)


def write(charts: Sequence[Chart], folder: str | Path) -> list[Path]:
    """Write every chart as PNG and as SVG."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return [
            draw(chart, folder / f"{chart.name}.{kind}")
            for chart in charts
            for kind in ("png", "svg")
        ]
