"""One page for the board: what was asked, what was given, what is certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.auditing import Audit, audit
from fedtaper.core.checks import check_number, check_type
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_quadratic
from fedtaper.core.tables import Brief, html, label, plain
from fedtaper.outcomes.contributions import Contributions, contributions
from fedtaper.outcomes.fair import Fair, fair
from fedtaper.outcomes.intervals import Intervals, intervals
from fedtaper.results import Run, seeds_in_words
from fedtaper.theory.equilibria import shares

Array = NDArray[np.float64]
Found = TypeVar("Found")


@dataclass(frozen=True, repr=False)
class Board(Brief):
    """Asked, given, certified: data for a page, with what is missing and why.

    Attributes:
        goal: what was asked for, in words.
        asked: each client's share of the influence as planned, (L,).
        given: its effective share in the run's last round, (L,).
        audit: what the clients' updates show, if the run kept them.
        intervals: every client's loss with its interval, if they can be computed.
        contributions: what each client contributed, if that can be computed.
        gap: the certificate of the goal, NaN without one.
        missing: what is missing, and why, one sentence each.
    """

    goal: str
    asked: Array
    given: Array
    audit: Audit | None
    intervals: Intervals | None
    contributions: Contributions | None
    gap: float
    missing: tuple[str, ...]
    names: tuple[str, ...] = ()  # of the clients, where they have any

    def rows(self) -> list[list[str]]:
        """One table: a heading, then one row per client."""
        head = ["client", "asked", "given"]
        columns: list[list[str]] = [
            [label(self.names, i) for i in range(len(self.asked))],
            [f"{v:.1%}" for v in self.asked],
            [f"{v:.1%}" for v in self.given],
        ]
        if self.audit is not None:
            head.append("audit")
            columns.append([client.verdict for client in self.audit.clients])
        if self.intervals is not None and self.intervals.losses is not None:
            band = self.intervals.losses
            head += ["loss", f"{self.intervals.level:.0%} interval"]
            columns.append([f"{v:.5g}" for v in band.value])
            ends = zip(band.low, band.high, strict=True)
            columns.append([f"{low:.5g} to {high:.5g}" for low, high in ends])
        if self.contributions is not None:
            head.append("brought")
            columns.append([f"{v:.4g}" for v in self.contributions.shapley])
        return [head, *(list(row) for row in zip(*columns, strict=True))]

    def sentences(self) -> list[str]:
        """What the table shows, and what is certified, in words."""
        off = float(np.abs(self.asked - self.given).max())
        out = [f"Asked: {self.goal}."]
        out.append(f"Given: no client's share differs from the plan by more than {off:.1%}.")
        if self.audit is not None:
            out.append(f"Audited: {self._audited}.")
        if not np.isnan(self.gap):
            out.append(
                f"Certified: no influences serve the goal better by more than {self.gap:.1e}."
            )
        if self.intervals is not None:
            out.append(f"The losses are for {self.intervals.target}.")
        return [*out, *self.missing]

    @property
    def _audited(self) -> str:
        """What the audit found: how many did as declared, who did not, how many are unknown."""
        assert self.audit is not None
        count = len(self.audit.clients)
        kept = sum(c.verdict == "as declared" for c in self.audit.clients)
        accused = [label(self.names, i) for i, c in enumerate(self.audit.clients) if c.accused]
        unknown = count - kept - len(accused)
        parts = [f"{kept} of {count} clients did what they declared"] if kept or accused else []
        if accused:
            parts.append(f"{len(accused)} did not ({', '.join(accused)})")
        if unknown:
            parts.append(f"this run cannot tell for {unknown} of {count}")
        return "; ".join(parts)

    def __str__(self) -> str:
        return "\n".join(["Asked, given, certified", *plain(self.rows()), *self.sentences()])

    def _repr_html_(self) -> str:
        return html("Asked, given, certified", self.rows(), self.sentences())


def board(
    run: Run,
    asked: Fair | ArrayLike | None = None,
    *,
    level: float = 0.95,
    seed: int | None = None,
    quick: bool = False,
) -> Board:
    """Everything that the people responsible for a run need to know about it, as data.

    Args:
        run: the run; if it has many seeds, one of them is used.
        asked: what was planned: a ``Fair``, or influences. By default, for a steered run of a
            convex problem, the influences that serve its goal best; otherwise the run's own, so
            that what was given is what was asked.
        level: of the intervals.
        seed: which seed of a run over many; by default the first.
        quick: whether to leave out what takes more than a moment: exact answers about a torch
            model.

    >>> import fedtaper as ft
    >>> found = ft.fair(ft.LinearRegression(num_clients=3, samples=200))
    >>> plan = found.plan(rounds=300, local_steps=5, offset=50)
    >>> page = ft.board(ft.run(plan.experiment, progress=False), found)
    >>> page.rows()[0]
    ['client', 'asked', 'given', 'loss', '95% interval', 'brought']
    """
    check_type("board", run, Run)
    check_number("level", level, above=0, below=1)
    if run.many:
        run = _one_seed(run, run.seeds[0] if seed is None else seed)
    e = run.experiment
    given = e.influence(run.last_round).share
    missing: list[str] = []

    def attempt(what: str, make: Callable[[], Found]) -> Found | None:
        try:
            return make()
        except FedtaperError as problem:
            missing.append(f"{what}: missing, because {problem}.")
            return None

    exact = is_quadratic(e.problem) or not quick
    if asked is None and e.steering is not None and exact:
        plan = e.steering
        how: dict[str, Any] = {"q": plan.q, "t": plan.t, "baseline": plan.baseline}
        asked = attempt("Certificate", lambda: fair(e.problem, plan.goal, **how))
    if isinstance(asked, Fair):
        goal, target, gap = f"goal {asked.goal}", asked.p, asked.gap
    else:
        goal, gap = "the planned influences", np.nan
        if e.steering is not None:
            goal = f"goal {e.steering.goal}, steered during training"
        target = given if asked is None else shares(asked, e.num_clients)
    audited = None
    if run.updates is not None or run.challenges is not None:
        audited = attempt("Audit", lambda: audit(run))
    else:
        missing.append("Audit: missing, because the run kept no updates (--updates, updates=True).")
    if not exact:
        missing.append("Intervals, contributions: not shown here; use ft.board or fedtaper board.")
    return Board(
        goal=goal,
        asked=target,
        given=given,
        audit=audited,
        intervals=attempt("Intervals", lambda: intervals(run, level=level)) if exact else None,
        contributions=attempt("Contributions", lambda: contributions(e)) if exact else None,
        gap=gap,
        missing=tuple(missing),
        names=e.names or (),
    )


def _one_seed(run: Run, seed: int) -> Run:
    if seed not in run.seeds:
        raise FedtaperError(
            f"the run has no seed {seed}: choose one of {seeds_in_words(run.seeds)}"
        )
    k = run.seeds.index(seed)

    def pick(values: Any) -> Any:
        return None if values is None else values[k]

    return replace(
        run,
        seeds=(seed,),
        many=False,
        w=pick(run.w),
        w0=pick(run.w0),
        metrics={name: values[k] for name, values in run.metrics.items()},
        update_norms=run.update_norms[k],
        updates=pick(run.updates),
        model=pick(run.model),
    )
