"""A claim of the paper, its verdict from data, and the study that judges claims.

A :class:`Claim` says what is measured and what would refute it. Its ``judge`` gets a
:class:`Study`, runs what it needs through it (runs that several claims share are run once),
draws its figures, and returns an :class:`Outcome`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedtaper.core.errors import FedtaperError, nearest, one_line
from fedtaper.experiment import Experiment
from fedtaper.paper import ledger_file
from fedtaper.results import Run
from fedtaper.simulation.drive import run as simulate
from fedtaper.storage import store

Verdict = Literal["reproduced", "not-at-this-horizon", "not-with-these-settings"]


@dataclass(frozen=True)
class Check:
    """One deciding number: what it is, its value with an interval, and the threshold it met."""

    name: str
    value: float
    low: float
    high: float
    threshold: str
    passed: bool


@dataclass(frozen=True)
class Outcome:
    """What a study of one claim found."""

    verdict: Verdict
    summary: str
    checks: tuple[Check, ...]
    nearest: str
    figures: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def outcome_of(
    checks: Iterable[Check],
    summary: str,
    nearest: tuple[str, str],
    figures: tuple[str, ...],
    settings: dict[str, Any],
) -> Outcome:
    """Reproduced if every check passed; ``nearest`` is the setting in that case, and otherwise."""
    made = tuple(checks)
    passed = all(check.passed for check in made)
    verdict: Verdict = "reproduced" if passed else "not-with-these-settings"
    return Outcome(verdict, summary, made, nearest[0] if passed else nearest[1], figures, settings)


@dataclass(frozen=True)
class Claim:
    """One row of the ledger."""

    id: str
    statement: str
    measure: str
    refuted_by: str
    judge: Callable[[Study], Outcome]


@dataclass
class Study:
    """Where claims are judged: number of seeds, output folder, options, and shared runs."""

    out: Path
    seeds: int = 100
    options: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    _known: dict[Any, Any] = field(default_factory=dict)

    def run(self, experiment: Experiment, seeds: Iterable[int] | None = None, **how: Any) -> Run:
        """The experiment over the study's seeds (run once, however many claims ask for it)."""
        chosen = tuple(range(self.seeds) if seeds is None else seeds)
        key = (experiment, chosen, tuple(sorted(how.items())))
        return self.once(key, lambda: simulate(experiment, seeds=chosen, progress=False, **how))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of ``make``, made once per study: for work that several claims share."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def figure(self, name: str) -> Path:
        """Where a figure goes; it is listed in the outcome by this path's name."""
        return self.out / name


def reproduce(
    claims: Iterable[Claim],
    out: str | Path,
    *,
    seeds: int = 100,
    options: dict[str, Any] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Judge claims, write ``claims.json`` and the figures into ``out``, return the rows.

    Rows of other claims in the folder are kept. With ``resume``, claims that were judged there
    with the same seeds, options and version are not judged again.
    """
    folder = store.prepare(out, resume=True)
    with store.only_writer(folder):
        study = Study(folder, seeds, options or {}, say)
        chosen, made = list(claims), ledger_file.made_with(seeds, study.options)
        known = ledger_file.known(folder, made) if resume else {}
        wanted = [claim.id for claim in chosen]
        ledger_file.write(folder, [], made, wanted)
        for claim in chosen:
            if claim.id in known:
                continue
            say(f"{claim.id}: {claim.statement}")
            began = time.perf_counter()
            try:
                outcome = claim.judge(study)
            except OSError as trouble:  # a full disk, say; what was judged before is stored
                raise FedtaperError(
                    f"{claim.id} stopped: {one_line(trouble)}; resume keeps the claims "
                    "that were judged"
                ) from trouble
            row = as_row(claim, outcome, time.perf_counter() - began)
            known[claim.id] = row | {"made": made}
            ledger_file.write(folder, [known[claim.id]], made)
    return [known[one] for one in wanted]


def as_row(claim: Claim, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """A claim and its outcome as they stand in ``claims.json``."""
    return {
        "id": claim.id,
        "statement": claim.statement,
        "verdict": outcome.verdict,
        "summary": outcome.summary,
        "measure": claim.measure,
        "refuted_by": claim.refuted_by,
        "numbers": [vars(check) for check in outcome.checks],
        "nearest": outcome.nearest,
        "figures": list(outcome.figures),
        "settings": outcome.settings,
        "seconds": round(seconds, 2),
    }


def pick(known: dict[str, Claim], wanted: Iterable[str]) -> list[Claim]:
    """Claims by id or family ("R" for R1 to R9), or "all", in the ledger's order."""
    chosen: set[str] = set()
    for word in wanted:
        key = word.upper()
        found = {one for one in known if key in (one, one[0], "ALL")}
        if not found:
            raise FedtaperError(
                f"there is no claim {word}: choose from {', '.join(known)}{nearest(key, known)}"
            )
        chosen |= found
    return [claim for key, claim in known.items() if key in chosen]
