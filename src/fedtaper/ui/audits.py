"""An audit of a stored run, and how the evidence on each client grew over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtaper.auditing import audit
from fedtaper.auditing.history import History, histories
from fedtaper.core.errors import FedtaperError
from fedtaper.show import labels
from fedtaper.show.report_findings import AUDIT
from fedtaper.ui.detail import full_run
from fedtaper.ui.plain import number, numbers


def audited(folder: Path) -> dict[str, Any]:
    """The verdicts at the end, and how the evidence on each client grew."""
    run = full_run(folder)
    if not len(run.round):
        raise FedtaperError("the run recorded no round, so there is nothing to audit")
    seed = run.seeds[0] if run.many else None
    final = audit(run, seed=seed)
    _, *rows = final.rows()
    unknown = sum(c.verdict.startswith("cannot tell") for c in final.clients)
    names = labels.clients(run)
    rows = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    return {
        "title": final.title + (f"; seed {seed} of {len(run.seeds)}" if run.many else ""),
        "caveat": final.caveat,
        "head": AUDIT,
        "unknown": unknown,
        "rows": rows,
        "accused": [c.client for c in final.accused],
        "remarks": final.remarks(),
        "evidence": [_evidence(h) for h in histories(run, seed)],
    }


def _evidence(found: History) -> dict[str, Any]:
    """One client's estimated taper with its interval after each look."""
    said = found.said
    return {
        "who": found.name,
        "verdict": said.verdict,
        "accused": said.accused,
        "since": said.since,
        "sentence": found.sentence,
        "declared": number(said.declared_delta),
        "round": found.round.tolist(),
        "delta": numbers(found.delta),
        "low": numbers(found.low),
        "high": numbers(found.high),
    }
