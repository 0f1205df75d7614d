"""Claims O1, O3 and O4: fair shares, contributions and prices, on fresh problems."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.outcomes.contributions import contributions
from fedtaper.outcomes.fair import Fair, fair
from fedtaper.outcomes.price import price
from fedtaper.paper.claim import Check, Claim, Outcome, Study, Verdict
from fedtaper.paper.logistic import Logistic, logistic
from fedtaper.paper.statistics import share_interval
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.goals import QFair, Tilt
from fedtaper.theory.equilibria import equilibrium

Array = NDArray[np.float64]
FRESH = 3_000_000  # seeds from here on were used for nothing else
CLIENTS, PROBLEMS, GAP, SECONDS = 50, 10, 1e-6, 2.0
DRAWN = 200  # sampled Shapley values of one problem


def _at_most(name: str, values: Any, limit: float) -> Check:
    """The largest of some numbers, which must not exceed a limit."""
    found = np.asarray(values, dtype=np.float64)
    worst = float(found.max())
    return Check(name, worst, float(found.min()), worst, f"at most {limit:g}", worst <= limit)


def _outcome(study: Study, checks: list[Check], summary: str, figures: tuple[str, ...]) -> Outcome:
    failed = [check for check in checks if not check.passed]
    if failed:
        summary += " Missed thresholds: " + "; ".join(c.name for c in failed) + "."
    verdict: Verdict = "not-with-these-settings" if failed else "reproduced"
    settings = {"first seed": FRESH, "problems": PROBLEMS}
    return Outcome(verdict, summary, tuple(checks), "", figures, settings)


def regression(seed: int, clients: int) -> LinearRegression:
    """The paper's problem with more clients."""
    return LinearRegression(num_clients=clients, samples=1000, seed=seed)


def judge_fair(study: Study) -> Outcome:
    """Min-max on fifty clients, certified and timed; q and tilt against SciPy."""
    checks: list[Check] = []
    gaps: dict[str, list[Fair]] = {"regression": [], "logistic regression": []}
    took: dict[str, list[float]] = {name: [] for name in gaps}
    fair(logistic(2, 20, 2, 0).problem, "minmax")  # the first use imports torch
    for seed in range(FRESH, FRESH + PROBLEMS):
        study.say(f"O1: problem {seed - FRESH + 1} of {PROBLEMS}")
        both = (regression(seed, CLIENTS), logistic(CLIENTS, 100, 5, seed).problem)
        for name, problem in zip(gaps, both, strict=True):
            began = time.process_time()
            gaps[name].append(fair(problem, "minmax"))
            took[name].append(time.process_time() - began)
    for name, found in gaps.items():
        title = f"min-max, {name}, {CLIENTS} clients"
        checks.append(_at_most(f"{title}: duality gap", [f.gap for f in found], GAP))
        checks.append(_at_most(f"{title}: seconds of CPU time", took[name], SECONDS))
    checks += _direct_checks(study)
    trial = fair(LinearRegression(), "minmax")
    trial.plot(study.figure("o1-minmax.png"))
    found = gaps["regression"]
    gain = np.median([1 - f.after.max() / f.before.max() for f in found])
    none = np.median([np.mean(f.p < 1e-6) for f in found])
    summary = (
        f"Min-max is certified to {max(c.value for c in checks if 'gap' in c.name):.0e} in at most "
        f"{max(c.value for c in checks if 'seconds' in c.name):.2f} s; on regression with "
        f"{CLIENTS} clients it lowers the worst loss by {gain:.0%} (median) and gives "
        f"{none:.0%} of the clients share 0. q and tilt agree with direct minimisation."
    )
    return _outcome(study, checks, summary, ("o1-minmax.png",))


def _direct_checks(study: Study) -> list[Check]:
    """The goal's value against SciPy's own minimum, relative to it."""
    from scipy.optimize import minimize

    worse: dict[str, list[float]] = {}
    for seed in range(FRESH, FRESH + PROBLEMS):
        study.say(f"O1: direct minimisation, problem {seed - FRESH + 1} of {PROBLEMS}")
        line, curve = regression(seed, 10), logistic(10, 100, 3, seed)
        for name, problem, losses, scale in (
            ("regression", line, line.losses, 1000.0),
            ("logistic regression", curve.problem, curve.losses, 1.0),
        ):
            for goal in (QFair(2.0), Tilt(2.0 / scale)):
                found = fair(problem, goal.name, q=2.0, t=2.0 / scale)  # each goal reads its own

                def value(w: Array, goal: Any = goal, losses: Any = losses) -> float:
                    return float(goal.value(losses(w)))

                start = np.zeros(len(found.w))
                best = minimize(value, start, method="BFGS", options={"gtol": 1e-10})
                best = minimize(
                    value, best.x, method="Nelder-Mead",
                    options={"xatol": 1e-11, "fatol": 1e-13, "maxiter": 4000},
                )  # fmt: skip
                off = abs(value(found.w) - best.fun) / abs(best.fun)
                worse.setdefault(f"{goal.name}, {name}", []).append(off)
    return [
        _at_most(f"{name}: goal apart from SciPy's minimum, relative", values, 1e-6)
        for name, values in worse.items()
    ]


def judge_shapley(study: Study) -> Outcome:
    """Axioms, sampled values against exact ones, and the time for all coalitions."""
    checks = [*_axioms(), *_sampling(study)]
    problem = LinearRegression()
    contributions(problem)  # the moments are computed once per problem
    began = time.process_time()
    found = contributions(problem)
    took = time.process_time() - began
    title = "1,024 coalitions of the paper's problem: seconds of CPU time"
    checks.append(_at_most(title, [took], 1.0))
    found.plot(study.figure("o3-contributions.png"))
    cover = next(c for c in checks if "inside" in c.name)
    summary = (
        f"Efficiency, symmetry, null players and additivity hold to {checks[0].value:.0e}; sampled "
        f"values cover the exact ones {cover.value:.1%} of the time; all coalitions of the "
        f"paper's problem take {took:.3f} s."
    )
    return _outcome(study, checks, summary, ("o3-contributions.png",))


def _axioms() -> list[Check]:
    off: dict[str, list[float]] = {"efficiency": [], "symmetry": [], "null player": []}
    off["additivity"] = []
    for seed in range(FRESH, FRESH + PROBLEMS):
        base = LinearRegression(num_clients=6, samples=200, seed=seed)
        x, y = [*base.x, base.x[0], base.x[1]], [*base.y, base.y[0], base.y[1]]
        problem = LinearRegression.from_arrays(x, y)  # 6 is 0 again; 7 has no influence
        p = np.array([1.0] * 7 + [0.0])
        found = contributions(problem, p)
        size = float(np.abs(found.shapley).max())
        one, two = np.random.default_rng(seed).random((2, 8))
        parts = [contributions(problem, p, weights=v).shapley * v.sum() for v in (one, two)]
        both = contributions(problem, p, weights=one + two).shapley * (one + two).sum()
        off["efficiency"].append(abs(found.shapley.sum() - found.worth) / size)
        off["symmetry"].append(abs(found.shapley[0] - found.shapley[6]) / size)
        off["null player"].append(abs(found.shapley[7]) / size)
        off["additivity"].append(float(np.abs(both - parts[0] - parts[1]).max()) / size)
    return [_at_most(f"{name}: off by, relative", values, 1e-10) for name, values in off.items()]


def _sampling(study: Study) -> list[Check]:
    hits = []
    for seed in range(FRESH, FRESH + PROBLEMS):
        study.say(f"O3: sampled values, problem {seed - FRESH + 1} of {PROBLEMS}")
        problem = LinearRegression(num_clients=10, samples=500, seed=seed)
        exact = contributions(problem).shapley
        for k in range(DRAWN // PROBLEMS):
            found = contributions(problem, method="sampled", permutations=60, seed=k)
            hits.append((found.low <= exact) & (exact <= found.high))
    value, low, high = share_interval(np.array(hits))
    name = "sampled values with the exact one inside their 95 % interval"
    return [Check(name, value, low, high, "0.93 to 0.97", 0.93 <= value <= 0.97)]


def judge_prices(study: Study) -> Outcome:
    """Every price against a central difference of two full solves."""
    worst: dict[str, list[float]] = {"regression": [], "logistic regression": []}
    for seed in range(FRESH, FRESH + PROBLEMS):
        study.say(f"O4: problem {seed - FRESH + 1} of {PROBLEMS}")
        line, curve = LinearRegression(samples=500, seed=seed), logistic(6, 100, 3, seed)
        worst["regression"].append(_off(line, line.losses, seed))
        worst["logistic regression"].append(_off(curve.problem, curve.losses, seed))
    checks = [
        _at_most(f"{name}: price apart from the difference of full solves, relative", v, 0.01)
        for name, v in worst.items()
    ]
    price(LinearRegression()).plot(study.figure("o4-prices.png"))
    summary = (
        f"Every price of {PROBLEMS} problems of each kind agrees with the central difference of "
        f"two full solves, to {max(c.value for c in checks):.1e} of the client's largest price."
    )
    return _outcome(study, checks, summary, ("o4-prices.png",))


def _off(problem: Any, losses: Any, seed: int) -> float:
    """The largest difference of a price, relative to the largest price of that client."""
    count = problem.num_clients
    p = np.random.default_rng(seed).dirichlet(np.full(count, 2.0))
    found = price(problem, p).loss
    out = 0.0
    for i in range(count):
        ends = [p * (1 + s * 0.005 * np.eye(count)[i]) for s in (1, -1)]
        up, down = (losses(equilibrium(problem, one)) for one in ends)
        out = max(out, float(np.abs(found[i] - (up - down)).max() / np.abs(found[i]).max()))
    return out


__all__ = ["CLAIMS", "FRESH", "Logistic"]
CLAIMS = [
    Claim(
        "O1",
        "Fairness goals are influences, found with a certificate.",
        "The duality gap and time of min-max on regression and logistic regression with 50 "
        "clients; the goals q and tilt against SciPy's direct minimisation.",
        "A gap above 1e-6, more than 2 s, or a goal that differs by more than 1e-6.",
        judge_fair,
    ),
    Claim(
        "O3",
        "Contributions are Shapley values in units of the loss, exact or with intervals.",
        "The four axioms on problems with a repeated and an absent client; how often sampled "
        "intervals hold the exact value; the time for 1,024 coalitions.",
        "An axiom off by more than 1e-10, coverage outside 93 to 97 %, or more than a second.",
        judge_shapley,
    ),
    Claim(
        "O4",
        "Prices agree with full solves with changed influence.",
        "Every price against the central difference of two equilibria, half a per cent apart "
        "on either side.",
        "A price that differs by more than 1 % of the client's largest.",
        judge_prices,
    ),
]
