"""The contract kit, over everything that ships, and over things that break it."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core.protocols import Capabilities
from fedtaper.engines import reference, registry
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


IN_THIS_PROCESS = [name for name in registry.BUILT_IN if name != "flower"]  # test_flower_engine.py


def ready(name):
    """The engine of that name, if this machine can run it."""
    try:
        found = registry.get(name)
        found.check()
    except ft.FedtaperError as reason:
        pytest.skip(str(reason))
    return found


@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_engines(name):
    engine = ready(name)
    if "linear" in engine.capabilities.problems:
        assert "agrees_on_short_batches" in check_engine(engine)
    if "network" in engine.capabilities.problems:
        close = {"reference": 1e-9, "cpu": 1e-5}.get(name, 1e-3)
        assert "agrees_on_combining" in check_engine(engine, list(problems())[2], close)


@pytest.mark.parametrize("name", ["reference", "events"])
def test_engines_on_streams(name):
    stream = ft.RegressionStream(num_clients=3, dim=2, rho=(0.0, 0.5, 0.9), feature_spread=1.0)
    check_engine(ready(name), stream)
    check_engine(ready(name), ft.MovingRegression(stream, drift=0.1))


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


class Liar(type(reference.ENGINE)):
    """The reference, on an experiment without what it says it can do."""

    def __init__(self, session=reference.ReferenceSession, **instead):
        self.session, self.instead = session, instead

    def open(self, experiment, state, options):
        return self.session(replace(experiment, **self.instead), state)


class Large(reference.ReferenceSession):
    """Batches that are larger than what a client holds."""

    def __init__(self, experiment, state):
        vars(experiment)["batch_sizes"] = np.full(experiment.num_clients, experiment.batch_size)
        super().__init__(experiment, state)


class Steady(reference.ReferenceSession):
    def steer(self, experiment):
        pass


class Mute(reference.ReferenceSession):
    def answers(self, s, clients, model, round_, a):
        return 0.9 * super().answers(s, clients, model, round_, a)


class Ones(reference.ReferenceSession):
    def advance(self, rounds):
        block = super().advance(rounds)
        if block.updates is not None:
            block.updates = np.ones_like(block.updates)
        return block


class Sevens(reference.ReferenceSession):
    def advance(self, rounds):
        block = super().advance(rounds)
        block.update_norms[:] = 7.0
        return block


class Alike(reference.ReferenceSession):
    """Draws for all seeds what the first one draws."""

    def __init__(self, experiment, state):
        state.seeds = np.full_like(state.seeds, state.seeds[0])
        super().__init__(experiment, state)


PLAIN = {"local": ft.Sgd(), "server": ft.Average()}
LATE = {"delays": None, "asynchronous": None, "own_clock": False}
LIES = {
    "agrees_with_the_reference": [Liar(Sevens)],
    "agrees_on_updates": [Liar(Ones)],
    "agrees_on_rules": [Liar(local=ft.Sgd()), Liar(server=ft.Average())],
    "agrees_on_stateful_rules": [Liar(**PLAIN)],
    "agrees_on_combining": [Liar(server=ft.Average())],
    "agrees_on_participation": [Liar(participation=1.0), Liar(average_over="all")],
    "agrees_on_behaviours": [Liar(behaviours={})],
    "agrees_on_challenges": [Liar(Mute)],
    "agrees_on_delays": [
        Liar(**LATE), Liar(delays=None), Liar(asynchronous=None), Liar(own_clock=False),
        Liar(staleness=ft.Undiscounted()), Liar(behaviours={}),
    ],
    "agrees_on_steering": [Liar(Steady)],
    "agrees_on_short_batches": [Liar(Large), Liar(batch_size=5)],
    "every_seed_is_its_own": [Liar(Alike)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "number"), [(c, i) for c, m in LIES.items() for i in range(len(m))]
)
def test_an_engine_that_lies_is_named(check, number):
    with pytest.raises(ContractError, match=f"{check}: (its .* from the reference's|a seed's)"):
        check_engine(LIES[check][number])


def test_there_is_a_liar_for_every_check_and_a_check_for_every_capability():
    made = set(check_engine(reference.ENGINE))
    assert made - set(LIES) == {"has_the_one_shape", "blocks_join_without_a_seam"}
    flags = {one.name for one in fields(Capabilities) if one.type == "bool"}
    not_compared = {"statistics", "memory_at_sites", "saves_each_round"}
    seen = {name.removeprefix("agrees_on_") for name in made} | {"many_seeds"}
    assert flags - not_compared <= seen
