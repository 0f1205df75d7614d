"""Claims R1 to R9: everything in the paper that is about linear regression.

Each judge says in its Claim what it measures and what would refute it. Numbers come from
ten problems (fresh data each) and many seeds on each; ``regression_cases.py`` has the tolerances.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.influence import influence
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.paper import regression_figures as figures
from fedtaper.paper.claim import Check, Claim, Outcome, Study, Verdict
from fedtaper.paper.ensemble import PROBLEMS, Ensemble, Setting, ensemble
from fedtaper.paper.regression_cases import (
    BASELINES,
    DELTAS,
    HORIZON,
    LITERAL,
    NEAR,
    SETTLED,
    STABLE,
    case_2,
    case_3,
    outcome,
    settings,
)
from fedtaper.paper.regression_grids import judge_level, judge_r5, judge_r8
from fedtaper.paper.statistics import above, below, nearly_all
from fedtaper.theory.forecast import fades, forecast

Array = NDArray[np.float64]
NEAR_UNEQUAL = 0.15  # distance to the optimum that counts as there, where influences still move
FAR = 1e18  # where the ODE is asked for the limit itself


def judge_r1(study: Study) -> Outcome:
    """Equal steps."""
    found = ensemble(study, Setting())
    smallest = found.final_client_gradients.min(axis=-1)
    fallen = found.late_gradient / found.first_gradient
    checks = (
        nearly_all(f"final error below {NEAR}", found.final_error < NEAR),
        below("late error / error in rounds 501-1000", found.settling, SETTLED),
        below("late / first aggregated gradient norm", fallen, 0.5),
        above(
            "smallest client / aggregated gradient norm, end", smallest / found.late_gradient, 10
        ),
    )
    name = figures.case(study, Setting(), "r1-equal-steps.png", "all clients 0.1/n^0.76")
    summary = (
        f"The median final distance to w* is {np.median(found.final_error):.3f}; the aggregated "
        f"gradient is still falling while the smallest of the clients' own stays "
        f"{checks[3].value:.0f} times as large."
    )
    return outcome(study, checks, summary, "the paper's own setting", (name,))


def judge_vanishing(study: Study, case: int) -> Outcome:
    """Cases 2 and 3: some influences vanish in the limit."""
    make = case_2 if case == 2 else case_3
    found = ensemble(study, Setting(schedules=make()))
    p, p_n = influence(make()), influence(make(), HORIZON)
    gap = float(np.max(np.abs(p_n - p)))
    at_limit = nearly_all(
        f"distance to w*(p) below {NEAR_UNEQUAL}", found.final_error_limit < NEAR_UNEQUAL
    )
    ratio = found.final_error / found.final_error_limit
    at_horizon = below("distance to w*(p_n) / distance to w*(p)", ratio, 0.1)
    influence_gap = Check(
        f"largest |p_n - p| at n = {HORIZON:,}", gap, gap, gap, "below 0.01", gap < 0.01
    )
    paper = [Setting(schedules=make()).experiment(j) for j in range(PROBLEMS)]
    far = np.array([[forecast(e, FAR).distance_limit] for e in paper])
    in_the_limit = below(f"distance to w*(p) forecast for n = {FAR:.0e}", far, NEAR_UNEQUAL)
    n_needed = float(fades(paper[0], to=0.01)[-1])
    c, shown = nearest_vanishing(study, make)
    name = figures.case(
        study, Setting(schedules=make()), f"r{case}-vanishing.png",
        "clients 0, 1: slow; others 1/n" if case == 2 else "client 0: slow; others 0.1/n",
    )  # fmt: skip
    other = figures.case(
        study, Setting(schedules=make(c)), f"r{case}-nearest.png", f"the others at {c:g}/n"
    )
    summary = (
        f"At n = {HORIZON:,} the clients meant to vanish still have influence {gap:.3g}. The "
        f"model ends {np.median(found.final_error):.3f} from w*(p_n), the optimum of the "
        f"influences at that n, and {np.median(found.final_error_limit):.2f} from w*(p)."
    )
    nearest = (
        f"the others at {c:g}/n end {np.median(shown.final_error_limit):.3f} from w*(p) at the "
        f"same horizon; with the paper's own step sizes influence 0.01 needs n = {n_needed:.1e}, "
        f"and the ODE with p_n predicts a distance of {np.median(far):.3f} at n = {FAR:.0e}"
    )
    verdict: Verdict = "not-with-these-settings"
    if at_limit.passed:
        verdict = "reproduced"
    elif at_horizon.passed and in_the_limit.passed and not influence_gap.passed:
        verdict = "not-at-this-horizon"
    checks = (at_limit, at_horizon, influence_gap, in_the_limit)
    return Outcome(verdict, summary, checks, nearest, (name, other), settings(study))


def nearest_vanishing(
    study: Study, make: Callable[[float], tuple[Schedule, ...]]
) -> tuple[float, Ensemble]:
    """The largest c, by powers of ten, at which the limit is reached at the paper's horizon."""
    for c in (0.01, 0.001, 0.0001):
        found = ensemble(study, Setting(schedules=make(c)))
        if np.mean(found.final_error_limit < NEAR_UNEQUAL) >= 0.95:
            break
    return c, found


def judge_r4(study: Study) -> Outcome:
    """The sweep of delta."""
    found = {d: ensemble(study, Setting(schedules=Power(0.1, d))) for d in DELTAS}
    mild = {
        d: ensemble(study, Setting(schedules=Power(0.1, d), problem=(("feature_spread", 1.0),)))
        for d in (DELTAS[0], DELTAS[-1])
    }
    slow, fast = found[0.76], found[1.0]
    start = fast.first_gradient / slow.first_gradient
    checks = (
        above("gradient norm after round 1, delta 1 / delta 0.76", start, 1),
        *(
            above(f"late wobble, delta {a} / delta {b}", found[a].wobble / found[b].wobble, 1)
            for a, b in pairwise(DELTAS)
        ),
    )  # fmt: skip
    spread_1 = np.median(mild[1.0].late_gradient / mild[0.76].late_gradient)
    head = checks[0]
    told = "a head start of one round" if head.passed else "no head start that differs from none"
    summary = (
        f"After round 1 the gradient norm at delta 1 is {head.value:.2f} times that at delta 0.76 "
        f"({head.low:.2f} to {head.high:.2f}): {told}, because with curvature 25 the model arrives "
        f"within one round. After that noise dominates: the late wobble of delta 0.76 is "
        f"{np.median(slow.wobble / fast.wobble):.0f} times that of delta 1."
    )
    nearest = (
        "with features of spread 1 (curvature 1 instead of 25) the head start lasts the whole "
        f"run: the late gradient norm at delta 1 is {spread_1:.1f} times that at delta 0.76"
    )
    return outcome(study, checks, summary, nearest, (figures.deltas(study, found),))


def judge_r9(study: Study) -> Outcome:
    """Baselines, constant and tapering."""
    tapering = {b: ensemble(study, Setting(preset=b)) for b in BASELINES}
    literal = {b: ensemble(study, Setting(Constant(LITERAL), preset=b)) for b in BASELINES}
    stable = {
        (b, a): ensemble(study, Setting(Constant(a), preset=b)) for b in BASELINES for a in STABLE
    }
    oscillates = tuple(
        above(f"{b}, constant {a}: late / middle error", found.settling, SETTLED)
        for (b, a), found in stable.items()
    )
    converges = tuple(
        below(f"{b}, tapering: late / middle error", found.settling, SETTLED)
        for b, found in tapering.items()
    )
    bounded = tuple(
        nearly_all(f"{b}, constant {LITERAL}: stays finite", ~found.diverged.astype(bool))
        for b, found in literal.items()
    )
    summary = (
        f"At the paper's constant {LITERAL} every seed of every baseline diverges "
        f"(step size times curvature is above 2). At 0.05 FedAvg stays at a distance of "
        f"{np.median(stable['fedavg', 0.05].late_error):.2f} for ever; tapering takes it to "
        f"{np.median(tapering['fedavg'].late_error):.3f}, and it keeps falling."
    )
    if all(check.passed for check in bounded):
        summary = summary.split(". ", 1)[1]
    names = figures.baselines(study, tapering, literal, stable)
    nearest = (
        "constant steps of 0.07, 0.05 and 0.01 oscillate for ever; all three settle with tapering"
    )
    return outcome(study, bounded + oscillates + converges, summary, nearest, names)


CLAIMS = (
    Claim(
        "R1",
        "Equal steps: the model converges to w*, the aggregated gradient norm to 0, and each "
        "client's own gradient norm stays away from 0.",
        "Final distance to w*; late over earlier error; late over first aggregated gradient norm; "
        "the smallest client gradient norm over the aggregated one.",
        "5 % of seeds ending farther than 0.05 away, an error that stops falling, or a client "
        "whose own gradient vanishes with the aggregated one.",
        judge_r1,
    ),
    Claim(
        "R2",
        "p = (1, 0.5, 0, ...): only two clients decide the optimum.",
        "Final distance to w*(p), and to w*(p_n), the optimum of the influences at the last n; "
        "distance to w*(p) that the ODE predicts for n = 1e18.",
        "A distance to w*(p) above 0.15 in more than 5 % of seeds. If w*(p_n) is at least ten "
        "times nearer, p_n still far from p, and the ODE ends at w*(p), the horizon is the reason.",
        lambda study: judge_vanishing(study, 2),
    ),
    Claim(
        "R3",
        "p = (1, 0, ...): the model converges to client 0's own optimum.",
        "Final distance to w*(p), and to w*(p_n), the optimum of the influences at the last n; "
        "distance to w*(p) that the ODE predicts for n = 1e18.",
        "A distance to w*(p) above 0.15 in more than 5 % of seeds. If w*(p_n) is at least ten "
        "times nearer, p_n still far from p, and the ODE ends at w*(p), the horizon is the reason.",
        lambda study: judge_vanishing(study, 3),
    ),
    Claim(
        "R4",
        "Delta from 0.76 to 1: a smaller one is faster at first in gradient norm and oscillates, "
        "a larger one is smoother.",
        "Gradient norm after round 1, delta 1 over 0.76, seed by seed; late wobble (root mean "
        "square distance of the last 500 rounds from their mean) of neighbouring deltas.",
        "A first-round gradient norm no larger at delta 1, or a wobble that does not fall as "
        "delta rises.",
        judge_r4,
    ),
    Claim(
        "R5",
        "Feature spreads drawn from 5 to 25, N in {2, 5, 10}: slower, more oscillation, still "
        "converges.",
        "The round from which the error stays below 0.05, and the late wobble, against equal "
        "spreads of 5; final error; late over earlier error.",
        "Arrival no later, wobble no larger, or an error that stops falling.",
        judge_r5,
    ),
    Claim(
        "R6",
        "sigma_w from 5 to 25, N in {2, 5, 10}: more persistent error.",
        "Late error at each sigma_w over that at the next smaller one, seed by seed.",
        "A late error that does not rise with sigma_w, or that stops falling along the run.",
        lambda study: judge_level(study, "sigma_w"),
    ),
    Claim(
        "R7",
        "SNR from 25 to 5 dB, N in {2, 5, 10}: more oscillation as it falls; converges at 5 dB.",
        "Late wobble at each SNR over that at the next higher; late over earlier error at 5 dB.",
        "A wobble that does not rise as the SNR falls, or an error at 5 dB that stops falling.",
        lambda study: judge_level(study, "snr"),
    ),
    Claim(
        "R8",
        "Larger N, less oscillation, in all three kinds of heterogeneity.",
        "Late wobble with N = 10 over that with N = 2, in every setting of R5, R6 and R7.",
        "A setting in which the wobble with N = 10 is no smaller.",
        judge_r8,
    ),
    Claim(
        "R9",
        "FedAvg, FedProx and FedNova at constant 0.1 oscillate and never settle; tapering makes "
        "them converge.",
        "Whether constant 0.1 stays finite; late over earlier error at constant 0.07, 0.05, 0.01 "
        "and with tapering.",
        "Constant 0.1 diverging (then it does not oscillate), a constant step "
        "whose error keeps falling, or a tapering one whose error does not.",
        judge_r9,
    ),
)
