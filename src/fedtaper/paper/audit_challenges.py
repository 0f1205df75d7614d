"""Claim A3: with challenges the audit holds for any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.paper.audit_figures import estimates, found_when
from fedtaper.paper.challenge_federations import FRESH, LARGE, PAIRS, TRUE, look
from fedtaper.paper.claim import Check, Claim, Outcome, Study, Verdict
from fedtaper.paper.statistics import share_interval

ROWS = "a3_federations.jsonl"
SHARES = {  # federations of each pair for every 100 seeds of a study: 2,000 honest clients
    "regression, unequal features": 120,
    "logistic, breast cancer": 40,
    "MLP, wine": 70,
    "MLP, digits": 40,
    "softmax, digits": 40,
    "CNN with GroupNorm, digits": 24,
    "transformer, digits": 24,
}
MANY = 6  # federations of a pair of LARGE, if its data set is asked for
MUST = (  # kind, by round, at least this share
    ("delta 1", 60, 0.95),
    ("delta 0.9", 100, 0.9),
    ("fades later", 100, 0.9),
    ("idle", 100, 1.0),
    ("noise", 100, 0.95),
    ("copying", 100, 0.95),
)
FALSE_ALARMS, EACH, COVERAGE, WORK = 0.01, 0.02, (0.92, 0.98), 0.1
WITHOUT = (
    "ResNet-9 on BloodMNIST is not among these pairs: "
    "fedtaper reproduce A3 --data-set bloodmnist --device cuda adds it"
)
Rows = list[dict[str, Any]]


def gather(
    out: Path, counts: dict[str, int], say: Any = lambda text: None, device: str | None = None
) -> Rows:
    """One row per client of every federation; those that are in the file already are not run.

    ``device`` is for the large networks.
    """
    path = out / ROWS
    rows: Rows = []
    if path.is_file():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    known = {(row["pair"], row["seed"]) for row in rows}
    for done, name, seed in order(counts):
        if (name, seed) in known:
            continue
        say(f"A3: {done:.0%} of the federations; {name}, seed {seed}")
        made = look(name, seed, device if name in LARGE else None)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in made))
        rows += made
    return rows


def order(counts: dict[str, int]) -> list[tuple[float, str, int]]:
    """Share done, pair and seed of every federation: an interrupted study has seen all pairs."""
    return sorted(
        (k / counts[name], name, FRESH + 1000 * number + k)
        for number, name in enumerate((*PAIRS, *LARGE))
        for k in range(counts.get(name, 0))
    )


def checks(rows: Rows) -> list[Check]:
    """The numbers that decide, each with its interval."""
    honest = [row for row in rows if row["kind"] == "honest"]
    out = [_most("honest clients ever accused", honest, FALSE_ALARMS)]
    for name in (*PAIRS, *LARGE):
        mine = [row for row in honest if row["pair"] == name]
        if mine:
            out.append(_most(f"honest clients ever accused, {name}", mine, EACH))
    for kind, round_, least in MUST:
        mine = [row for row in rows if row["kind"] == kind]
        if mine:
            found = np.array([0 < row["accused"] <= round_ for row in mine])
            value, low, high = share_interval(found)
            name = f"{kind} found by round {round_}"
            out.append(Check(name, value, low, high, f"at least {least:g}", value >= least))
    value, low, high = share_interval(_covered(rows))
    passed = COVERAGE[0] <= value <= COVERAGE[1]
    out.append(Check("coverage of 95 % intervals", value, low, high, "0.92 to 0.98", passed))
    work = max(row["work"] for row in rows)
    out.append(Check("extra local work", work, work, work, "at most 0.1", work <= WORK))
    return out


def _most(name: str, rows: Rows, most: float) -> Check:
    value, low, high = share_interval(np.array([row["accused"] > 0 for row in rows]))
    return Check(name, value, low, high, f"at most {most:g}", value <= most)


def _covered(rows: Rows) -> Any:
    """Whether each interval contains the true excess, if there is one true number."""
    inside = [
        row["excess"][1] <= TRUE[row["kind"]] <= row["excess"][2]
        for row in rows
        if row["kind"] in TRUE and np.isfinite(row["excess"][0])
    ]
    return np.array(inside)


def by_pair(rows: Rows) -> dict[str, dict[str, Any]]:
    """The results of each pair of model and data, for the record."""
    out = {}
    for name in (*PAIRS, *LARGE):
        mine = [row for row in rows if row["pair"] == name]
        if not mine:
            continue
        table: dict[str, Any] = {"federations": len({row["seed"] for row in mine})}
        table["honest clients"] = sum(row["kind"] == "honest" for row in mine)
        table["coverage"] = round(float(_covered(mine).mean()), 3)
        for kind, round_, _ in MUST:
            hits = [0 < row["accused"] <= round_ for row in mine if row["kind"] == kind]
            table[f"{kind} found by round {round_}"] = f"{sum(hits)} of {len(hits)}"
        out[name] = table
    return out


def judge_challenges(study: Study) -> Outcome:
    """Fresh federations of every pair of model and data, unlike and unequal sites."""
    counts = {name: max(1, share * study.seeds // 100) for name, share in SHARES.items()}
    if study.options.get("data_set", "digits") != "digits":
        counts |= dict.fromkeys(LARGE, MANY)
    rows = gather(study.out, counts, study.say, study.options.get("device"))
    found = checks(rows)
    value = {check.name: check.value for check in found}
    failed = [check for check in found if not check.passed]
    honest = sum(row["kind"] == "honest" for row in rows)
    estimates(rows, study.figure("a3_estimates.png"))
    found_when(rows, study.figure("a3_found.png"))
    summary = (
        f"of {honest} honest clients over {len(by_pair(rows))} pairs of model and data "
        f"{value['honest clients ever accused']:.2%} were ever accused; found: "
        + ", ".join(f"{kind} {value.get(_name(kind, k), float('nan')):.0%}" for kind, k, _ in MUST)
        + f"; intervals cover {value['coverage of 95 % intervals']:.1%}"
    )
    if failed:
        short = "; ".join(f"{check.name} ({check.value:.3f})" for check in failed)
        summary += f"; missed thresholds: {short}"
    settings = {"first seed": FRESH, "federations": counts, "by pair": by_pair(rows)}
    verdict: Verdict = "not-with-these-settings" if failed else "reproduced"
    figures = ("a3_estimates.png", "a3_found.png")
    nearest = "" if any(name in counts for name in LARGE) else WITHOUT
    return Outcome(verdict, summary, tuple(found), nearest, figures, settings)


def _name(kind: str, round_: int) -> str:
    return f"{kind} found by round {round_}"


CLAIMS = [
    Claim(
        "A3",
        "With challenges, clients that taper faster than declared are found for any model, and "
        "honest clients are not accused",
        "share of clients ever accused, by kind, over fresh federations of several pairs of "
        "model and data with unlike and unequal sites; coverage of the 95 % intervals for delta; "
        "extra work",
        "more than 1 % of honest clients ever accused, or 2 % in a pair; an attacker found less "
        "often than its threshold; coverage outside 92 to 98 %; more than 10 % extra local work",
        judge_challenges,
    )
]
