"""From sliders to an experiment, and from it to everything that the studio draws."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np

from fedtaper.core.errors import FedtaperError, FedtaperWarning
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.outcomes.fair import FLOOR, fair
from fedtaper.outcomes.intervals import intervals
from fedtaper.problems.linear import LinearRegression
from fedtaper.simulation.drive import run
from fedtaper.theory.ode import limit_ode
from fedtaper.theory.stability import stability
from fedtaper.ui.plain import number, numbers, picked
from fedtaper.ui.recipe import recipe

LIMITS: dict[str, tuple[float, float]] = {  # what a slider or a request may ask for
    "clients": (1, 20),
    "rounds": (10, 20_000),
    "local_steps": (1, 50),
    "batch_size": (1, 500),
    "sigma_w": (0, 50),
    "feature_spread": (0.1, 25),
    "offset": (0, 10_000),
    "seed": (0, 1_000_000),
    "c": (1e-5, 10),
    "delta": (0, 1),
    "p": (1e-4, 1),
}
WHOLE = ("clients", "rounds", "local_steps", "batch_size", "seed")
DEFAULTS: dict[str, Any] = {
    "mode": "steps",
    "rounds": 5000,
    "local_steps": 5,
    "batch_size": 50,
    "sigma_w": 5.0,
    "feature_spread": 5.0,
    "offset": 0.0,
    "seed": 0,
}
SAMPLES = 2e7  # that a simulation may draw and still be quick enough to follow a slider
CURVE = 120  # places of an influence curve
GOALS = {
    "minmax": "the worst client’s loss",
    "q": "large losses more (q-FFL)",
    "tilt": "a tilted mean (TERM)",
    "proportional": "proportional gains",
}
COORDINATES = 3  # of the model that are drawn


def presets() -> dict[str, dict[str, Any]]:
    """The paper's cases, and a constant step size, as settings of the sliders."""
    from fedtaper.paper.regression_cases import PAPER_STEP, case_2, case_3

    cases: dict[str, tuple[Schedule, ...]] = {
        "Case 1: all clients alike": (PAPER_STEP,) * 10,
        "Case 2: two clients count": case_2(),
        "Case 3: one client counts": case_3(),
        "FedAvg with a constant step": (Constant(0.05),) * 10,
    }
    return {
        name: DEFAULTS | {"clients": [{"c": s.c, "delta": s.delta} for s in found]}
        for name, found in cases.items()
    }


def experiment(asked: Mapping[str, Any]) -> Experiment:
    """The experiment that the sliders describe.

    ``mode`` "steps": each client has ``c`` and ``delta`` (0: a constant step). ``mode``
    "influence": each client has ``p``, and its step is p c / n^delta with a common c and delta,
    which gives exactly p at every n.
    """
    given = DEFAULTS | dict(asked)
    unknown = set(given) - set(DEFAULTS) - {"clients", "c", "delta"}
    if unknown:
        raise FedtaperError(f"the studio has no setting {', '.join(sorted(unknown))}")
    settings = {name: _number(name, given[name]) for name in DEFAULTS if name != "mode"}
    clients = given.get("clients")
    if not isinstance(clients, list) or not all(isinstance(one, dict) for one in clients):
        raise FedtaperError("clients must be a list with one entry per client")
    _number("clients", len(clients))
    problem = _problem(len(clients), settings["sigma_w"], settings["feature_spread"])
    return Experiment(
        problem,
        [_schedule(given, one, settings["offset"]) for one in clients],
        rounds=settings["rounds"],
        local_steps=settings["local_steps"],
        batch_size=settings["batch_size"],
        seed=settings["seed"],
    )


@lru_cache(maxsize=8)
def _problem(clients: int, sigma_w: float, spread: float) -> LinearRegression:
    """The problem, kept between requests so that its data is made only once."""
    return LinearRegression(num_clients=clients, sigma_w=sigma_w, feature_spread=spread)


def _schedule(given: Mapping[str, Any], one: Mapping[str, Any], offset: float) -> Schedule:
    if given["mode"] not in ("steps", "influence"):
        raise FedtaperError(f'mode must be "steps" or "influence", not {given["mode"]!r}')
    if given["mode"] == "influence":
        c = _number("c", given.get("c", 0.1)) * _number("p", one.get("p"))
        delta = _number("delta", given.get("delta", 0.76))
    else:
        c, delta = _number("c", one.get("c")), _number("delta", one.get("delta"))
    return Constant(c) if delta == 0 else Power(c, delta, offset)


def _number(name: str, value: Any) -> Any:
    low, high = LIMITS[name]
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or not low <= value <= high:
        raise FedtaperError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    if name not in WHOLE:
        return float(value)
    if value != int(value):
        raise FedtaperError(f"{name} must be a whole number, not {value!r}")
    return int(value)


_TURN = threading.Lock()  # which warnings are caught is a setting of the whole process


def draw(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the studio shows for these sliders."""
    with _TURN, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        e = experiment(asked)
        out: dict[str, Any] = {"influence": _influence(e), "table": _table(e), "recipe": recipe(e)}
        problem = cast(LinearRegression, e.problem)
        equilibria = {
            "now": problem.equilibrium(e.influence().effective),
            "limit": problem.equilibrium(e.limit_influence),
        }
        path = _path(e)
        made = _simulated(e)
        out["intervals"] = _intervals(made)
    out["equilibrium"] = {name: numbers(w) for name, w in equilibria.items()}
    out["model"], out["distance"] = _model(e, path, made, equilibria)
    out["end"] = _ends(e, path, made, equilibria)
    out["notes"] = [*_notes(caught), *_said(e, made)]
    return out


def _influence(e: Experiment) -> dict[str, Any]:
    """Effective p_n from the first round to far beyond the last: the limit may be far away."""
    horizon = e.rounds * e.period
    n = np.geomspace(1, 1e12, CURVE)
    p = e.field_weights(n)
    p = p / p[:, e.reference, None]
    groups = [{"who": g.who, "values": numbers(p[:, g.clients[0]])} for g in e.groups()]
    return {"n": numbers(n), "horizon": horizon, "groups": groups}


def _table(e: Experiment) -> list[dict[str, Any]]:
    now, limit = e.influence(), e.limit_influence
    problem = cast(LinearRegression, e.problem)
    losses = problem.losses(problem.equilibrium(now.effective))
    return [
        {
            "client": i,
            "c": schedule.c,
            "delta": schedule.delta,
            "now": number(now.effective[i]),
            "share": number(now.share[i]),
            "limit": number(limit[i]),
            "loss": number(losses[i]),
        }
        for i, schedule in enumerate(e.schedules)
    ]


def _path(e: Experiment) -> tuple[Any, Any] | None:
    """The ODE with p_n: rounds, and the model at each; None if it cannot be followed."""
    rounds = np.unique(np.concatenate([[0], np.geomspace(1, e.rounds, CURVE)]).round())
    ode = limit_ode(e, "finite")
    try:
        found = ode.solve(rtol=1e-7, atol=1e-9)
    except FedtaperError:
        return None
    return rounds, found.at(rounds * e.period)


def _simulated(e: Experiment) -> Any:
    """A fresh run, if it is small enough to follow a slider."""
    if float(e.steps.sum()) * e.batch_size * e.rounds > SAMPLES:
        return None
    return run(e, progress=False)


def _intervals(made: Any) -> dict[str, Any] | None:
    """Where w*(p_n) is, as far as the fresh run can tell."""
    if made is None or made.diverged:
        return None
    try:
        found = intervals(made)
    except FedtaperError:  # such as a run that is too short
        return None
    band = {"low": numbers(found.model.low), "high": numbers(found.model.high)}
    return None if None in band["low"] else {"level": found.level, **band}


def _model(e: Experiment, path: Any, made: Any, equilibria: Any) -> tuple[Any, Any]:
    """Curves of the model's first coordinates, and of its distances."""
    model: dict[str, Any] = {"coordinates": min(e.problem.dim, COORDINATES)}
    distance: dict[str, Any] = {}
    if path is not None:
        rounds, w = path
        model["ode"] = {"round": rounds.tolist(), "w": numbers(w.T[:COORDINATES])}
    if made is not None and len(made.round):
        places = picked(len(made.round), 300)
        shown = made.round[places].tolist()
        model["run"] = {"round": shown, "w": numbers(made.w[places].T[:COORDINATES])}
        distance["run"] = {"round": shown, "values": numbers(made.metrics["error"][places])}
        if not np.allclose(
            equilibria["now"], equilibria["limit"], rtol=1e-6
        ):  # else one line is both
            limit = numbers(made.metrics["error_limit"][places])
            distance["limit"] = {"round": shown, "values": limit}
    if path is not None:
        gap = np.linalg.norm(w - equilibria["now"], axis=1)
        least = 1e-3 * np.min(made.metrics["error"]) if "run" in distance else 0.0
        seen = np.where(gap >= least, gap, np.nan)  # far below the noise there is no more to see
        distance["ode"] = {"round": rounds.tolist(), "values": numbers(seen)}
    return model, distance


def _ends(e: Experiment, path: Any, made: Any, equilibria: Any) -> dict[str, Any]:
    """The numbers at the horizon."""
    out: dict[str, Any] = {"n": e.rounds * e.period}
    if path is not None:
        out["ode"] = numbers(path[1][-1])
    if made is not None and len(made.round) and not made.diverged:
        out["model"] = numbers(made.w[-1])
        out["error"] = number(made.metrics["error"][-1])
        out["error_limit"] = number(made.metrics["error_limit"][-1])
        out["seconds"] = number(made.seconds, 3)
    gap = equilibria["now"] - equilibria["limit"]
    out["between"] = number(np.linalg.norm(gap))
    return out


def _said(e: Experiment, made: Any) -> list[str]:
    """What to know about this picture, in words."""
    out = []
    if made is None:
        out.append("This is too much work to simulate while you drag: press “Run it” instead.")
    elif made.diverged:
        out.append(f"The simulation diverged: {made.diverged[0]}")
    found = stability(e)
    if not found.stable:
        out.append(f"{found.advice[0].upper()}{found.advice[1:]}.")
    return out


def _notes(caught: Any) -> list[str]:
    """The library's warnings, each once, without those that ``_said`` words better."""
    texts = [str(w.message) for w in caught if issubclass(w.category, FedtaperWarning)]
    kept = [text for text in texts if "above 2 / curvature" not in text]
    return list(dict.fromkeys(f"{text[0].upper()}{text[1:]}." for text in kept))


def text(asked: Mapping[str, Any]) -> str:
    """The experiment as a TOML file."""
    with _TURN, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recipe(experiment(asked))["toml"]


def goals() -> list[tuple[str, str]]:
    """The goals for which influences can be chosen: names and descriptions."""
    return list(GOALS.items())


def goal(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The influences that serve a goal of :func:`fedtaper.fair` best, the largest being 1."""
    name, settings = asked.get("goal"), asked.get("settings")
    if name not in GOALS or not isinstance(settings, dict):
        raise FedtaperError(f"goal must be one of {', '.join(GOALS)}, with the studio's settings")
    with _TURN, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = cast(LinearRegression, experiment(settings).problem)
    typical = float(np.mean(problem.losses(problem.equilibrium(np.ones(problem.num_clients)))))
    found = fair(problem, name, t=3 / typical)  # losses have a unit, and so has a tilt
    p = np.maximum(found.p / found.p.max(), FLOOR)
    floored = int(np.sum(found.p < FLOOR * found.p.max()))
    said = [found.certificate, *found.notes]
    if floored:
        said.append(f"A share of 0 is shown as influence {FLOOR:g}: a step size cannot be 0.")
    return {"goal": name, "p": numbers(p), "said": said}


def warm_up() -> None:
    """Compile what the first drag would have to wait for."""
    small = DEFAULTS | {"rounds": 20, "clients": [{"c": 0.01, "delta": 0.8}] * 2}
    draw(small)
