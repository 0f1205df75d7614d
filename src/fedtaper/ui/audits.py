"""An audit of a stored run, and how each client's evidence grew over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing import audit, trace_of
from fedtaper.auditing.judge import Trace, judge
from fedtaper.core.errors import FedtaperError
from fedtaper.ui.detail import full_run
from fedtaper.ui.plain import numbers

LOOKS = 12  # rounds at which the evidence is looked at
FIRST = 8  # rounds that an estimate needs


def audited(folder: Path) -> dict[str, Any]:
    """The verdicts at the end, and the evidence at several rounds before it."""
    run = full_run(folder)
    if not len(run.round):
        raise FedtaperError("the run recorded no round, so there is nothing to audit")
    seed = run.seeds[0] if run.many else None
    final = audit(run, seed=seed)
    head, *rows = final.rows()
    places = looks(len(run.round))
    return {
        "title": final.title + (f"; seed {seed} of {len(run.seeds)}" if run.many else ""),
        "caveat": final.caveat,
        "head": head,
        "rows": rows,
        "accused": [c.client for c in final.accused],
        "remarks": final.remarks(),
        "round": [int(run.round[k - 1]) for k in places],
        "evidence": numbers(evidence(trace_of(run, seed), places).T),
    }


def evidence(trace: Trace, places: list[int]) -> NDArray[np.float64]:
    """The excess taper in standard errors after so many rounds, (places, L)."""
    out = []
    for k in places:
        found = judge(trace.until(k))
        with np.errstate(divide="ignore", invalid="ignore"):
            out.append(found.excess / found.error)
    return np.stack(out)


def looks(rounds: int) -> list[int]:
    """After which rounds to look."""
    if rounds <= FIRST:
        return [rounds]
    return np.unique(np.geomspace(FIRST, rounds, LOOKS).round().astype(int)).tolist()
