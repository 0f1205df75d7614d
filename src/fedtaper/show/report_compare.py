"""Several runs side by side: what differs, one table, and curves in common charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.show.charts import MOST_CURVES, Chart, Curve, spread, thin
from fedtaper.show.report_page import Section, paragraphs, slug, table
from fedtaper.show.report_settings import settings
from fedtaper.show.report_words import named, settling, survivors

MOST_METRICS = 8  # columns of the comparison
_NOTE = (
    "p_n, p: the largest influence among the clients other than the reference, at this horizon "
    "and in the limit. Metrics are those of the last round. late/early: the distance to w*(p_n), "
    "or the step of the shared model where there is none, in the last tenth of the rounds divided "
    "by that in the second tenth; well below 1 while the model settles, else about 1 or more."
)


def differences(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """The settings in which the runs differ: a row for each of the runs, or of the settings."""
    found = [settings(run) for run in runs]
    keys = list(dict.fromkeys(k for one in found for k in one))
    differ = [k for k in keys if len({one.get(k, "") for one in found}) > 1]
    if not differ:
        return Section("What differs", "<p>Nothing: all runs have the same settings.</p>")
    rows = [["run", *differ]]
    rows += [[n, *(one.get(k, "–") for k in differ)] for n, one in zip(names, found, strict=True)]
    if len(differ) > max(4, len(runs)):  # a long text makes one row high, not all of them
        rows = [list(row) for row in zip(*rows, strict=True)]
        rows[0][0] = "setting"
    same = [f"{k} = {found[0][k]}" for k in keys if k not in differ]
    note = paragraphs([f"The same in all runs: {', '.join(same)}."], "muted") if same else ""
    return Section("What differs", table(rows[0], rows[1:]) + note)


def comparison(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """One row per run: influence, the last round's metrics, whether it settles."""
    columns = list(dict.fromkeys(m for run in runs for m in labels.metrics(run)))
    columns.sort(key=lambda m: -sum(m in run.metrics for run in runs))
    more = len(columns) - MOST_METRICS
    columns = columns[:MOST_METRICS]
    head = ["run", "rounds", "seeds", "p_n", "p", *map(labels.metric, columns), "late/early"]
    rows = [_row(name, run, columns) for name, run in zip(names, runs, strict=True)]
    same = [j for j in (1, 2) if len({row[j] for row in rows}) == 1]  # said once, below
    shown = [[cell for j, cell in enumerate(row) if j not in same] for row in (head, *rows)]
    common = " and ".join(_counted(rows[0][j], head[j]) for j in same)
    note = f"Each run has {common}." if common else ""
    if any(len(run.seeds) > 1 for run in runs):
        note += " Of several seeds: the medians."
    if any(run.diverged and survivors(run).seeds for run in runs):
        note += " Seeds that diverged are left out."
    if more > 0:
        note += f" {more} more metrics are in the runs' own sections."
    notes = paragraphs([f"{note} {_NOTE}".strip()], "muted")
    return Section("Comparison", table(shown[0], shown[1:]) + notes)


def _counted(number: str, what: str) -> str:
    """A number of things.

    >>> _counted("1", "seeds"), _counted("5,000", "rounds")
    ('1 seed', '5,000 rounds')
    """
    return f"{number} {what.removesuffix('s') if number == '1' else what}"


def _row(name: str, run: Run, columns: Sequence[str]) -> list[str]:
    e = run.experiment
    others = np.arange(e.num_clients) != e.reference
    p_n, p = e.influence(run.last_round).effective[others], e.limit_influence[others]
    now, limit = (f"{v.max():.3g}" if v.size else "" for v in (p_n, p))
    rest = survivors(run)
    seeds = f"{len(run.seeds)}"
    if run.diverged and rest.seeds:
        seeds = f"{len(rest.seeds)} of {seeds}"
    first = [name, f"{run.round[-1]:,}" if len(run.round) else "0", seeds, now, limit]
    if not rest.seeds:
        when = min(d.round for d in run.diverged)
        lost = ["diverged" if m in run.metrics else "–" for m in columns]
        return [*first, *lost, f"in round {when}"]
    run = rest
    ends = [
        labels.number(labels.middle(run.metrics[m][..., -1])) if m in run.metrics else "–"
        for m in columns
    ]
    ratio = settling(run)
    return [*first, *ends, "–" if ratio is None else f"{ratio:.2f}"]


def overlays(runs: Sequence[Run], names: Sequence[str], points: int) -> Section:
    """One chart for each metric that at least two runs recorded."""
    shared = dict.fromkeys(m for run in runs for m in labels.metrics(run))
    by, drawn = _drawn(runs, list(shared))
    order = [*drawn, *(j for j in range(len(runs)) if j not in drawn)]
    looks = {j: place for place, j in enumerate(order)} if by else {j: j for j in order}
    charts, unseen = [], dict[str, None]()
    for name in shared:
        having = [j for j in order if len(labels.metrics(runs[j]).get(name, ()))]
        if len(having) < 2:
            continue
        top = _top([runs[j] for j in having], name)
        curves = [
            replace(_overlay(names[j], runs[j], name, points, top, looks[j]), hidden=j not in drawn)
            for j in having
        ]
        empty = [c.name for c in curves if not np.isfinite(np.asarray(c.values)).any()]
        unseen |= dict.fromkeys(empty)
        curves = [c for c in curves if c.name not in empty]
        seen = [np.asarray(c.values) for c in curves if not c.hidden]
        charts.append(
            Chart(
                f"overlay-{slug(name)}",
                labels.title(name),
                "",
                tuple(curves),
                log_x=many_rounds(runs),
                log_y=wide(seen),
            )
        )
    notes = ["Medians over the seeds."] if any(len(run.seeds) > 1 for run in runs) else []
    if any(run.diverged for run in runs):
        notes.append("Runs that diverged are cut off at 1,000 times what the others reach.")
    if unseen:
        who = named(list(unseen))
        notes.append(f"Where that is so from the first round, there is no curve: {who}.")
    if by:
        notes.append(
            f"Drawn: {len(drawn)} of {len(runs)} runs, spread evenly over the last {by}. To show "
            "another run, click its name."
        )
    return Section("Curves of all runs", paragraphs([" ".join(notes)]), tuple(charts))


def _drawn(runs: Sequence[Run], metrics: Sequence[str]) -> tuple[str, list[int]]:
    """Of more runs than can be told apart: by which metric some are drawn, and which they are."""
    if len(runs) <= MOST_CURVES or not metrics:
        return "", list(range(len(runs)))
    by = max(metrics, key=lambda m: sum(m in labels.metrics(run) for run in runs))
    ends = [
        labels.middle(run.metrics[by][..., -1]) if by in labels.metrics(run) else np.nan
        for run in runs
    ]
    return labels.metric(by), spread(ends)


def _top(runs: Sequence[Run], metric: str) -> float:
    """Where a diverging run's curve leaves the chart, so that the others can be seen."""
    kept = [r for r in runs if not r.diverged] or [r for r in map(survivors, runs) if r.seeds]
    ends = [np.abs(r.metrics[metric]) for r in kept]
    found = [float(np.nanmax(v)) for v in ends if np.isfinite(v).any()]
    return 1e3 * max(found) if found else np.inf


def _overlay(name: str, run: Run, metric: str, points: int, top: float, place: int) -> Curve:
    """A run's curve; its place among the runs decides its look, the same in every chart."""
    lost = bool(run.diverged)
    run = survivors(run) if survivors(run).seeds else run
    at = thin(len(run.round), points)
    values = np.atleast_2d(run.metrics[metric])[:, at]
    finite = np.where(np.isfinite(values), values, np.inf)
    middle = np.median(finite, axis=0)
    cut = lost and not np.all(middle < top)
    shown = np.where(np.arange(len(middle)) < np.argmax(middle > top), middle, np.nan)
    return Curve(name, run.round[at], shown if cut else middle, colour=place)


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
