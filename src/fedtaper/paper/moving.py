"""Claims X1 and X2: data that is correlated in time; clients that are rare, late or unequal.

Each case is one federation over many seeds. The final models' mean must lie within three
standard errors of the equilibrium that the effective influences predict, in every coordinate;
the prediction without the factor in question must be rejected by the same test.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperWarning
from fedtaper.core.protocols import as_quadratic
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study, outcome_of
from fedtaper.problems.linear import LinearRegression
from fedtaper.problems.streams import RegressionStream
from fedtaper.results import Run
from fedtaper.rules.asynchronous import Asynchronous, Duration
from fedtaper.rules.delays import RandomDelay
from fedtaper.rules.staleness import Polynomial
from fedtaper.simulation.drive import run
from fedtaper.theory.forecast import forecast

Array = NDArray[np.float64]
CLIENTS, LOCAL_STEPS, LIMIT = 10, 5, 3.0
STEPS = Power(0.1, 0.8, offset=3000)  # small enough for a delay of 50 rounds at this curvature
RATES = tuple(np.geomspace(0.1, 1.0, CLIENTS).tolist())
TIMES = tuple(np.geomspace(1.0, 10.0, CLIENTS).tolist())
RHOS = (0.0, 0.9, 0.99)
STREAM_ROUNDS = 5000  # correlation biases the mean by the order of a_n, its error is of sqrt(a_n)
STREAM_SEEDS = 10_000  # the first of the seeds that judge X1: used for nothing else
NO_MEAN = 0.7  # tail of working times without a mean


@dataclass(frozen=True)
class Case:
    """One federation, and the influences of a prediction without the factor."""

    experiment: Experiment
    without: Array | None = None


def problem() -> LinearRegression:
    """Ten clients with curvatures of about 25."""
    return LinearRegression(num_clients=CLIENTS, samples=1000, init_spread=1.0, seed=1)


def experiment(rounds: int, **settings: Any) -> Experiment:
    """One federation with the claims' step sizes."""
    chosen: dict[str, Any] = {"problem": problem(), "batch_size": 10} | settings
    return Experiment(schedules=STEPS, rounds=rounds, local_steps=LOCAL_STEPS, **chosen)


def cases() -> dict[str, Case]:
    """The cases of X2."""
    equal, rates = np.ones(CLIENTS), np.array(RATES)
    exponential = tuple(Duration(t) for t in TIMES)
    mixed = tuple(RandomDelay(mean=m, most=50) for m in range(1, CLIENTS + 1))
    unlike = Asynchronous(buffer=3, durations=exponential)
    leaving = Asynchronous(
        buffer=3, durations=Duration(1.0, "lognormal"), mean_on=2.0,
        mean_off=tuple(5 * t for t in TIMES),
    )  # fmt: skip
    return {
        "participation 0.1 to 1": Case(experiment(2500, participation=RATES), equal),
        "own clocks, participation 0.1 to 1": Case(
            experiment(4000, participation=RATES, own_clock=True), rates
        ),
        "delays 5 to 50 rounds": Case(experiment(2500, delays=tuple(range(5, 51, 5)))),
        "random delays, discounted": Case(
            experiment(2500, delays=mixed, staleness=Polynomial(0.5)), equal
        ),
        "asynchronous, speeds 1 to 10": Case(
            experiment(25_000, asynchronous=Asynchronous(durations=TIMES)), equal
        ),
        "asynchronous, discounted": Case(
            experiment(10_000, asynchronous=unlike, staleness=Polynomial(0.5)), equal
        ),
        "asynchronous, drop-outs": Case(experiment(10_000, asynchronous=leaving), equal),
    }


def quiet(e: Experiment, seeds: int, first: int = 0, **how: Any) -> Run:
    """A run of many seeds; warnings about the set-up are part of the claim."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        return run(e, seeds=range(first, first + seeds), progress=False, **how)


def apart(w: Array, prediction: ArrayLike) -> float:
    """Distance of the seeds' mean to a prediction, in standard errors: the worst coordinate."""
    error = w.std(axis=0, ddof=1) / math.sqrt(len(w))
    return float(np.max(np.abs(w.mean(axis=0) - prediction) / error))


def judged(name: str, case: Case, w: Array) -> list[Check]:
    """The prediction holds, and it does not hold without the factor."""
    e = case.experiment
    value = apart(w, forecast(e, n=e.rounds * e.period).w)
    title = f"{name}: final mean against the predicted one, in standard errors"
    checks = [Check(title, value, 0.0, value, f"at most {LIMIT:g}", value <= LIMIT)]
    if case.without is not None:
        wrong = apart(w, as_quadratic(e.problem).equilibrium(case.without))
        title = f"{name}: the same without the factor"
        checks.append(Check(title, wrong, wrong, wrong, f"above {LIMIT:g}", wrong > LIMIT))
    return checks


def judge_x1(study: Study) -> Outcome:
    """Streams of growing correlation, with clients that take part at different rates."""
    from fedtaper.show.moving import errors

    checks, lines = [], {}
    for rho in RHOS:
        study.say(f"X1: rho = {rho:g}, {study.seeds} seeds")
        stream = RegressionStream(num_clients=CLIENTS, rho=rho, init_spread=1.0)
        e = experiment(STREAM_ROUNDS, problem=stream, batch_size=10, participation=RATES)
        made = quiet(e, study.seeds, STREAM_SEEDS)
        assert made.w is not None
        name = f"rho = {rho:g}"
        checks += judged(name, Case(e, np.ones(CLIENTS)), made.w[:, -1])
        error = made.metrics["error"]
        lines[name] = (made.round, np.quantile(error, [0.1, 0.5, 0.9], axis=0))
        fall = float(np.median(error[:, 99]) / np.median(error[:, -100:]))
        title = f"{name}: error after 100 rounds over that of the last 100"
        checks.append(Check(title, fall, fall, fall, "above 1: it still falls", fall > 1))
    errors(lines, study.figure("x1-gauss-markov.png"))
    summary = (
        "Features that follow x' = rho x + sqrt(1 - rho^2) e, fresh at every update. The mean of "
        f"{study.seeds} final models lies within "
        f"{max(c.value for c in checks if 'predicted' in c.name):.1f} standard errors of the "
        f"population's equilibrium up to rho = {RHOS[-1]:g}. Correlation adds noise, not bias: the "
        "last error (median) is "
        + ", ".join(f"{line[1][1, -1]:.2g} at {name}" for name, line in lines.items())
        + "."
    )
    nearest = "rho = 0.9, or smaller step sizes: what correlation adds falls with them"
    return _outcome(study, checks, summary, ("x1-gauss-markov.png",), nearest)


def judge_x2(study: Study) -> Outcome:
    """Every kind of absence and lateness, and a case in which no prediction exists."""
    from fedtaper.show.moving import fading, predictions

    checks: list[Check] = []
    for name, case in cases().items():
        study.say(f"X2: {name}, {study.seeds} seeds")
        made = quiet(case.experiment, study.seeds, thin=case.experiment.rounds)
        assert made.w is not None
        checks += judged(name, case, made.w[:, -1])
    predictions(checks, LIMIT, study.figure("x2-predictions.png"))
    shares = fading_shares()
    fading(shares, study.figure("x2-no-mean.png"))
    fall = float(shares["without a mean"][1][0] / shares["without a mean"][1][-1])
    title = "working times without a mean: the client's share of the arrivals, early over late"
    checks.append(Check(title, fall, fall, fall, "above 2: no rate to predict", fall > 2))
    right = [c.value for c in checks if "predicted" in c.name]
    wrong = [c.value for c in checks if "without" in c.name and "factor" in c.name]
    summary = (
        f"{len(right)} federations, {study.seeds} seeds each: the mean of the final models lies "
        f"within {max(right):.1f} standard errors of the equilibrium of the effective influences. "
        f"Without the factor the prediction is off by {min(wrong):.0f} to {max(wrong):.0f}. "
        "Where a client's working time has no mean, its share of the arrivals has no limit but 0."
    )
    return _outcome(study, checks, summary, ("x2-predictions.png", "x2-no-mean.png"))


def fading_shares() -> dict[str, tuple[Array, Array]]:
    """A client's share of the arrivals in stretches that double, with a mean and without one."""
    out = {}
    rounds = 2**17
    for name, shape in (("with a mean", 3.0), ("without a mean", NO_MEAN)):
        slow = Duration(1.0, "pareto", shape)
        rule = Asynchronous(durations=(slow, *[Duration(1.0)] * (CLIENTS - 1)))
        e = Experiment(problem(), STEPS, rounds=rounds, local_steps=LOCAL_STEPS, asynchronous=rule)
        mine = np.mean([e.arrivals(seed).client[:, 0] == 0 for seed in range(20)], axis=0)
        edges = 2 ** np.arange(8, 18)
        share = np.array([mine[edge // 2 : edge].mean() for edge in edges])
        out[name] = (edges.astype(np.float64), share)
    return out


def _outcome(
    study: Study,
    checks: list[Check],
    summary: str,
    figures: tuple[str, ...],
    nearest: str = "see the checks that did not pass",
) -> Outcome:
    return outcome_of(
        checks,
        summary,
        ("this one", nearest),
        figures,
        {"seeds": study.seeds, "clients": CLIENTS, "steps": STEPS.formula},
    )


CLAIMS = (
    Claim(
        "X1",
        "Clients whose data is a Gauss-Markov process: the model still converges.",
        "Streams with rho = 0, 0.9 and 0.99, clients that take part in 10 to 100 % of the rounds: "
        "the mean of the final models against the population's equilibrium.",
        "A mean more than three standard errors from it, an error that does not fall, or the "
        "equilibrium without the participation factor within three standard errors.",
        judge_x1,
    ),
    Claim(
        "X2",
        "Delayed or asynchronous aggregation works: the model goes to the equilibrium of the "
        "effective influences.",
        "Participation down to 10 %, delays up to 50 rounds, speeds spread tenfold, drop-outs, own "
        "clocks: the mean of the final models against the prediction with and without the factor.",
        "One federation whose mean is more than three standard errors from the prediction, or "
        "within three of the prediction without the factor.",
        judge_x2,
    ),
)
