"""Claims T1 and T2: the theorem itself, iterates against the ODE and the noise sums.

One problem of the paper's size, many seeds: the theorem is about the many possible paths of one
federation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperWarning
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study, outcome_of
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.rules.presets import PRESETS
from fedtaper.simulation.drive import run
from fedtaper.theory.bound import Bound, bound
from fedtaper.theory.forecast import forecast
from fedtaper.theory.noise import NoiseSums, noise_sums
from fedtaper.theory.probability import ProbabilityOne, probability_one
from fedtaper.theory.tracking import Tracking, tracking_error

Array = NDArray[np.float64]
ROUNDS, LOCAL_STEPS, WINDOW = 5000, 5, 0.05
EARLY, LATE = (10, 50), (4500, ROUNDS)
SLOW, FAST = Power(0.1, 0.76), Power(0.1, 1.0)
CASES: dict[str, tuple[Schedule, ...]] = {
    "case 1": (SLOW,) * 10,
    "case 2": (SLOW, Power(0.05, 0.76), *[Power(1.0, 1.0)] * 8),
    "case 3": (SLOW, *[FAST] * 9),
}
FAR_SEEDS, FAR_ROUNDS = 20, 200_000  # where simulation can still reach: n = 1e6
BOUND_SEEDS = 50
EPS, EPS_ROUND = 0.1, 4000
MEANS = ("fedsgd", "fedavg", "fedprox", "fednova")
RESCALING = ("fedadagrad", "fedadam", "fedyogi")  # the FedOpt family rescales every step


def experiment(schedules: tuple[Schedule, ...] | Schedule, preset: str = "fedavg") -> Experiment:
    """The paper's regression with these step sizes."""
    settings = {"local_steps": LOCAL_STEPS} | PRESETS[preset]
    return Experiment(LinearRegression(), schedules, rounds=ROUNDS, **settings)


def quiet_run(e: Experiment, seeds: Iterable[int], **how: Any) -> Run:
    """A run without its stability warning, which is part of the claim."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        return run(e, seeds=seeds, progress=False, **how)


def track(made: Run) -> Tracking:
    """Windows along the whole run, with many of them early and late, where they are compared."""
    last = int(np.searchsorted(made.t, made.t[-1] - WINDOW))
    spaced = np.geomspace(EARLY[0], last, 40).astype(int)
    early, late = np.arange(EARLY[0], EARLY[1] + 1, 4), np.arange(LATE[0], last, 20)
    return tracking_error(made, WINDOW, starts={*spaced, *early, *late})


def judge_t1(study: Study) -> Outcome:
    """Tracking, its decay, the bound, and the ODE carried on to the limit."""
    found: dict[str, Tracking] = {}
    bounds: dict[str, Bound] = {}
    checks: list[Check] = []
    for name, schedules in CASES.items():
        study.say(f"T1: {name}, {study.seeds} seeds")
        found[name], bounds[name] = _case(study, name, schedules)
        checks += [_fall(name, found[name]), _exponent(name, found[name])]
        checks.append(_bound_check(name, bounds[name]))
    study.say(f"T1: case 3 to n = 1e6, {FAR_SEEDS} seeds")
    checks += [_reaches(), *limit_checks()]
    from fedtaper.show import theory as plots

    plots.tracking(found, study.figure("t1-tracking.png"))
    plots.bound_terms(bounds["case 3"], study.figure("t1-bound.png"))
    falls = ", ".join(f"{check.value:.1f}" for check in checks if "smaller" in check.name)
    summary = (
        f"Late windows stay closer to the ODE with p_n than early ones by factors {falls} "
        "(cases 1, 2, 3); the bound of the proof holds in every window of every seed. The ODE "
        "with p itself is followed as closely only where p_n has reached p (case 1); carried on "
        "to n = 1e18 and 1e16, the ODE ends at w*(p) in cases 2 and 3 too."
    )
    figures = ("t1-tracking.png", "t1-bound.png", "t1-phase-plane.png")
    return _outcome(study, checks, summary, figures)


def _case(study: Study, name: str, schedules: tuple[Schedule, ...]) -> tuple[Tracking, Bound]:
    made = quiet_run(experiment(schedules), range(study.seeds))
    if name == "case 3":
        from fedtaper.show import theory as plots

        plots.phase_plane(_first_seeds(made, 1), study.figure("t1-phase-plane.png"))
    return track(made), bound(_first_seeds(made, BOUND_SEEDS), WINDOW)


def _fall(name: str, found: Tracking) -> Check:
    value = found.fall(EARLY, LATE)
    rng = np.random.default_rng(0)
    seeds = len(found.finite)
    early = (found.round >= EARLY[0]) & (found.round <= EARLY[1])
    late = found.round >= LATE[0]
    again = []
    for _ in range(500):
        middle = np.median(found.finite[rng.integers(seeds, size=seeds)], axis=0)
        again.append(np.median(middle[early]) / np.median(middle[late]))
    low, high = np.quantile(again, [0.025, 0.975])
    title = f"{name}: tracking error, how many times smaller late than early"
    return Check(title, value, float(low), float(high), "at least 4", value >= 4)


def _exponent(name: str, found: Tracking) -> Check:
    fit = found.fit(after=EARLY[1])
    title = f"{name}: exponent of the tracking error against the round"
    limit = f"interval below 0 (noise alone gives {found.theory:g})"
    return Check(title, fit.exponent, fit.low, fit.high, limit, fit.high < 0)


def _bound_check(name: str, found: Bound) -> Check:
    share = found.measured / found.total
    value = float(np.max(share))
    title = f"{name}: largest measured distance over its bound"
    return Check(title, value, float(np.min(share)), value, "at most 1", found.holds)


def _reaches() -> Check:
    """Forecast against simulation at n = 1e6, in standard errors of the simulated mean."""
    e = Experiment(LinearRegression(), CASES["case 3"], rounds=FAR_ROUNDS, local_steps=LOCAL_STEPS)
    made = quiet_run(e, range(FAR_SEEDS), thin=FAR_ROUNDS)
    assert made.w is not None
    last = made.w[:, -1]
    error = last.std(axis=0, ddof=1) / math.sqrt(FAR_SEEDS)
    apart = np.abs(forecast(e, n=FAR_ROUNDS * LOCAL_STEPS).w - last.mean(axis=0)) / error
    title = (
        f"case 3: forecast at n = {FAR_ROUNDS * LOCAL_STEPS:.0e} against {FAR_SEEDS} seeds, "
        "in standard errors"
    )
    value = float(apart.max())
    return Check(
        title, value, float(apart.min()), value, "at most 3 in each coordinate", value <= 3
    )


def limit_checks() -> list[Check]:
    """R2 and R3 in the limit, by the ODE: distance of the model to w*(p)."""
    checks = []
    for name, claim, n in (("case 2", "R2", 1e18), ("case 3", "R3", 1e16)):
        far = forecast(experiment(CASES[name]), n=n).distance_limit
        title = f"{claim} in the limit: distance to w*(p) at n = {n:.0e}"
        checks.append(Check(title, far, far, far, "below 0.02", far < 0.02))
    return checks


def _first_seeds(made: Run, count: int) -> Run:
    from dataclasses import replace

    assert made.w is not None and made.w0 is not None
    few = slice(0, count)
    return replace(made, seeds=made.seeds[few], w=made.w[few], w0=made.w0[few])


def judge_t2(study: Study) -> Outcome:
    """Noise sums inside and outside A2, and the probability-one curves they lead to."""
    from fedtaper.show import theory as plots

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        outside: dict[str, Schedule] = {
            "$0.1/n^{0.4}$, outside A2": Power(0.1, 0.4),
            "constant 0.01, outside A2": Constant(0.01),
        }
    inside: dict[str, Schedule] = {"$0.1/n^{0.76}$": SLOW, "$0.1/n$": FAST}
    checks, found = [], {}
    for name, schedule in (inside | outside).items():
        study.say(f"T2: noise sums, {name}")
        made = quiet_run(experiment(schedule), range(min(study.seeds, BOUND_SEEDS)))
        found[name] = noise_sums(made)
        checks.append(_settles(name, found[name], expected=name in inside))
    plots.noise(found, study.figure("t2-noise.png"))
    tapering, constant = _probability_curves(study)
    plots.probability_by_eps(
        tapering["fedavg"], constant["fedavg"], study.figure("t2-probability-one.png")
    )
    plots.probability_presets(tapering, constant, study.figure("t2-presets.png"), EPS)
    for name in MEANS:
        checks += [_probability(name, tapering[name], 0), _probability(name, constant[name], 1)]
    summary = (
        "Within A2 the noise sums move less and less from round k to 2k, outside more and more. "
        f"With tapering steps the share of seeds whose error ever exceeds {EPS:g} again is "
        f"{tapering['fedavg'].at(EPS, EPS_ROUND)[0]:.3g} by round {EPS_ROUND:,}; with constant "
        f"steps {constant['fedavg'].at(EPS, EPS_ROUND)[0]:.3g}. The FedOpt servers rescale "
        "every step by their updates' history, which bends the taper; with their usual settings: "
        + ", ".join(f"{n} {tapering[n].at(EPS, EPS_ROUND)[0]:.2g}" for n in RESCALING)
        + "."
    )
    figures = ("t2-noise.png", "t2-probability-one.png", "t2-presets.png")
    more = "; the FedOpt servers settle where tau is no smaller than an update: Adam(eta=1, tau=1)"
    return _outcome(study, checks, summary, figures, more)


def _settles(name: str, found: NoiseSums, expected: bool) -> Check:
    fit = found.fit(client=0, after=50)
    title = f"noise sum of client 0, {name}: exponent of its movement from round k to 2k"
    limit = f"interval {'below' if expected else 'above'} 0 (theory: {found.theory[0]:g})"
    passed = bool(fit.high < 0 if expected else fit.low > 0)
    return Check(title.replace("$", ""), fit.exponent, fit.low, fit.high, limit, passed)


def _probability_curves(
    study: Study,
) -> tuple[dict[str, ProbabilityOne], dict[str, ProbabilityOne]]:
    tapering: dict[str, ProbabilityOne] = {}
    constant: dict[str, ProbabilityOne] = {}
    for name in (*MEANS, *RESCALING):
        study.say(f"T2: probability one, {name}, {study.seeds} seeds")
        for schedule, curves in ((SLOW, tapering), (Constant(0.01), constant)):
            curves[name] = probability_one(  # the run itself is dropped before the next
                quiet_run(experiment(schedule, name), range(study.seeds)), (0.3, EPS, 0.03)
            )
    return tapering, constant


def _probability(name: str, found: ProbabilityOne, expected: int) -> Check:
    value, low, high = found.at(EPS, EPS_ROUND)
    steps = "constant" if expected else "tapering"
    title = f"{name}, {steps}: share of seeds that exceed {EPS:g} after round {EPS_ROUND:,}"
    passed = value > 0.99 if expected else value < 0.01
    return Check(title, value, low, high, "above 0.99" if expected else "below 0.01", passed)


def _outcome(
    study: Study, checks: list[Check], summary: str, figures: tuple[str, ...], more: str = ""
) -> Outcome:
    return outcome_of(
        checks,
        summary,
        (f"the paper's own setting{more}", "see the checks that did not pass"),
        figures,
        {"problems": 1, "seeds": study.seeds, "rounds": ROUNDS, "window": WINDOW},
    )


CLAIMS = (
    Claim(
        "T1",
        "The iterates track the limit ODE.",
        "In windows of fixed length of the ODE's time, the largest distance between the "
        "interpolated model and the ODE with p_n started on it, early against late; the proof's "
        "bound beside it; the ODE's forecast against simulation at n = 1e6 and against w*(p).",
        "Late windows not 4 times closer than early ones, one window of one seed above the "
        "bound, or a forecast more than 3 standard errors off.",
        judge_t1,
    ),
    Claim(
        "T2",
        "The noise sums converge, and with them the model with probability one.",
        "How much a client's noise sum still moves from round k to 2k, inside and outside A2; "
        "the share of seeds whose error ever exceeds 0.1 again, for every method of the paper.",
        "A movement that does not fall inside A2, or falls outside it; tapering seeds that still "
        "exceed 0.1 after round 4,000, or constant steps that stay below.",
        judge_t2,
    ),
)
