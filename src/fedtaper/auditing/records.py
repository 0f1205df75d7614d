"""The result of an audit: one record per client, and a table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fedtaper.core.tables import html, label, plain

Verdict = Literal[
    "as declared", "fading", "rising", "idle", "noise", "copying", "cannot tell yet", "cannot tell"
]
ACCUSATIONS = ("fading", "rising", "idle", "noise", "copying")
SIZES_ONLY = (
    "by size alone: a client that sends noise or a copy of the others' updates, at the right "
    "size, looks the same; only the updates' directions can tell"
)
NO_WITNESS = (
    "the losses are not quadratic, so these updates cannot show how fast a client tapers: a "
    "gradient that shrinks because the model learns looks like a step size that shrinks. What "
    "helps: challenges in the experiment; or, in Python, replays on held-out data (held_out=) or "
    "the word that the losses are quadratic (quadratic=True)"
)
MISFIT = (
    "the updates do not follow the model that the audit fits: curvatures are unlike in different "
    "directions (features of unlike spread, or correlated ones), and an honest client can then "
    "look as if it tapered faster. What helps: challenges in the experiment"
)
SATURATED = (
    "its answers to challenges fall more slowly than it declared, by more than the audit can put "
    "down to large steps within a round: a faster taper could hide behind that. What helps: "
    "smaller and more challenges (every=1, share=0.01), or smaller steps"
)
TURNED = (
    "its answers to challenges point elsewhere as its steps shrink: the model changes too much "
    "within an answer to show a taper. What helps: challenges of a single update (every=1, "
    "share=0.01), which are exact, a later base round, or smaller steps"
)
DIVERGED = (
    "the run diverged in round {:,}, and updates that grow because steps are too large show "
    "nothing about tapers"
)
LIMITS = (
    "An audit cannot show the scale c (a client with half the declared c sends what an honest one "
    "with half the curvature would send, so estimates take c as declared), nor the quality of a "
    "client's data. Under secure aggregation it shows nothing, because the server sees no single "
    "update."
)


@dataclass(frozen=True)
class ClientAudit:
    """One client: what it declared, what it seems to do, and the verdict.

    ``low`` and ``high`` are the ends of an interval at the audit's level. ``p`` is influence
    at the horizon, relative to the reference client's declared one; ``evidence`` the excess taper
    in standard errors; ``since`` the round since which the evidence has held, for accusations.
    """

    client: int
    verdict: Verdict
    declared_delta: float
    delta: float
    delta_low: float
    delta_high: float
    declared_p: float
    p: float
    p_low: float
    p_high: float
    evidence: float
    since: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def accused(self) -> bool:
        """Whether the verdict is that it does not do what it declared."""
        return self.verdict in ACCUSATIONS


@dataclass(frozen=True, repr=False)
class Audit:
    """The verdicts on all clients, from ``rounds`` rounds, at clock ``n``."""

    clients: tuple[ClientAudit, ...]
    rounds: int
    n: float
    witness: Literal["updates", "norms", "challenges"]
    level: float = 0.95
    names: tuple[str, ...] = ()  # of the clients, where they have any

    @property
    def accused(self) -> tuple[ClientAudit, ...]:
        """The clients that do not do what they declared."""
        return tuple(c for c in self.clients if c.accused)

    @property
    def title(self) -> str:
        """What the table shows, in one line."""
        seen = {
            "updates": "updates",
            "norms": "sizes of the updates",
            "challenges": "answers to challenges",
        }[self.witness]
        when = f"Audit after round {self.rounds:,} (n = {self.n:,.0f}), from the {seen}"
        return f"{when}; {self.level:.0%} intervals"

    @property
    def caveat(self) -> str:
        """What this audit cannot tell, and what no audit of updates can."""
        return (
            LIMITS
            if self.witness != "norms"
            else f"{SIZES_ONLY[0].upper()}{SIZES_ONLY[1:]}. {LIMITS}"
        )

    def rows(self) -> list[list[str]]:
        """The table's cells, a heading first: declared delta and p, each beside its estimate."""
        head = ["client", "verdict", "delta", "delta estimated", "p", "p estimated", "since"]
        return [head, *([label(self.names, c.client), *_cells(c)] for c in self.clients)]

    def __str__(self) -> str:
        shown = plain(self.rows(), left=True)
        return "\n".join([self.title, *shown, *self.remarks(), self.caveat])

    def __repr__(self) -> str:
        counts = Counter(c.verdict for c in self.clients)
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return f"Audit(round {self.rounds}, from {self.witness}: {said})"

    def _repr_html_(self) -> str:
        return html(self.title, self.rows(), [*self.remarks(), self.caveat])

    def name(self, client: int) -> str:
        """A client in words: its name, or "client 3"."""
        return self.names[client] if self.names else f"client {client}"

    def remarks(self) -> list[str]:
        """What to know beside the table; what applies to every audit is in the caveat."""
        pairs = [(c.client, note) for c in self.clients for note in c.notes]
        reasons = dict.fromkeys(
            n for _, n in pairs if n in (NO_WITNESS, MISFIT) or n.startswith(DIVERGED[:16])
        )
        shown = [f"{self.name(i)}: {n}." for i, n in pairs if n not in {SIZES_ONLY, *reasons}]
        return [*shown, *(f"Cannot tell: {reason}." for reason in reasons)]


def _cells(c: ClientAudit) -> list[str]:
    return [
        c.verdict,
        f"{c.declared_delta:.3g}",
        _interval(c.delta, c.delta_low, c.delta_high),
        f"{c.declared_p:.3g}",
        _interval(c.p, c.p_low, c.p_high),
        "" if c.since is None else str(c.since),
    ]


def _interval(value: float, low: float, high: float) -> str:
    known = all(map(math.isfinite, (value, low, high)))
    return "-" if not known else f"{value:.2f} [{low:.2f}, {high:.2f}]"
