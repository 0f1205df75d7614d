"""Forecasts by value: fading in closed form, error bars, limits of what is accepted, a network."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import expit
from scipy.stats import norm

import fedtaper as ft
from fedtaper.theory import forecast as room
from fedtaper.theory.fluctuation import fluctuation

PROBLEM = ft.LinearRegression(num_clients=3, dim=2, samples=60, feature_spread=1.0, seed=7)
SLOW, FAST = ft.Power(0.1, 0.8), ft.Power(0.1, 1.0)


def experiment(schedules=SLOW, problem=PROBLEM, **how):
    settings = {"rounds": 10, "local_steps": 4, "batch_size": 20} | how
    return ft.Experiment(problem, schedules, **settings)


@pytest.fixture(scope="module")
def far():
    return ft.forecast(experiment([SLOW, FAST, FAST]), n=100)


def test_rounds_and_distances(far):
    assert far.round == 25.0 and (far.n, far.note) == (100.0, "")
    assert far.t == pytest.approx((0.1 * np.arange(1, 101) ** -0.8).sum(), rel=1e-12)
    assert far.distance == pytest.approx(math.dist(far.w, far.equilibrium), rel=1e-12)
    assert far.distance_limit == pytest.approx(math.dist(far.w, PROBLEM.equilibrium([1, 0, 0])))
    with pytest.raises(dataclasses.FrozenInstanceError):
        far.n = 1.0


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.999])
def test_an_interval_is_that_of_the_normal_distribution(level):
    e = experiment()
    found = ft.forecast(e, n=400)
    spread = np.sqrt(np.diag(fluctuation(e, 400.0).covariance))
    low, high = norm.interval(level, found.w, spread)
    np.testing.assert_allclose(found.interval(level), [low, high], rtol=1e-10)
    if level == 0.95:
        np.testing.assert_array_equal(found.interval(), found.interval(0.95))


@pytest.mark.parametrize("level", [0, 1, -0.5, 1.5, math.nan])
def test_a_level_lies_between_0_and_1(far, level):
    with pytest.raises(ft.FedtaperError, match="above 0 and below 1"):
        far.interval(level)


def test_clock_values_from_1_to_1e300(far):
    e = experiment()
    assert ft.forecast(e, n=1).n == 1.0 and ft.forecast(e, n=1e300).n == 1e300
    for n in (0.999, 1.01e300, math.inf, math.nan):
        with pytest.raises(ft.FedtaperError, match="a number from 1 to 1e300"):
            ft.forecast(e, n=n)
    with pytest.raises(ft.FedtaperError, match=r"start = -0\.1 is not a clock value"):
        ft.forecast(e, n=10, start=-0.1)
    w = np.array([3.0, -2.0])
    np.testing.assert_allclose(ft.forecast(e, n=10, w=w, start=10).w, w, rtol=1e-12)
    moved = ft.forecast(e, n=40, w=ft.forecast(e, n=10).w, start=10)
    np.testing.assert_allclose(moved.w, ft.forecast(e, n=40).w, rtol=1e-6)
    np.testing.assert_array_equal(far.fades(), far.fades(0.01))


@pytest.mark.parametrize("to", [0.9155, 0.9, 0.8, 0.3, 0.01, 1e-40])
def test_one_update_a_round_fades_as_a_power(to):
    """The round centred at n has its update at n + 1/2, so the influence is (n + 1/2)^-0.2."""
    found = room.fades(experiment([FAST, SLOW, FAST], local_steps=1), to)
    assert found[1] == math.inf
    assert found[0] == pytest.approx(to**-5 - 0.5, rel=1e-9) and found[2] == found[0]


def test_what_never_was_above_and_what_never_falls_below():
    e = experiment([SLOW, ft.Power(0.05, 0.8), FAST], local_steps=1)
    assert room.fades(e, 0.6)[:2].tolist() == [math.inf, 1.0]
    assert room.fades(e, 0.4)[1] == math.inf
    assert room.fades(e, 1.0).tolist() == [math.inf, 1.0, 1.0], "equal is not below"
    late = room.fades(e, 1e-59)[2]
    assert late == pytest.approx(1e295, rel=1e-6)
    assert room.fades(e, 1e-61)[2] == math.inf, "beyond n = 1e300"
    with pytest.raises(ft.FedtaperError, match="above 0"):
        room.fades(e, 0)


def test_a_forecast_includes_the_drift_within_a_round():
    """Four full-batch steps of a constant size: the fixed point of the round, to second order."""
    e = experiment([ft.Constant(0.02), ft.Constant(0.02), ft.Constant(0.02)], local_steps=4)
    a, b = PROBLEM.moments[:2]
    kept = [np.linalg.matrix_power(np.eye(2) - 0.02 * one, 4) for one in a]
    pulled = [(np.eye(2) - k) @ np.linalg.solve(m, v) for k, m, v in zip(kept, a, b, strict=True)]
    exact = np.linalg.solve(np.eye(2) - np.mean(kept, axis=0), np.mean(pulled, axis=0))
    found = ft.forecast(e, n=40_000).w
    plain = PROBLEM.equilibrium([1, 1, 1])
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(plain - exact)


def test_a_forecast_is_for_what_is_declared_and_says_so():
    e = experiment(names=("a", "b", "c"), behaviours={2: ft.Idle()})
    found, honest = ft.forecast(e, n=400), ft.forecast(experiment(), n=400)
    np.testing.assert_array_equal(found.w, honest.w)
    assert "(c): the forecast is for the declared step sizes" in found.note
    with pytest.raises(ft.FedtaperError, match="what was declared"):
        found.interval()


# ------------------------------------------------------------------ a network


def network(dim=2):
    torch = pytest.importorskip("torch", reason="needs fedtaper[torch]")
    rng = np.random.default_rng(0)
    data = []
    for i in range(2):
        x = rng.normal(size=(30, dim)).astype(np.float32)
        data.append((x, (rng.random(30) < 0.3 + 0.4 * i).astype(np.float32)))

    def loss(model, x, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)

    return ft.Custom(loss, lambda: torch.nn.Linear(dim, 1, bias=False), data), data


def test_a_network_follows_the_ode_of_its_own_gradients():
    problem, data = network()
    e = ft.Experiment(problem, ft.Power(0.5, 0.8), rounds=10, local_steps=2, batch_size=10)
    w = np.array([2.0, -1.0])
    end = (0.5 * np.arange(1, 41) ** -0.8).sum()

    def field(t, w):
        each = [x.T.astype(float) @ (expit(x @ w) - y) / len(y) for x, y in data]
        return -np.mean(each, axis=0)

    exact = solve_ivp(field, (0, end), w, rtol=1e-10, atol=1e-12).y[:, -1]
    found = ft.forecast(e, n=40, w=w)
    np.testing.assert_allclose(found.w, exact, atol=5e-6)
    assert found.equilibrium is None and math.isnan(found.distance) and found.note == ""


@pytest.mark.parametrize("limit, method", [(2, "LSODA"), (1, "RK45")])
def test_the_solver_and_the_patience_for_a_network(monkeypatch, limit, method):
    problem, _ = network()
    e = ft.Experiment(problem, ft.Power(0.5, 0.8), rounds=10, local_steps=2, batch_size=10)
    used = {}

    def solve(self, w, **how):
        used.update(how)
        raise room.TooLongError("too long")

    monkeypatch.setattr(room.LimitOde, "solve", solve)
    monkeypatch.setattr(room, "SMALL", limit)
    found = ft.forecast(e, n=40)
    assert (used["method"], used["patience"]) == (method, room.PATIENCE)
    assert np.isnan(found.w).all() and found.w.shape == (2,) and "takes more than" in found.note
