"""Checks of an engine: it agrees with the reference on everything in its capabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedtaper import engines
from fedtaper.core.protocols import Engine, Options, Problem
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.behaviours import Idle
from fedtaper.rules.steering import Steering
from fedtaper.simulation.drive import run
from fedtaper.testing.checks import need, run_checks


def check_engine(engine: Engine, problem: Problem | None = None, close: float = 1e-9) -> list[str]:
    """Check an engine against :class:`fedtaper.core.protocols.Engine` and the reference.

    Args:
        engine: the engine.
        problem: what to run on it; by default a small regression. Give one of a kind that the
            engine knows.
        close: the largest distance of models to the reference's, relative to their size; float32
            engines need about 1e-3.

    >>> from fedtaper.engines.compiled import ENGINE
    >>> "agrees_with_the_reference" in check_engine(ENGINE)
    True
    """
    subject = _Subject(engine, problem or _small(), close)
    return run_checks(
        subject,
        [
            _has_the_one_shape,
            _agrees_with_the_reference,
            _blocks_join_without_a_seam,
            _participation_agrees,
            _behaviours_agree,
            _updates_are_recorded,
            _steering_agrees,
            _every_seed_is_its_own,
        ],
    )


class _Subject:
    def __init__(self, engine: Engine, problem: Problem, close: float) -> None:
        self.engine, self.can, self.close = engine, engine.capabilities, close
        steps = [Power(0.02, 0.8), Power(0.03, 0.9)]
        schedules = [steps[i % 2] for i in range(problem.num_clients)]
        self.e = Experiment(problem, schedules, rounds=6, local_steps=2, batch_size=5, seed=3)

    def same(self, e: Experiment, **how: Any) -> Any:
        mine = run(e, engine=self.engine, progress=False, **how)
        other = run(e, engine="reference", progress=False, **how)
        assert mine.w is not None and other.w is not None
        size = float(np.abs(other.w).max())
        apart = float(np.abs(mine.w - other.w).max()) / size
        need(apart <= self.close, f"its models are {apart:.2g} from the reference's")
        return mine, other


def _small() -> Problem:
    return LinearRegression(num_clients=3, dim=2, samples=(40, 30, 50), feature_spread=1.0, seed=7)


def _has_the_one_shape(subject: _Subject) -> None:
    need(isinstance(subject.engine, Engine), "it lacks a part of Engine")
    need(subject.e.problem.kind in subject.can.problems, "it does not run this kind of problem")
    need(subject.engine.block_rounds(subject.e, 1) >= 1, "block_rounds is below 1")


def _agrees_with_the_reference(subject: _Subject) -> None:
    subject.same(subject.e)


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


def _participation_agrees(subject: _Subject) -> None:
    if subject.can.participation:
        subject.same(replace(subject.e, participation=0.6))


def _behaviours_agree(subject: _Subject) -> None:
    if subject.can.behaviours:
        subject.same(replace(subject.e, behaviours={1: Idle()}))


def _updates_are_recorded(subject: _Subject) -> None:
    if subject.can.updates:
        mine, _ = subject.same(subject.e, updates=True)
        need(mine.updates is not None and np.all(np.isfinite(mine.updates)), "updates are missing")


def _steering_agrees(subject: _Subject) -> None:
    if subject.can.steering:
        mine, _ = subject.same(replace(subject.e, steering=Steering(every=2, rate=2.0)))
        need(np.abs(mine.scales[-1] - 1).max() > 0, "its scales do not move")


def _every_seed_is_its_own(subject: _Subject) -> None:
    if subject.can.many_seeds:
        many = run(subject.e, engine=subject.engine, seeds=[3, 4], progress=False)
        alone = run(replace(subject.e, seed=4), engine=subject.engine, progress=False)
        assert many.w is not None and alone.w is not None
        need(np.array_equal(many.w[1], alone.w), "a seed's result depends on the other seeds")
