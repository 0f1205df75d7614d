"""The contract kit, over everything that ships, and over things that break it."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.engines import compiled, reference
from fedtaper.rules.presets import PRESETS
from fedtaper.testing import (
    ContractError,
    check_engine,
    check_local_rule,
    check_problem,
    check_schedule,
    check_server_rule,
)

SCHEDULES = [
    ft.Power(0.1, 0.76),
    ft.Power(0.1, 1.0, offset=20),
    ft.Constant(0.05),
    ft.WarmUp(ft.Power(0.1, 0.8), 10),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules(schedule):
    check_schedule(schedule)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_rules_of_every_preset(preset):
    local, server = PRESETS[preset]["local"], PRESETS[preset]["server"]
    check_local_rule(local, server)
    check_server_rule(server, local)


def problems():
    torch = pytest.importorskip("torch")
    data = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(2)]
    loss = torch.nn.functional.mse_loss
    yield ft.LinearRegression(num_clients=3, samples=60)
    yield ft.ImageClassification("digits", model="cnn", num_clients=3)
    yield ft.Custom(lambda model, x, y: loss(model(x), y), lambda: torch.nn.Linear(3, 1), data)


@pytest.mark.parametrize("number", range(3))
def test_problems(number):
    check_problem(list(problems())[number])


@pytest.mark.parametrize("engine", [reference.ENGINE, compiled.ENGINE], ids=lambda e: e.name)
def test_engines_on_regression(engine):
    check_engine(engine)


def test_the_network_engine():
    from fedtaper.engines import cpu

    check_engine(cpu.ENGINE, list(problems())[2], close=1e-5)


def test_a_broken_schedule_is_named():
    @dataclass(frozen=True)
    class Grows:
        c = 1.0
        delta = 1.0
        formula = "n"

        def __call__(self, n):
            return np.asarray(n, dtype=float)

    with pytest.raises(ContractError, match="reaches_its_limit"):
        check_schedule(Grows())


def test_a_rule_that_works_in_place_is_named():
    class Rude(ft.Memoryless):
        def direction(self, gradient, w, anchor):
            gradient *= 2
            return gradient

    with pytest.raises(ContractError, match="changes_nothing_in_place"):
        check_local_rule(Rude())


def test_a_server_rule_without_weights_is_named():
    class Half:
        rescales = erases_influence = False

    with pytest.raises(ContractError, match="is_a_server_rule"):
        check_server_rule(Half())


def test_a_problem_with_wrong_gradients_is_named():
    class Wrong(ft.LinearRegression):
        def gradient(self, client, w, batch):
            return 2 * super().gradient(client, w, batch)

    with pytest.raises(ContractError, match="gradients_are_those_of_all_samples"):
        check_problem(Wrong(num_clients=2, samples=30))


def test_an_engine_that_differs_is_named():
    class Off(type(reference.ENGINE)):
        name = "off"

        def open(self, experiment, state, options):
            state.w += 1e-3
            return super().open(experiment, state, options)

    with pytest.raises(ContractError, match="agrees_with_the_reference"):
        check_engine(Off())
