"""The style of every printed figure, with the colours of the pages. Nothing here computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError

COLUMN, PAGE = 3.5, 7.0  # inches
# Okabe and Ito: told apart with any kind of colour vision, and in print. The pages have the
# same, as --series-0 to --series-6 in static/style.css.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedtaper",
}


@contextmanager
def figure(
    path: str | Path | None, rows: int = 1, columns: int = 1, height: float = 2.3, **how: Any
) -> Iterator[Any]:
    """Axes to draw on; the figure is written to ``path`` at the end, in the format of its name.

    Without a path the figure is left to the caller: a notebook shows it.

    One column of axes is 3.5 inches wide (a journal's column), more are 7 (its page). The
    figure is made without pyplot, so neither a notebook's backend nor its figures are touched.
    """
    import matplotlib

    width = COLUMN if columns == 1 else PAGE
    with matplotlib.rc_context(_STYLE):
        made = _picture()(figsize=(width, height * rows), layout="constrained")
        yield made.subplots(rows, columns, squeeze=False, **how)
        if path is None:
            return
        date = {"Date": None} if str(path).endswith(".svg") else {}  # the same file every time
        try:
            made.savefig(path, metadata=date)
        except (OSError, ValueError) as trouble:  # no such folder; a format that nothing draws
            raise FedtaperError(f"{path} cannot be drawn: {trouble}") from None


@cache
def _picture() -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:  # a notebook shows it, whatever its backend
            import io

            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    return Picture


def band(
    axis: Any, x: Any, quantiles: Any, label: str, colour: Any, style: str = "-", width: float = 1.2
) -> None:
    """A median line with the band between the outer two quantiles."""
    low, middle, high = (np.where(np.isfinite(q), q, np.nan) for q in quantiles)
    axis.plot(x, middle, style, color=colour, label=label, linewidth=width)
    axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def shade(number: int, count: int) -> Any:
    """One of ``count`` ordered colours, light to dark, for a swept quantity."""
    import matplotlib

    return matplotlib.colormaps["viridis_r"](0.12 + 0.85 * number / max(1, count - 1))


def look(number: int) -> tuple[str, str]:
    """Colour and line style of one of many curves: seven colours, then dashed, then dotted."""
    styles = tuple(DASHES.values())
    return COLOURS[number % len(COLOURS)], styles[number // len(COLOURS) % len(styles)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a log axis: decades where there are many, 1-2-5 where few, even steps within one.

    >>> log_ticks(1, 5), log_ticks(1, 20), log_ticks(1, 5000)
    ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0, 1000.0])
    """
    decades = math.log10(high) - math.log10(low)
    if decades < 0.8:
        rough = (high - low) / 7
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(f * base for f in (1, 2, 5, 10) if f * base >= rough * (1 - 1e-9))
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    factors = (1, 2, 5) if decades < 2.5 else (1,)
    every = next(step for step in (1, 2, 3, 5, 10, 20, 50, 100) if step >= decades / 8)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [float(f"{f}e{k}") for k in powers if k % every == 0 for f in factors]
    return [value for value in found if low * 0.9999 <= value <= high * 1.0001]


def log_label(value: float) -> str:
    """A tick's text: plain numbers where they are short, powers of ten elsewhere.

    >>> log_label(0.02), log_label(5000.0), log_label(1e6)
    ('0.02', '5000', '$10^{6}$')
    """
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    front = value / 10.0**power
    return f"$10^{{{power}}}$" if abs(front - 1) < 1e-6 else rf"${front:g}\cdot 10^{{{power}}}$"


@cache
def _locator() -> Any:
    from matplotlib.ticker import Locator

    class LogTicks(Locator):
        def __call__(self) -> Any:
            assert self.axis is not None
            low, high = sorted(self.axis.get_view_interval())
            return self.tick_values(low, high)

        def tick_values(self, vmin: float, vmax: float) -> Any:
            good = 0 < vmin < vmax and math.isfinite(vmax)
            return log_ticks(vmin, vmax) if good else []

    return LogTicks


def log_axis(axis: Any, which: str = "y") -> None:
    """A log axis with ticks that can be read."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set(**{f"{which}scale": "log"})
    one = axis.xaxis if which == "x" else axis.yaxis
    one.set_major_locator(_locator()())
    one.set_major_formatter(FuncFormatter(lambda value, _: log_label(value)))
    one.set_minor_locator(NullLocator())


def rounds_axis(axis: Any, log: bool = True) -> None:
    """Rounds, on a log axis unless there are few."""
    if log:
        log_axis(axis, "x")
    else:
        from matplotlib.ticker import MaxNLocator

        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("round")


def key(axes: Any, columns: int = 3, title: str | None = None) -> None:
    """One legend for all the axes, below them, where it never covers a line."""
    handles: dict[str, Any] = {}
    for axis in np.ravel(axes):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    made = np.ravel(axes)[0].figure
    made.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, title=title
    )


def below(axis: Any, columns: int = 3) -> None:
    """A legend for one of several axes, under its label."""
    axis.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0.0), borderaxespad=4.4, ncols=columns,
        columnspacing=1.2, handlelength=1.6,
    )  # fmt: skip


def coinciding(curves: Mapping[str, Any], within: float = 0.02) -> dict[str, str]:
    """The curves to draw, with labels: names whose curves coincide share one line.

    ``within`` is relative: two curves coincide if they are nowhere farther apart than this,
    which is less than a line's width.

    >>> coinciding({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [3.0, 2.0]})
    {'a': 'a, b', 'c': 'c'}
    """
    shown: dict[str, list[str]] = {}
    for name, values in curves.items():
        for first, names in shown.items():
            other = np.asarray(curves[first], dtype=np.float64)
            if np.allclose(values, other, rtol=within, atol=0, equal_nan=True):
                names.append(name)
                break
        else:
            shown[name] = [name]
    return {first: ", ".join(names) for first, names in shown.items()}


def smoothed(values: Any, width: int) -> Any:
    """A moving mean for an oscillating curve; at its ends the window is shorter."""
    padded = np.convolve(values, np.ones(width), mode="same")
    return padded / np.convolve(np.ones(len(values)), np.ones(width), mode="same")


def parameters(
    axis: Any, k: Any, w: Any, window: tuple[float, float], names: Sequence[str] | None = None
) -> None:
    """Components of the shared model; stretches far outside the window are left out."""
    middle = 0.5 * (window[0] + window[1])
    far = np.abs(w - middle).max(axis=(0, 2)) > 3 * (window[1] - window[0])
    shown = np.where(far[None, :, None], np.nan, w)
    for j in range(w.shape[-1]):
        band(axis, k, shown[:, :, j], names[j] if names else f"component {j + 1}", COLOURS[j])
    if far.any():
        peak = np.nanmax(np.abs(w))
        axis.axvspan(k[far][0], k[far][-1], color="#eeeeee", lw=0, zorder=0)
        at = np.sqrt(k[far][0] * k[far][-1])
        axis.annotate(
            f"climbs to\n{log_label(float(f'{peak:.0e}'))}", (at, window[0]), (0, 4),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5,
        )  # fmt: skip
