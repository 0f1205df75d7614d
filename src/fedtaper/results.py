"""What came of an experiment: the record that engines fill and everything else reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.experiment import Experiment

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """A run that diverged: in which round, at which client, and why."""

    seed: int
    round: int
    client: int
    reason: str

    def __str__(self) -> str:
        where = f"seed {self.seed} diverged in round {self.round} at client {self.client}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True)
class Run:
    """What came of an experiment. With many seeds every array has a leading axis of seeds.

    Attributes:
        experiment: what was run.
        seeds: the seeds, in order; ``many`` says whether there is a leading axis.
        round: the recorded rounds, counted from 1 (all of them unless thinned).
        n, t: the clock, and the ODE's time T_k (Eqn17), after each recorded round.
        w: trajectory of the shared model, (rounds, dim), or None where the model is large.
        w0: the shared model before round 1, or None where the model is large.
        metrics: name to array, one value per recorded round.
        update_norms: size of each client's update, (rounds, L); 0 where it was absent.
        updates: the updates themselves, (rounds, L, dim), where they were asked for.
        diverged: the seeds that diverged; their later rounds are NaN (one
            seed: cut off).
        engine, seconds: which engine, and how long it took.
        path: the run folder, if it was stored.
        model: the last shared model as one vector, where w is None.
    """

    experiment: Experiment
    seeds: tuple[int, ...]
    many: bool
    round: NDArray[np.int64]
    n: Array
    t: Array
    w: Array | None
    w0: Array | None
    metrics: dict[str, Array]
    update_norms: Array
    updates: Array | None = None
    diverged: tuple[Divergence, ...] = ()
    engine: str = ""
    seconds: float = 0.0
    path: Path | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    model: Array | None = None

    def __repr__(self) -> str:
        ends = f", {len(self.diverged)} diverged" if self.diverged else ""
        return (
            f"Run({len(self.round)} rounds x {len(self.seeds)} seeds, "
            f"metrics {', '.join(self.metrics)}{ends})"
        )
