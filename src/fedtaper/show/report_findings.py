"""Findings about one run: the audit with its evidence, error bars, the board's section."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedtaper.core.errors import FedtaperError, FedtaperWarning
from fedtaper.core.protocols import is_quadratic
from fedtaper.show.charts import Chart, Curve
from fedtaper.show.report_page import Part, paragraphs, table
from fedtaper.show.report_view import View
from fedtaper.show.report_words import named

if TYPE_CHECKING:
    from fedtaper.auditing.history import History

MOST_CLIENTS = 21  # seven colours, three kinds of line
AUDIT = ("client", "verdict", "declared delta", "estimated delta", "declared influence",
         "estimated influence", "since round")  # fmt: skip
SHOWN_CLIENTS = 8  # in the evidence of an audit, those who are accused first


def audit(view: View) -> Part | None:
    """Which clients contributed as declared, for runs with updates or challenges (first seed)."""
    if view.audit is None:
        return None
    found, warned = view.audit
    _, *rows = found.rows()
    rows = [[name, *row[1:]] for name, row in zip(view.clients, rows, strict=True)]
    head = list(AUDIT)
    if not any(row[-1] for row in rows):  # nobody is accused since some round
        head, rows = head[:-1], [row[:-1] for row in rows]
    notes = paragraphs([*warned, *found.remarks()], "muted")
    shown, charts = evidence(view) if view.run.challenges is not None else ("", ())
    html = table(head, rows) + notes + shown + paragraphs([found.caveat], "muted")
    return Part("Audit: who contributed as declared", html, charts)


def audit_in_words(view: View) -> list[str]:
    """The audit in one sentence, for the top of the page."""
    if view.audit is None:
        return []
    clients = view.audit[0].clients
    accused = [
        f"{view.clients[c.client]} ({c.verdict}"
        + (f" since round {c.since:,})" if c.since is not None else ")")
        for c in clients
        if c.accused
    ]
    kept = sum(c.verdict == "as declared" for c in clients)
    unknown = [view.clients[c.client] for c in clients if c.verdict.startswith("cannot tell")]
    parts = [f"accused {'are' if len(accused) > 1 else 'is'} {named(accused)}"] if accused else []
    if kept:
        parts.append(f"{kept} of {len(clients)} clients contribute as declared")
    if unknown and len(unknown) == len(clients):
        parts.append("it cannot tell for any client")
    elif unknown:
        parts.append(f"it cannot tell for {named(unknown)}")
    return [f"Audit: {'; '.join(parts)}."]


def evidence(view: View) -> tuple[str, tuple[Chart, ...]]:
    """The evidence of challenges: a sentence per client, and how the estimates grew."""
    from fedtaper.auditing.history import histories

    run = view.run
    found = histories(run, run.seeds[0] if run.many else None)
    found = sorted(found, key=lambda h: (not h.said.accused, h.said.client))[:SHOWN_CLIENTS]
    curves, gaps = [], False
    for h in found:
        known = np.isfinite(h.delta)
        gaps |= not known[np.argmax(known) :].all() and bool(known.any())
        if known.any():
            bands = (h.delta[known], h.low[known], h.high[known])
            i = h.said.client
            curves.append(Curve(view.clients[i], h.round[known], *bands, colour=view.colour(i)))
    if curves:
        rounds = np.concatenate([np.asarray(c.x) for c in curves])
        curves += _declared(found, [rounds.min(), rounds.max()])
    chart = view.chart("audit", "Estimated taper after each challenge", "taper (delta)", curves)
    note = paragraphs(["Challenges that gave no estimate are left out of the chart."], "muted")
    said = paragraphs([h.sentence for h in found]) + note * gaps
    return said, (chart,) if curves else ()


def _declared(found: Sequence[History], ends: Sequence[int]) -> list[Curve]:
    """The tapers that the clients declared, as level lines."""
    tapers = sorted({h.said.declared_delta for h in found})
    name = "declared" if len(tapers) == 1 else "declared {:g}"
    return [
        Curve(name.format(taper), ends, [taper] * 2, line="dashed", colour=6) for taper in tapers
    ]


def intervals(view: View) -> Part | None:
    """Error bars of the model and of each client's loss, for the first seed."""
    from fedtaper.outcomes.intervals import intervals as error_bars

    run = view.run
    if view.away or run.w is None or len(run.round) < 2 or not is_quadratic(run.experiment.problem):
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
    if (
        view.away
        or len(run.round) < 2
        or not (shown or run.challenges is not None or run.looks is not None)
    ):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedtaperWarning)  # the audit's section has them
            found = made(run, quick=True)
    except FedtaperError:
        return None
    head, *rows = found.rows()
    rows = [[name, *row[1:]] for name, row in zip(view.clients, rows, strict=True)]
    texts, title = found.sentences(), "Asked, given, certified"
    if run.looks is None:  # nothing but the run's own influences was asked for
        title, head[2], texts = "Outcomes", "share of influence", texts[2:]
        head, rows = [head[0], *head[2:]], [[row[0], *row[2:]] for row in rows]
        if len(head) == 2:
            return None
    if "brought" in head:
        texts.append(
            "Brought: by how much the loss of the shared model falls because the client takes "
            "part (its Shapley value). Below 0 its data differs from the others', which is no "
            "misconduct."
        )
    seed = [f"Of seed {run.seeds[0]}."] if run.many else []
    return Part(title, table(head, rows) + paragraphs([*seed, *texts]), _steered(view))


def _steered(view: View) -> tuple[Chart, ...]:
    """The controller's factor for every client, over the rounds."""
    scales = view.run.scales
    if view.run.looks is None or scales.shape[1] > MOST_CLIENTS:
        return ()
    curves = [Curve(n, view.rounds, scales[view.at, i]) for i, n in enumerate(view.clients)]
    return (view.chart("scales", "The controller's factors", "factor of the scale", curves),)
