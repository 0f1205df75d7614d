"""A run has the same bits however it is cut into blocks of rounds, and wherever it is stopped.

A resumed run, a watched run and a run on a slower machine are cut in other places than a whole one.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.engines import registry
from fedtaper.simulation import drive

# settings are drawn at random, in and outside the assumptions
pytestmark = pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")

ARRAYS = ("round", "n", "t", "w", "w0", "update_norms", "updates")
RULES = (
    {},
    {"participation": 0.6},
    {"server": ft.Adam()},
    {"server": ft.Median()},
    {"server": ft.AverageMomentum(0.5), "delays": ft.RandomDelay(2.0, 9)},
    {"local": ft.Momentum(0.5, nesterov=True)},
    {"local": ft.Scaffold(), "server": ft.Controlled()},
    {"delays": ft.RandomDelay(2.0, 9), "own_clock": True, "participation": 0.7},
    {"asynchronous": ft.Asynchronous(buffer=1)},
    {"steering": ft.Steering(every=3)},
    {"challenges": ft.Challenges(every=4)},
    {"behaviours": {0: ft.After(7, ft.Noise())}},
)
SCHEDULES = (
    ft.Power(0.02, 0.8),
    ft.Power(0.5, 0.9, offset=40),
    ft.Constant(0.01),
    ft.Cosine(0.02, 60),
    ft.WarmUp(ft.Power(0.02, 0.9), 9),
)


class Stopped(BaseException):
    """As if the process had been killed between two blocks."""


@st.composite
def regressions(draw):
    """Any kind of regression: few and many clients, features and local updates."""
    clients, dim = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 3, 9, 17]))
    chosen = {"num_clients": clients, "dim": dim, "feature_spread": 1.0, "seed": 4}
    kind = draw(st.sampled_from(["linear", "stream", "moving"]))
    if kind == "linear":
        problem = ft.LinearRegression(samples=draw(st.integers(20, 60)), **chosen)
    else:
        problem = ft.RegressionStream(rho=draw(st.sampled_from([0.0, 0.5])), **chosen)
    rules = dict(draw(st.sampled_from(RULES)))
    if kind == "moving":
        problem = ft.MovingRegression(problem, drift=0.1, change_round=6, change=1.0)
        rules.pop("steering", None)  # it has no losses to look at
    how = {"local_steps": draw(st.sampled_from([1, 2, 9])), "batch_size": draw(st.integers(1, 5))}
    steps = draw(st.lists(st.sampled_from(SCHEDULES), min_size=clients, max_size=clients))
    return ft.Experiment(problem, steps, rounds=draw(st.integers(5, 30)), **how, **rules)


def squared(model, x, y):
    return ((model(x) - y) ** 2).mean()


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))


@st.composite
def networks(draw):
    """A small network of the user's own, with every kind of memory."""
    clients = draw(st.integers(2, 4))
    rng = np.random.default_rng(clients)
    data = [(rng.normal(size=(12 + i, 3)), rng.normal(size=(12 + i, 1))) for i in range(clients)]
    how = {"local_steps": draw(st.integers(1, 3)), "batch_size": draw(st.integers(1, 13))}
    rules = dict(draw(st.sampled_from(RULES)))
    problem = ft.Custom(squared, net, data)
    return ft.Experiment(
        problem, ft.Power(0.1, 0.8), rounds=draw(st.integers(4, 9)), **how, **rules
    )


def in_pieces(e, cuts, stops, **how):
    """The run in blocks of these lengths, killed and resumed before some of them."""
    cuts, stops = iter(cuts), iter(stops)

    def rounds(*_):
        if next(stops, False):
            raise Stopped
        return next(cuts, 100)

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
        for name in ("reference", "compiled", "events", "cpu"):
            patch.setattr(type(registry.get(name)), "block_rounds", rounds)
        while True:
            try:
                return ft.run(e, out=Path(folder) / "run", resume=True, progress=False, **how)
            except Stopped:
                continue


def same(whole, pieces):
    assert whole.diverged == pieces.diverged and set(whole.metrics) == set(pieces.metrics)
    found = [(name, getattr(whole, name), getattr(pieces, name)) for name in ARRAYS]
    for name, values in whole.metrics.items():
        if name != "seconds":
            found.append((name, values, pieces.metrics[name]))
    for kept in ("challenges", "looks"):
        a, b = getattr(whole, kept), getattr(pieces, kept)
        found += [(f"{kept} {k}", v, vars(b)[k]) for k, v in vars(a).items()] if a else []
    for name, a, b in found:
        assert (a is None) == (b is None), name
        assert a is None or np.array_equal(a, b, equal_nan=True), name


pieces = st.lists(st.integers(1, 7), max_size=30)
kills = st.lists(st.booleans(), max_size=9)


@given(
    regressions(),
    pieces,
    kills,
    st.sampled_from([None, "reference"]),
    st.sampled_from([None, [3], [0, 5, 1]]),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_regression(e, cuts, stops, engine, seeds, updates):
    if e.steering is not None:
        seeds = None  # one seed at a time
    how = {"engine": engine, "seeds": seeds, "updates": updates}
    same(ft.run(e, **how), in_pieces(e, cuts, stops, **how))


def test_stopped_before_the_first_recorded_round():
    problem = ft.LinearRegression(num_clients=3, samples=30, seed=2)
    e = ft.Experiment(problem, ft.Power(0.001, 0.8), rounds=20, local_steps=2)
    how = {"engine": "reference", "seeds": [3, 1], "thin": 7, "updates": True}
    same(ft.run(e, **how), in_pieces(e, [2] * 10, [False, True], **how))


@given(networks(), pieces, kills)
@settings(max_examples=6, deadline=None)
def test_networks(e, cuts, stops):
    same(ft.run(e), in_pieces(e, cuts, stops))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_a_round_is_measured_with_the_scales_that_it_was_made_with(engine):
    """A look of the controller within a block changed the limit of the rounds before it too."""
    problem = ft.LinearRegression(num_clients=3, samples=60, feature_spread=1.0, seed=2)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=12, local_steps=2,
                      steering=ft.Steering(every=5))  # fmt: skip
    run = ft.run(e, engine=engine)
    assert run.looks is not None and run.looks.round.tolist() == [5, 10]
    for k in range(12):
        share = run.looks.factor[k // 5]  # scales before the first look, after each
        optimum = problem.equilibrium(share / share[0])
        distance = np.linalg.norm(run.w[k] - optimum)
        assert run.metrics["error_limit"][k] == pytest.approx(distance), k
