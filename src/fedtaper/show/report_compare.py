"""Several runs side by side: what differs, one table, and curves in common charts."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import capital
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.show.charts import Chart, Curve, thin
from fedtaper.show.report_page import Section, paragraphs, slug, table
from fedtaper.show.report_words import settling
from fedtaper.storage.config import to_toml

MOST_METRICS = 8  # columns of the comparison
_NOTE = (
    "p_n, p: the largest influence among the clients other than the reference, at this horizon "
    "and in the limit. Metrics are those of the last round (medians over the seeds). late/early: "
    "the error, or the model's step, of the last tenth of the rounds divided by that of the second "
    "tenth; well below 1 while the model settles, about 1 if it oscillates."
)


def differences(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """The settings in which the runs differ, one row per run."""
    found = [settings(run) for run in runs]
    keys = list(dict.fromkeys(k for one in found for k in one))
    differ = [k for k in keys if len({one.get(k, "") for one in found}) > 1]
    if not differ:
        return Section("What differs", "<p>Nothing: all runs have the same settings.</p>")
    rows = [
        [name, *(one.get(k, "") for k in differ)] for name, one in zip(names, found, strict=True)
    ]
    same = [f"{k} = {found[0][k]}" for k in keys if k not in differ]
    note = paragraphs([f"The same in all runs: {', '.join(same)}."], "muted") if same else ""
    return Section("What differs", table(["run", *differ], rows) + note)


def settings(run: Run) -> dict[str, str]:
    """A run's settings, flat, as short texts."""
    e = run.experiment
    try:
        tree = tomllib.loads(to_toml(e))
    except FedtaperError:  # rules or data of the user's own: what can be said without a file
        tree = {"experiment": {"rounds": e.rounds, "batch_size": e.batch_size, "seed": e.seed}}
    tree.pop("schedules", None)
    out: dict[str, str] = {}
    for name, part in tree.items():
        _flatten("" if name == "experiment" else name, part, out)
    names = labels.clients(run)
    groups = e.groups()
    out["step sizes"] = (
        groups[0].taper
        if len(groups) == 1
        else "; ".join(f"{labels.who(names, g)}: {g.taper}" for g in groups[:4])
        + ("; ..." if len(groups) > 4 else "")
    )
    out["seeds"] = str(len(run.seeds))
    out["engine"] = run.engine
    return out


def _flatten(prefix: str, part: Any, out: dict[str, str]) -> None:
    if isinstance(part, dict):
        for name, value in part.items():
            _flatten(f"{prefix}.{name}" if prefix else name, value, out)
    else:
        text = str(part)
        out[prefix] = text if len(text) <= 48 else f"{text[:45]}..."


def comparison(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """One row per run: influence, the last round's metrics, whether it settles."""
    columns = list(dict.fromkeys(m for run in runs for m in labels.metrics(run)))
    columns.sort(key=lambda m: -sum(m in run.metrics for run in runs))
    columns = columns[:MOST_METRICS]
    head = ["run", "rounds", "seeds", "p_n", "p", *map(labels.metric, columns), "late/early"]
    rows = [_row(name, run, columns) for name, run in zip(names, runs, strict=True)]
    same = [j for j in (1, 2) if len({row[j] for row in rows}) == 1]  # said once, below
    shown = [[cell for j, cell in enumerate(row) if j not in same] for row in (head, *rows)]
    note = " ".join(f"{capital(head[j])}: {rows[0][j]} in all." for j in same)
    notes = paragraphs([f"{note} {_NOTE}".strip()], "muted")
    return Section("Comparison", table(shown[0], shown[1:]) + notes)


def _row(name: str, run: Run, columns: Sequence[str]) -> list[str]:
    e = run.experiment
    others = np.arange(e.num_clients) != e.reference
    p_n, p = e.influence().effective[others], e.limit_influence[others]
    now, limit = (f"{v.max():.3g}" if v.size else "" for v in (p_n, p))
    first = [name, f"{run.round[-1]:,}" if len(run.round) else "0", f"{len(run.seeds)}", now, limit]
    if run.diverged:
        when = min(d.round for d in run.diverged)
        return [*first, *["diverged"] * len(columns), f"in round {when}"]
    ends = [
        labels.number(labels.middle(run.metrics[m][..., -1])) if m in run.metrics else "–"
        for m in columns
    ]
    ratio = settling(run)
    return [*first, *ends, "–" if ratio is None else f"{ratio:.2f}"]


def overlays(runs: Sequence[Run], names: Sequence[str], points: int) -> Section:
    """One chart for each metric that at least two runs recorded."""
    shared = dict.fromkeys(m for run in runs for m in labels.metrics(run))
    charts = []
    for name in shared:
        having = [
            (n, run)
            for n, run in zip(names, runs, strict=True)
            if len(labels.metrics(run).get(name, ()))
        ]
        if len(having) < 2:
            continue
        top = _top([run for _, run in having], name)
        curves = [_overlay(n, run, name, points, top) for n, run in having]
        charts.append(
            Chart(
                f"overlay-{slug(name)}",
                capital(labels.metric(name)),
                "",
                tuple(curves),
                log_x=many_rounds(runs),
                log_y=wide([np.asarray(c.values) for c in curves]),
            )
        )
    notes = ["Medians over the seeds."] if any(len(run.seeds) > 1 for run in runs) else []
    if any(run.diverged for run in runs):
        notes.append("Runs that diverged are cut off at 1,000 times what the others reach.")
    return Section("Curves of all runs", paragraphs([" ".join(notes)]), tuple(charts))


def _top(runs: Sequence[Run], metric: str) -> float:
    """Where a diverging run's curve leaves the chart, so that the others can be seen."""
    ends = [np.abs(r.metrics[metric]) for r in runs if not r.diverged]
    found = [float(np.nanmax(v)) for v in ends if np.isfinite(v).any()]
    return 1e3 * max(found) if found else np.inf


def _overlay(name: str, run: Run, metric: str, points: int, top: float) -> Curve:
    at = thin(len(run.round), points)
    values = np.atleast_2d(run.metrics[metric])[:, at]
    finite = np.where(np.isfinite(values), values, np.inf)
    middle = np.median(finite, axis=0)
    cut = run.diverged and not np.all(middle < top)
    shown = np.where(np.arange(len(middle)) < np.argmax(middle > top), middle, np.nan)
    return Curve(name, run.round[at], shown if cut else middle)


def many_rounds(runs: Sequence[Run]) -> bool:
    """Whether a log axis of rounds is worth it."""
    return max((int(run.round[-1]) for run in runs if len(run.round)), default=0) > 50


def wide(values: Sequence[Any]) -> bool:
    """Whether values, all above zero, span so much that a log axis shows more."""
    found = np.concatenate([np.ravel(v) for v in values]) if values else np.zeros(0)
    found = found[np.isfinite(found)]
    positive = found[found > 0]
    if not positive.size or (found < 0).any() or positive.size < 0.9 * found.size:
        return False
    return bool(positive.max() > 20 * positive.min())
