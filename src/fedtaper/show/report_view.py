"""A run as it is shown on a page: names, the rounds that are drawn, curves and charts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError, FedtaperWarning
from fedtaper.core.tables import capital
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.show.charts import MOST_CURVES, Chart, Curve, thin
from fedtaper.show.report_compare import many_rounds, wide
from fedtaper.show.report_page import slug

if TYPE_CHECKING:
    from fedtaper.auditing import Audit

Array = NDArray[np.float64]
QUANTILES = (0.1, 0.5, 0.9)


class View:
    """A run as it is shown: its name, its clients' names, the rounds that are drawn."""

    def __init__(self, run: Run, name: str, points: int) -> None:
        self.run, self.name = run, name
        self.clients = labels.clients(run)
        self.at = thin(len(run.round), points)
        self.rounds = run.round[self.at]
        self.log_x = many_rounds([run])

    @property
    def away(self) -> bool:
        """Whether a seed diverged, or its model is farther away than a number can say."""
        ends = self.run.metrics.get("error", np.zeros((1, 1)))[..., -1:]
        return bool(self.run.diverged) or not np.isfinite(ends).all()

    def colour(self, client: int) -> int | None:
        """A client's place in the palette, the same in all charts; None if there are too many."""
        return client if len(self.clients) <= MOST_CURVES else None

    @cached_property
    def audit(self) -> tuple[Audit, list[str]] | None:
        """The audit (of the first seed) of a run with updates or challenges, and its warnings."""
        run = self.run
        if run.updates is None and run.challenges is None:
            return None
        from fedtaper.auditing import audit

        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            try:
                found = audit(run, seed=run.seeds[0] if run.many else None)
            except FedtaperError:  # asynchronous, or its first seed diverged at once
                return None
        said = [str(w.message) for w in noted if issubclass(w.category, FedtaperWarning)]
        return found, [f"{capital(text)}." for text in dict.fromkeys(said)]

    def curve(self, name: str, values: Array, **how: Any) -> Curve:
        """A curve of recorded rounds: the median, with a band if there are several seeds."""
        found = np.atleast_2d(values)[:, self.at]
        if len(found) == 1:
            return Curve(name, self.rounds, found[0], **how)
        finite = np.where(np.isfinite(found), found, np.inf)
        method = "linear" if np.isfinite(found).all() else "nearest"  # inf - inf has no value
        low, middle, high = np.quantile(finite, QUANTILES, axis=0, method=method)  # type: ignore[call-overload]  # one of two words
        return Curve(name, self.rounds, middle, low, high, **how)

    def chart(self, name: str, title: str, ylabel: str, curves: Sequence[Curve]) -> Chart:
        """A chart of recorded rounds; log axes where they show more."""
        log = wide([np.asarray(c.values, dtype=np.float64) for c in curves])
        stem = f"{slug(self.name)}-{slug(name)}"
        return Chart(stem, title, ylabel, tuple(curves), log_x=self.log_x, log_y=log)
