"""Claim A1: how often the audit finds an attacker, and how often it accuses an honest client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing.records import ACCUSATIONS
from fedtaper.paper import audit_figures as figures
from fedtaper.paper.claim import Check, Claim, Outcome, Study
from fedtaper.paper.federations import (
    ATTACKERS,
    DECIDING,
    EXCESS,
    FRESH,
    HETEROGENEITY,
    LOOKS,
    ODDITIES,
    Look,
    looks,
)
from fedtaper.paper.statistics import share_interval

HONEST = ("honest", *ODDITIES)
TAPERING = (*HONEST, "smaller c", *EXCESS)  # whose excess is one number, the same all along
MUST = (  # attacker, by round, from which witness, at least this share
    ("delta 0.9", 100, "updates", 0.95),
    ("delta 1", 40, "updates", 0.95),
    ("idle", 40, "updates", 1.0),
    ("noise", 100, "updates", 0.95),
    ("copying", 100, "updates", 0.95),
    ("delta 0.9", 100, "norms", 0.95),
    ("delta 1", 40, "norms", 0.95),
    ("idle", 40, "norms", 1.0),
)
FALSE_ALARMS, COVERAGE = 0.01, (0.92, 0.98)
PER_SEED = 10  # federations for each seed of a study: 1,000 by default
WITNESSES = ("updates", "norms")


class Table:
    """Audits as columns: one row per client of a federation, at a round, with a witness."""

    def __init__(self, found: Iterable[Look]) -> None:
        rows = [row for look in found for row in _rows(look)]
        names = ("kind", "round", "witness", "verdict", "excess", "error", "slope", "slope_error")
        self.columns = {
            name: np.array(c) for name, c in zip(names, zip(*rows, strict=True), strict=True)
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def pick(self, kinds: Iterable[str], round_: int, witness: str) -> NDArray[np.bool_]:
        """The rows of these kinds, at that round, with that witness."""
        at = (self["round"] == round_) & (self["witness"] == witness)
        return at & np.isin(self["kind"], list(kinds))

    def accused(self, kinds: Iterable[str], round_: int, witness: str) -> NDArray[np.bool_]:
        """Whether each of them is accused."""
        return np.isin(self["verdict"][self.pick(kinds, round_, witness)], ACCUSATIONS)

    def share_accused(self, kinds: Iterable[str], round_: int, witness: str) -> float:
        """How many of them are accused, of all; NaN where there are none."""
        found = self.accused(kinds, round_, witness)
        return float(found.mean()) if found.size else float("nan")

    def scores(self, round_: int, witness: str, plain: bool = False) -> NDArray[np.float64]:
        """(estimate - truth) / error, for clients that taper at one rate throughout."""
        rows = self.pick(TAPERING, round_, witness)
        truth = np.array([EXCESS.get(kind, 0.0) for kind in self["kind"][rows]])
        names = ("slope", "slope_error") if plain else ("excess", "error")
        value, error = (self[name][rows] for name in names)
        found = np.isfinite(error)
        return ((value - truth) / error)[found]


def _rows(look: Look) -> list[tuple[Any, ...]]:
    f = look.finding
    return [
        (kind, look.round, look.witness, f.verdicts[i], f.excess[i], f.error[i],
         look.slope[i], look.slope_error[i])
        for i, kind in enumerate(look.kinds)
    ]  # fmt: skip


def measure(first: int, count: int, rounds: tuple[int, ...] = DECIDING, **how: Any) -> Table:
    """Audit that many federations, seeds from ``first`` on."""
    return Table(
        look for seed in range(first, first + count) for look in looks(seed, rounds, **how)
    )


def checks(table: Table) -> list[Check]:
    """The numbers that decide, each with its interval."""
    out = []
    for witness in WITNESSES:
        for round_ in (40, 100):
            value, low, high = share_interval(table.accused(HONEST, round_, witness))
            name = f"honest clients accused, round {round_}, from {witness}"
            out.append(Check(name, value, low, high, "at most 0.01", value <= FALSE_ALARMS))
    for kind, round_, witness, least in MUST:
        value, low, high = share_interval(table.accused([kind], round_, witness))
        name = _name(kind, round_, witness)
        out.append(Check(name, value, low, high, f"at least {least:g}", value >= least))
    for witness in WITNESSES:
        for round_ in (40, 100):
            inside = np.abs(table.scores(round_, witness)) < 1.959964
            value, low, high = share_interval(inside)
            name = f"coverage of 95 % intervals, round {round_}, from {witness}"
            passed = COVERAGE[0] <= value <= COVERAGE[1]
            out.append(Check(name, value, low, high, "0.92 to 0.98", passed))
    return out


def _name(kind: str, round_: int, witness: str) -> str:
    return f"{kind} found by round {round_}, from {witness}"


def judge_power(study: Study) -> Outcome:
    """A thousand fresh federations of the paper's size; fewer for curves and heterogeneity."""
    count, fewer = study.seeds * PER_SEED, max(10, study.seeds)
    study.say(f"A1: {count} federations of the paper's size")
    main = measure(FRESH, count)
    tables = {}
    for name, how in HETEROGENEITY.items():
        study.say(f"A1: {fewer} federations, {name}, round by round")
        tables[name] = measure(FRESH + count, fewer, LOOKS, **how)
    found = checks(main)
    figures.detection(tables["the paper's"], study.figure("a1_detection.png"))
    figures.calibration(main, study.figure("a1_calibration.png"))
    figures.heterogeneity(tables, study.figure("a1_heterogeneity.png"))
    value = {c.name: c.value for c in found}
    failed = [c for c in found if not c.passed]
    summary = (
        f"by round 100 {value['delta 0.9 found by round 100, from updates']:.1%} of those that "
        f"taper with 0.9 are found, by round 40 "
        f"{value['delta 1 found by round 40, from updates']:.1%} with 1, at "
        f"{value['honest clients accused, round 100, from updates']:.2%} false accusations; from "
        f"sizes alone {value['delta 0.9 found by round 100, from norms']:.1%} and "
        f"{value['delta 1 found by round 40, from norms']:.1%} at "
        f"{value['honest clients accused, round 100, from norms']:.2%}"
    )
    if failed:
        summary += "; missed thresholds: " + "; ".join(f"{c.name} ({c.value:.3f})" for c in failed)
    settings = {
        "first seed": FRESH,
        "federations": {"deciding": count, "each heterogeneity": fewer},
        "attackers": {k: repr(v) for k, v in ATTACKERS.items()},
        "by heterogeneity": {name: _numbers(table) for name, table in tables.items()},
    }
    return Outcome(
        "not-with-these-settings" if failed else "reproduced",
        summary,
        tuple(found),
        "",
        ("a1_detection.png", "a1_calibration.png", "a1_heterogeneity.png"),
        settings,
    )


def _numbers(table: Table) -> dict[str, float]:
    return {c.name: round(c.value, 4) for c in checks(table)}


CLAIMS = [
    Claim(
        "A1",
        "Clients that do not contribute as declared are found from what they send, and honest "
        "clients are not accused",
        "share of clients accused, by kind, round and witness, over fresh federations of the "
        "paper's size with up to 3 attackers among 10 clients and honest oddities; coverage of "
        "the 95 % intervals for delta",
        "more than 1 % of honest clients accused; an attacker found less often than its "
        "threshold; coverage outside 92 to 98 %",
        judge_power,
    )
]
