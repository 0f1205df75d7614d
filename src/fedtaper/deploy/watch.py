"""The audit while the federation runs: a new accusation is an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedtaper.auditing import Auditor
from fedtaper.core.protocols import is_quadratic
from fedtaper.experiment import Experiment

EVERY = 5  # rounds between two looks


class Watch:
    """Feeds an :class:`fedtaper.Auditor` with what the sites sent."""

    def __init__(
        self,
        e: Experiment,
        sites: tuple[str, ...],
        tell: Callable[..., None],
        saved: dict[str, Any] | None = None,
    ) -> None:
        self.e, self.sites, self.tell, self.saved = e, sites, tell, saved
        self.auditor = Auditor(e.schedules, quadratic=is_quadratic(e.problem))
        self.accused: dict[int, str] = {}

    def __call__(self, k: int, norms: Any, updates: Any = None) -> None:
        """Add round k (counted from 0), and audit every few rounds."""
        self.add(k, norms, updates)
        self.look(k + 1)

    def follow(self, e: Experiment) -> None:
        """Use the current schedules, if a controller moves them."""
        self.e, self.auditor.schedules = e, list(e.schedules)
        self._catch_up()

    def _catch_up(self) -> None:
        """Add what was seen before a resume, from its checkpoint, once."""
        saved, self.saved = self.saved, None
        done = 0 if saved is None else saved["norms"].shape[1]
        if saved is not None and done and saved["round"][done - 1] == done:
            for k in range(done):
                kept = saved["updates"][0, k] if "updates" in saved else None
                self.add(k, saved["norms"][0, k], kept)

    def add(self, k: int, norms: Any, updates: Any = None) -> None:
        """Add sizes, NaN where a site did not count, and updates if they are kept."""
        asked = self.e.present(k, k + 1, self.e.seed)[0]
        sizes = np.where(asked, norms, np.nan)
        if updates is not None:
            updates = np.where(np.isfinite(sizes)[:, None], updates, np.nan)
        sums = self.e.step_sums(k, k + 1)[0]
        end = float((k + 1) * self.e.period)
        self.auditor.add(sizes, n=end, updates=updates, step_sums=sums)

    def look(self, round_: int) -> None:
        """Every few rounds, report who is accused now and was not before."""
        if round_ % EVERY:
            return
        for client in self.auditor.result().clients:
            known = self.accused.get(client.client)
            if client.accused and client.verdict != known:
                why = f"delta {client.delta:.3f}, declared {client.declared_delta:g}"
                self.tell(round_, self.sites[client.client], f"audit: {client.verdict}", why)
            if client.accused:
                self.accused[client.client] = client.verdict
