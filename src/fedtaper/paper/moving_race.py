"""Claim X3: a server that waits for nobody against one that waits for the slowest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study, outcome_of
from fedtaper.paper.moving import CLIENTS, LOCAL_STEPS, problem, quiet
from fedtaper.problems.data.splits import DominantClass
from fedtaper.problems.images import ImageClassification
from fedtaper.results import Run
from fedtaper.rules.asynchronous import Asynchronous

Array = NDArray[np.float64]
TIMES = (10.0, *[1.0] * (CLIENTS - 1))  # one client of ten takes ten times as long
SERVER = Asynchronous(buffer=CLIENTS - 1, durations=TIMES)
ERRORS, ACCURACY = (0.5, 0.2), 0.9
DIGIT_SEEDS = 3
WAITING, EVEN, PLAIN = "waits for all", "waits for nobody, evened out", "waits for nobody"


def federations(made: Any, c: float, rounds: int, **settings: Any) -> dict[str, Experiment]:
    """The three servers; an evened-out one gives the rare client larger steps."""
    counts = SERVER.arrival_rates(CLIENTS)
    even = [Power(c * counts.max() / r, 0.8, offset=100) for r in counts]
    alike = Power(c, 0.8, offset=100)
    late = {"asynchronous": SERVER}
    return {
        WAITING: Experiment(made, alike, rounds=rounds, **settings),
        EVEN: Experiment(made, even, rounds=rounds * 4, **(settings | late)),
        PLAIN: Experiment(made, alike, rounds=rounds * 4, **(settings | late)),
    }


def clock_of(name: str, made: Run) -> Array:
    """Simulated time after each round, (rounds,): it is the same for every seed."""
    if name == WAITING:
        return SERVER.waiting_times(CLIENTS, len(made.round), 0)
    return np.asarray(made.metrics["time"][0], dtype=np.float64)


def reached(time: Array, good: NDArray[np.bool_]) -> Array:
    """When each seed becomes good and stays good, infinite if never."""
    bad_later = np.cumsum(~good[:, ::-1], axis=1)[:, ::-1] > 0
    first = np.argmin(bad_later, axis=1)
    return np.where(bad_later[:, -1], np.inf, time[first])


def judge_x3(study: Study) -> Outcome:
    """Regression over the study's seeds, and digits over a few."""
    from fedtaper.show.moving import race

    finite = problem()
    target = finite.equilibrium(np.ones(CLIENTS))
    times: dict[float, dict[str, Array]] = {error: {} for error in ERRORS}
    regression, digits = {}, {}
    for name, e in federations(finite, 0.1, 1000, local_steps=LOCAL_STEPS, batch_size=20).items():
        study.say(f"X3: regression, {name}, {study.seeds} seeds")
        made = quiet(e, study.seeds)
        assert made.w is not None
        error = np.linalg.norm(made.w - target, axis=-1)
        clock = clock_of(name, made)
        regression[name] = (clock, np.median(error, axis=0))
        for level, found in times.items():
            found[name] = reached(clock, error < level)
    images = ImageClassification("digits", split=DominantClass(0.7), num_clients=CLIENTS)
    accuracies: dict[str, Array] = {}
    for name, e in federations(images, 3.0, 15, local_steps=LOCAL_STEPS, batch_size=16).items():
        if name == PLAIN:
            continue  # the figure is about the same goal
        seeds = min(DIGIT_SEEDS, study.seeds)
        study.say(f"X3: digits, {name}, {seeds} seeds")
        made = quiet(e, seeds)
        clock, accuracy = clock_of(name, made), made.metrics["test_accuracy"]
        digits[name] = (clock, accuracy.mean(axis=0))
        first = np.argmax(accuracy >= ACCURACY, axis=1)
        accuracies[name] = np.where((accuracy >= ACCURACY).any(axis=1), clock[first], np.inf)
    panels = {"regression": regression, "digits": digits}
    labels = {"regression": "distance to the equilibrium", "digits": "test accuracy"}
    race(panels, labels, study.figure("x3-race.png"))
    checks = [
        *(_quicker("regression", f"stay within {x:g}", found) for x, found in times.items()),
        _quicker("digits", f"test accuracy {ACCURACY:g}", accuracies),
        _elsewhere(times[ERRORS[-1]]),
    ]
    summary = (
        "One client of ten takes ten times as long. In simulated time, the server that waits needs "
        f"{checks[0].value:.1f} times as long as the evened-out one that does not wait to reach an "
        f"error of {ERRORS[0]:g}, {checks[1].value:.1f} times as long for {ERRORS[1]:g}, and "
        f"{checks[2].value:.1f} times as long for a test accuracy of {ACCURACY:g}. If not evened "
        "out, the model goes to another equilibrium, in which the slow client counts a tenth."
    )
    return outcome_of(
        checks,
        summary,
        (
            "this one",
            "a smaller error, 0.2: by then the slow client's larger steps have tapered",
        ),
        ("x3-race.png",),
        {"seeds": study.seeds, "clients": CLIENTS, "buffer": SERVER.buffer},
    )


def _quicker(what: str, goal: str, times: dict[str, Array]) -> Check:
    ratio = float(np.median(times[WAITING]) / np.median(times[EVEN]))
    rng = np.random.default_rng(0)
    again = [
        np.median(rng.choice(times[WAITING], len(times[WAITING])))
        / np.median(rng.choice(times[EVEN], len(times[EVEN])))
        for _ in range(1000)
    ]
    low, high = (float(v) for v in np.quantile(again, [0.025, 0.975]))
    name = f"{what}: time to {goal}, waiting over not waiting"
    return Check(name, ratio, low, high, "interval above 1", bool(low > 1))


def _elsewhere(times: dict[str, Array]) -> Check:
    share = float(np.mean(np.isfinite(times[PLAIN])))
    name = f"regression, not evened out: share of seeds that stay within {ERRORS[-1]:g}"
    return Check(name, share, share, share, "0: it goes elsewhere", share == 0)


CLAIMS = (
    Claim(
        "X3",
        "A server that waits for nobody is faster when some clients are slow, and with planned "
        "step sizes it goes to the same model.",
        "Simulated time to a given error (regression) and to a given test accuracy (digits), with "
        "10 % of the clients ten times slower.",
        "A server that is not faster, or a model that depends on the speeds although the step "
        "sizes were planned for them.",
        judge_x3,
    ),
)
