"""The evidence on each client as it grew: the estimate and verdict after each look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing import ClientAudit, audit
from fedtaper.auditing.judge import LEAST_ROUNDS, judge
from fedtaper.auditing.traces import trace_of
from fedtaper.core.tables import capital
from fedtaper.results import Run

Array = NDArray[np.float64]
LOOKS = 12  # where there are no challenges, evenly in log round
MOST = 24  # looks at challenges, likewise where there are more


@dataclass(frozen=True)
class History:
    """One client: its estimated taper and the interval after each look, and the last verdict."""

    said: ClientAudit
    round: NDArray[np.int64]
    delta: Array
    low: Array
    high: Array
    asked: NDArray[np.int64]  # the rounds with an answer to a challenge
    name: str  # the client in words

    @property
    def sentence(self) -> str:
        """The evidence in words, for readers who do not train models."""
        c, who = self.said, capital(self.name)
        about = f"declared a taper of {c.declared_delta:g}"
        if c.verdict == "idle":
            return f"{who} {about}, but has sent nothing since round {c.since}."
        if c.verdict in ("noise", "copying"):
            what = "random numbers" if c.verdict == "noise" else "copies of the others' work"
            return f"{who} {about}, but has sent {what} since round {c.since}."
        if not np.isfinite(c.delta):
            known = "estimate: see the note above" if c.notes else "evidence for or against it yet"
            return f"{who} {about}. There is no {known}."
        seen = f"its contributions show {c.delta:.2f} (between {c.delta_low:.2f} and "
        seen += f"{c.delta_high:.2f})"
        if c.verdict == "as declared":
            return f"{who} {about}, and {seen}: it contributes as it said."
        if c.verdict in ("fading", "rising"):
            way = "withdraws faster" if c.verdict == "fading" else "takes more influence"
            sure = f"This has been certain since round {c.since}; the chance that an honest client "
            return (
                f"{who} {about}, but {seen}: it {way} than it said. {sure}"
                "is ever accused is at most 1 %."
            )
        return f"{who} {about}; {seen}. That is not enough for a verdict yet."


def histories(run: Run, seed: int | None = None, level: float = 0.95) -> list[History]:
    """The evidence on every client of a run, look by look."""
    from scipy.special import ndtri, stdtrit

    trace, found = trace_of(run, seed), audit(run, seed=seed, level=level)
    if trace.asked is not None:
        count = len(trace.asked.round)
        some = np.geomspace(1, count, MOST) if count > MOST else np.arange(1, count + 1)
        looks = trace.asked.round[np.unique(some.round().astype(int)) - 1]
    else:
        last = trace.norms.shape[1]
        looks = np.unique(np.geomspace(min(LEAST_ROUNDS, last), last, LOOKS).round().astype(int))
    each = [judge(trace.until(int(k))) for k in looks]
    excess, error = (np.array([getattr(f, n) for f in each]) for n in ("excess", "error"))
    excess = np.where(np.isfinite(error), excess, np.nan)
    freedom = np.array([f.freedom for f in each])
    exact = np.where(np.isfinite(freedom), stdtrit(freedom, 0.5 + level / 2), 0.0)
    width = np.where(exact > 0, exact, ndtri(0.5 + level / 2)) * error
    out = []
    for i, c in enumerate(found.clients):
        delta, half = c.declared_delta + excess[:, i], width[:, i]
        asked = looks[:0]
        if trace.asked is not None:
            asked = trace.asked.round[np.isfinite(trace.asked.q[i])]
        out.append(History(c, looks, delta, delta - half, delta + half, asked, found.name(i)))
    return out
