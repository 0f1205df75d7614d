"""Findings about one run: the audit with its evidence, error bars, the board's section."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_quadratic
from fedtaper.show.charts import Chart, Curve
from fedtaper.show.report_page import Part, paragraphs, table
from fedtaper.show.report_view import View

MOST_CLIENTS = 21  # seven colours, three kinds of line
SHOWN_CLIENTS = 8  # in the evidence of an audit, those who are accused first


def audit(view: View) -> Part | None:
    """Which clients contributed as declared, for runs with updates or challenges (first seed)."""
    run = view.run
    if run.updates is None and run.challenges is None:
        return None
    from fedtaper.auditing import audit as judge

    found = judge(run, seed=run.seeds[0] if run.many else None)
    head, *rows = found.rows()
    named = [[name, *row[1:]] for name, row in zip(view.clients, rows, strict=True)]
    notes = paragraphs([*found.remarks(), found.caveat], "muted")
    said, charts = evidence(view) if run.challenges is not None else ("", ())
    return Part("Audit: who contributed as declared", table(head, named) + said + notes, charts)


def evidence(view: View) -> tuple[str, tuple[Chart, ...]]:
    """The evidence of challenges: a sentence per client, and how the estimates grew."""
    from fedtaper.auditing.history import histories

    run = view.run
    found = histories(run, run.seeds[0] if run.many else None)
    found = sorted(found, key=lambda h: (not h.said.accused, h.said.client))[:SHOWN_CLIENTS]
    curves = []
    for h in found:
        known = np.isfinite(h.delta)
        if known.any():
            bands = (h.delta[known], h.low[known], h.high[known])
            curves.append(Curve(view.clients[h.said.client], h.round[known], *bands))
    chart = view.chart("audit", "Estimated taper after each challenge", "taper (delta)", curves)
    return paragraphs([h.sentence for h in found]), (chart,) if curves else ()


def intervals(view: View) -> Part | None:
    """Error bars of the model and of each client's loss, for the first seed."""
    from fedtaper.outcomes.intervals import intervals as error_bars

    run = view.run
    if run.diverged or run.w is None or not is_quadratic(run.experiment.problem):
        return None
    try:
        found = error_bars(replace(run, w=run.w[:1]) if run.many else run)
    except FedtaperError:  # rules or batches for which there is no covariance in closed form
        return None
    head, *rows = found.rows()
    front = "loss of client "
    for row in rows:
        number = row[0].removeprefix(front)
        if number != row[0] and number.isdigit():
            row[0] = f"loss of {view.clients[int(number)]}"
    seed = [f"Of seed {run.seeds[0]}."] if run.many else []
    notes = paragraphs([*seed, *found.notes], "muted")
    html = table(["quantity", *head[1:]], rows)
    return Part("Error bars", paragraphs([found.title]) + html + notes)


def board(view: View) -> Part | None:
    """Asked, given, certified: for the people responsible for the federation (the first seed)."""
    from fedtaper.outcomes.board import board as made

    run = view.run
    shown = is_quadratic(run.experiment.problem) or run.updates is not None
    if run.diverged or not (shown or run.challenges is not None or run.looks is not None):
        return None
    try:
        found = made(run, quick=True)
    except FedtaperError:
        return None
    head, *rows = found.rows()
    named = [[name, *row[1:]] for name, row in zip(view.clients, rows, strict=True)]
    seed = [f"Of seed {run.seeds[0]}."] if run.many else []
    html = table(head, named) + paragraphs([*seed, *found.sentences()])
    return Part("Asked, given, certified", html, _steered(view))


def _steered(view: View) -> tuple[Chart, ...]:
    """The controller's factor for every client, over the rounds."""
    scales = view.run.scales
    if view.run.looks is None or scales.shape[1] > MOST_CLIENTS:
        return ()
    curves = [Curve(n, view.rounds, scales[view.at, i]) for i, n in enumerate(view.clients)]
    return (view.chart("scales", "The controller's factors", "factor of the scale", curves),)
