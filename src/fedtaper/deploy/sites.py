"""How often each site's update counted, and so what its influence really was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedtaper.engines.flower.client import as_numbers
from fedtaper.engines.flower.federation import Federation
from fedtaper.results import Run
from fedtaper.storage import store


def realised_influence(run: Run) -> Any:
    """Effective influence with the share of rounds in which each client counted, (L,).

    A client that was late, lost or rejected in a round adds nothing to it, like an absent
    client: its rate of participation is the one that was observed.
    """
    e = run.experiment
    rate = counted(run).mean(axis=0)
    factors = e.influence(int(run.round[-1]))
    raw = factors.server_weight * rate * factors.step_sum
    reference = raw[e.reference]
    return raw / reference if reference > 0 else np.full_like(raw, np.nan)


def counted(run: Run) -> Any:
    """Whether each client's update counted in each recorded round, (rounds, L)."""
    asked = run.experiment.present(0, int(run.round[-1]), run.seeds[0])[run.round - 1]
    return asked & np.isfinite(run.update_norms)


def site_files(run: Run, federation: Federation) -> dict[str, str]:
    """``sites.json``: for each site its schedule, the rounds it counted in, its influence."""
    if not len(run.round):
        return {}
    planned, real = run.experiment.influence().effective, realised_influence(run)
    rows = [
        {
            "site": name,
            **as_numbers(run.experiment.schedules[i]),
            "samples": int(run.experiment.problem.sizes[i]),
            "parameters": int(run.experiment.problem.dim),
            "rounds_counted": int(counted(run)[:, i].sum()),
            "rounds": len(run.round),
            "influence_planned": float(planned[i]),
            "influence_realised": float(real[i]),
        }
        for i, name in enumerate(federation.sites)
    ]
    return {store.SITES: json.dumps(rows, indent=2) + "\n"}
