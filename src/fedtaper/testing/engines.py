"""Checks of an engine: it agrees with the reference on what its capabilities let it run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper import engines
from fedtaper.core.errors import quietly
from fedtaper.core.protocols import Engine, Options, Problem, is_network, is_quadratic
from fedtaper.core.schedules import Power
from fedtaper.core.sketch import sketch
from fedtaper.engines import gate
from fedtaper.engines.reference import ENGINE as REFERENCE
from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.rules.asynchronous import Asynchronous
from fedtaper.rules.behaviours import After, Copies, Idle, Noise, OtherSchedule
from fedtaper.rules.challenges import Challenges
from fedtaper.rules.control import Controlled, Scaffold
from fedtaper.rules.delays import RandomDelay
from fedtaper.rules.local import Proximal
from fedtaper.rules.momentum import Momentum
from fedtaper.rules.robust import Clipped, Median, Trimmed
from fedtaper.rules.server import Adam, AverageMomentum, Normalised
from fedtaper.rules.staleness import Polynomial
from fedtaper.rules.steering import Steering
from fedtaper.simulation.drive import run
from fedtaper.testing.checks import Check, need, run_checks


def check_engine(engine: Engine, problem: Problem | None = None, close: float = 1e-9) -> list[str]:
    """Check an engine against :class:`fedtaper.core.protocols.Engine` and the reference.

    Models, updates, their sizes and answers to challenges are compared for every setting in
    :func:`asked` that the gate lets the engine run. Ways, precisions, devices and averaged
    statistics are not: the reference has none of them.

    Args:
        engine: the engine.
        problem: what to run on it; by default a small regression. Give one of a kind that the
            engine knows.
        close: the largest distance to what the reference finds, relative to the size of its
            models; float32 engines need about 1e-3.

    Returns:
        The names of the checks that were made: none for what the engine does not run.

    >>> from fedtaper.engines.compiled import ENGINE
    >>> "agrees_on_challenges" in check_engine(ENGINE), "agrees_on_delays" in check_engine(ENGINE)
    (True, False)
    """
    subject = _Subject(engine, problem or _small(), close)
    return run_checks(
        subject,
        [
            _has_the_one_shape,
            _agrees_with_the_reference,
            _blocks_join_without_a_seam,
            *subject.agreements(),
            _every_seed_is_its_own,
        ],
    )


def asked(e: Experiment) -> dict[str, list[dict[str, Any]]]:
    """What is asked of an engine besides the plain experiment ``e``, by what it has to be able to.

    Each is a list of settings, of which an engine is asked those that the gate lets it run.
    """
    late = tuple(i % 3 for i in range(e.num_clients))
    pace = tuple(1.0 + i / 2 for i in range(e.num_clients))
    found: dict[str, list[dict[str, Any]]] = {
        "updates": [{}],
        "rules": [
            {"local": Proximal(0.1)},
            {"server": Normalised(over="steps")},
            {"server": Normalised(over="step_sums")},
            {"server": AverageMomentum(0.5)},
            {"server": Adam(tau=0.1)},
        ],
        "stateful_rules": [
            {"local": Momentum(0.5), "participation": 0.6},
            {"local": Momentum(0.5, reset=True)},
            {"local": Scaffold(), "server": Controlled(), "participation": 0.6},
        ],
        "combining": [
            {"server": Median()},
            {"server": Trimmed(each=1), "participation": 0.6},
            {"server": Clipped()},
        ],
        "participation": [
            {"participation": 0.6},
            {"participation": 0.6, "average_over": "present"},
        ],
        "behaviours": [
            {"behaviours": {0: OtherSchedule(Power(0.02, 1.0)), 1: Noise(0.5)}},
            {"behaviours": {0: Copies(), 1: After(3, Idle())}},
        ],
        "challenges": [
            {"challenges": Challenges(every=2, base=1, jitter=0.5)},
            {"challenges": Challenges(every=3, base=2), "participation": 0.6},
        ],
        "delays": [
            {"delays": late},
            {"delays": RandomDelay(1.5, most=4), "staleness": Polynomial(), "participation": 0.6},
            {"own_clock": True, "participation": 0.6},
            {"asynchronous": Asynchronous(durations=pace), "staleness": Polynomial()},
            {"delays": late, "behaviours": {0: Copies(), 1: Noise(0.5)}},
        ],
    }
    if is_quadratic(e.problem) or is_network(e.problem):  # others need a judge of their losses
        found["steering"] = [{"steering": Steering(every=2, rate=2.0)}]
    if e.problem.kind not in ("stream", "moving"):  # which never run short of samples
        more = int(min(e.problem.sizes)) + 1
        found["short_batches"] = [{"batch_size": more}, {"batch_size": more, "delays": late}]
    return found


class _Subject:
    def __init__(self, engine: Engine, problem: Problem, close: float) -> None:
        self.engine, self.can, self.close = engine, engine.capabilities, close
        steps = [Power(0.02, 0.8), Power(0.03, 0.9)]
        schedules = [steps[i % 2] for i in range(problem.num_clients)]
        self.e = Experiment(problem, schedules, rounds=6, local_steps=2, batch_size=5, seed=3)

    def agreements(self) -> list[Check]:
        """One check for each row of what is asked, without the settings that the gate refuses."""
        allowed = {
            name: [one for one in several if self._runs(name, one)]
            for name, several in asked(self.e).items()
        }
        return [_agreement(name, several) for name, several in allowed.items() if several]

    def _runs(self, name: str, settings: dict[str, Any]) -> bool:
        e, options = self.experiment(settings), Options(updates=name == "updates")
        both = (self.engine, REFERENCE)
        return not any(True for one in both for _ in gate.objections(e, one, options))

    def experiment(self, settings: dict[str, Any]) -> Experiment:
        """The plain experiment with other settings; batches may be short on purpose."""
        with quietly():
            return replace(self.e, **settings)

    def same(self, settings: dict[str, Any]) -> None:
        """Run it on both engines, and compare all that they record."""
        e, updates = self.experiment(settings), self.can.updates
        with quietly():
            mine = run(e, engine=self.engine, updates=updates, progress=False)
            other = run(e, engine=REFERENCE, updates=updates, progress=False)
        assert other.w is not None
        size = float(np.abs(other.w).max())
        for what, (found, right) in _compared(mine, other).items():
            apart = _apart(found, right) / size
            words = f"its {what} are {apart:.2g} from the reference's"
            need(apart <= self.close, f"{words} with {settings}" if settings else words)


def _compared(mine: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """What two runs recorded, all of it as large as models and their moves are."""
    found = {"models": (mine.w, other.w), "sizes": (mine.update_norms, other.update_norms)}
    if other.updates is not None:  # the reference does not sketch those of networks
        found["updates"] = (mine.updates, sketch(other.updates, _width(mine.updates)))
    if other.challenges is not None:
        for name in ("size", "base_size"):
            found[f"answers' {name}s"] = tuple(vars(one.challenges)[name] for one in (mine, other))
        found["answers' directions"] = (_along(mine), _along(other))
    return found


def _along(found: Run) -> Any:
    """How far each answer goes in the direction of the client's base update."""
    answers = found.challenges
    assert answers is not None
    with np.errstate(invalid="ignore", divide="ignore"):
        return answers.product / answers.base_size


def _width(updates: Any) -> int:
    return 0 if updates is None else int(updates.shape[-1])


def _apart(found: Any, right: NDArray[np.float64]) -> float:
    """The largest distance of two arrays; NaN agrees with NaN alone."""
    if found is None or found.shape != right.shape:
        return np.inf
    distance = np.abs(found - right)
    distance[np.isnan(found) & np.isnan(right)] = 0.0
    return float(distance.max(initial=0.0))


def _agreement(name: str, several: list[dict[str, Any]]) -> Check:
    def check(subject: _Subject) -> None:
        for settings in several:
            subject.same(settings)

    check.__name__ = f"agrees_on_{name}"
    return check


def _small() -> Problem:
    return LinearRegression(num_clients=3, dim=2, samples=(40, 30, 50), feature_spread=1.0, seed=7)


def _has_the_one_shape(subject: _Subject) -> None:
    need(isinstance(subject.engine, Engine), "it lacks a part of Engine")
    need(subject.e.problem.kind in subject.can.problems, "it does not run this kind of problem")
    need(subject.engine.block_rounds(subject.e, 1) >= 1, "block_rounds is below 1")


def _agrees_with_the_reference(subject: _Subject) -> None:
    subject.same({})


def _blocks_join_without_a_seam(subject: _Subject) -> None:
    full = run(subject.e, engine=subject.engine, progress=False)
    state = engines.init(subject.e, np.array([subject.e.seed]))
    session = subject.engine.open(subject.e, state, Options())
    try:
        for rounds in (1, 3, 2):
            session.advance(rounds)
        session.sync()
    finally:
        session.close()
    assert full.w is not None
    need(np.array_equal(state.w[0], full.w[-1]), "1 + 3 + 2 rounds are not 6 rounds")
    need(state.round == 6, f"the State is at round {state.round}, not 6")


def _every_seed_is_its_own(subject: _Subject) -> None:
    if subject.can.many_seeds:
        many = run(subject.e, engine=subject.engine, seeds=[3, 4], progress=False)
        alone = run(replace(subject.e, seed=4), engine=subject.engine, progress=False)
        assert many.w is not None and alone.w is not None
        need(np.array_equal(many.w[1], alone.w), "a seed's result depends on the other seeds")
