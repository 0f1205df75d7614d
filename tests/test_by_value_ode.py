"""The limit ODE by value: its right side from raw sums, paths in closed form, what is refused."""

import dataclasses
import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.theory import ode as room

PROBLEM = ft.LinearRegression(num_clients=2, dim=2, samples=60, feature_spread=1.0, seed=7)
SLOW, FAST = ft.Power(0.1, 0.8), ft.Power(0.3, 1.0)
STEPS = 8  # of a round


def experiment(schedules=(SLOW, FAST), problem=PROBLEM, **how):
    settings = {"rounds": 10, "local_steps": STEPS, "batch_size": 20} | how
    return ft.Experiment(problem, schedules, **settings)


def around(n):
    """The weights of both mean fields and both drifts, from the step sizes around n."""
    clock = np.arange(1, STEPS + 1) + max(n - STEPS / 2, 0.0)
    a = np.array([0.1 * clock**-0.8, 0.3 / clock])
    before = np.cumsum(a, axis=1) - a
    drift = (a * before).sum(axis=1) / a.sum(axis=1)
    return a.sum(axis=1) / a[0].sum() / 2, drift


@pytest.mark.parametrize("drifting", [False, True])
def test_the_right_side_and_its_derivative_at_finite_n(drifting):
    e = experiment(local=ft.Proximal(0.5))
    ode = replace(ft.limit_ode(e, "finite"), drift=drifting)
    pull, slope, x_of = ode._right_side(0.0, ode.clock.t(1e6))
    a, b = PROBLEM.moments[:2]
    w = np.array([0.7, -1.3])
    for n in (1.0, 3.0, 3.99, 4.01, 4.1, 5.0, 30.0, 777.0, 1e4, 9e5):
        x = math.log1p(n)
        assert x_of(ode.clock.t(n)) == pytest.approx(x, rel=1e-10)
        pace = (ode.clock.t(n + 1e-4 * n) - ode.clock.t(n - 1e-4 * n)) / 2e-4 / n * (1 + n)
        weights, drift = around(n)
        right, bend = np.zeros(2), np.zeros((2, 2))
        for i in range(2):
            felt = np.eye(2) + drift[i] * (a[i] + 0.5 * np.eye(2)) * drifting
            right += pace * weights[i] * np.linalg.solve(felt, b[i] - a[i] @ w)
            bend -= pace * weights[i] * np.linalg.solve(felt, a[i])
        np.testing.assert_allclose(pull(x, w), right, rtol=2e-6)
        np.testing.assert_allclose(slope(x, w), bend, rtol=2e-6)


def test_the_right_side_in_the_limit():
    ode = ft.limit_ode(experiment())
    pull, slope, x_of = ode._right_side(0.0, 9.0)
    a, b = PROBLEM.moments[:2]
    w = np.array([0.7, -1.3])
    np.testing.assert_allclose(pull(3.0, w), (b[0] - a[0] @ w) / 2, rtol=1e-12)
    np.testing.assert_allclose(slope(3.0, w), -a[0] / 2, rtol=1e-12)
    assert x_of(2.5) == 2.5
    np.testing.assert_allclose(ode(3.0, w), (b[0] - a[0] @ w) / 2, rtol=1e-12)
    assert ode.weights(np.zeros((3, 4))).shape == (3, 4, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ode.drift = True


def test_where_the_right_side_is_zero_at_a_time():
    ode = ft.limit_ode(experiment(), "finite")
    for t, n in ((None, 0.0), (0.0, 0.0), (0.5, ode.clock.n(0.5)), (2.0, ode.clock.n(2.0))):
        weights = around(n)[0]
        a, b = (np.tensordot(weights, part, axes=1) for part in PROBLEM.moments[:2])
        np.testing.assert_allclose(ode.equilibrium(t), np.linalg.solve(a, b), rtol=1e-9)
    at_once = ft.limit_ode(experiment(local_steps=1), "finite").equilibrium()
    a, b = (part[0] + 3 * part[1] for part in PROBLEM.moments[:2])  # step sizes 0.1 and 0.3
    np.testing.assert_allclose(at_once, np.linalg.solve(a, b), rtol=1e-9)
    with pytest.raises(ft.FedtaperError, match="t must be a number at least 0"):
        ode.equilibrium(-0.5)


# ------------------------------------------------------------------ paths


ONE = ft.LinearRegression.from_arrays([np.array([[1.0], [2.0]])], [np.array([3.0, 1.0])])
REST, CURVATURE = 1.0, 2.5  # x'y / x'x and x'x / 2


@pytest.mark.parametrize("influence", ["limit", "finite"])
@pytest.mark.parametrize("method", ["LSODA", "Radau", "BDF", "RK45"])
def test_a_single_client_decays_exponentially(method, influence):
    e = experiment(SLOW, ONE, batch_size=2)
    ode = ft.limit_ode(e, influence)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a Jacobian that the method does not use
        path = ode.solve([5.0], start=0.5, end=1.5, method=method, rtol=1e-8, atol=1e-10)
    assert path.w == pytest.approx(REST + 4 * math.exp(-CURVATURE), rel=1e-5)
    times = np.array([[0.5, 0.6, 0.7], [0.9, 1.2, 1.5]])
    exact = REST + 4 * np.exp(-CURVATURE * (times - 0.5))
    np.testing.assert_allclose(path(times)[..., 0], exact, rtol=1e-4)
    assert path(times).shape == (2, 3, 1) and path(0.6).shape == (1,)
    n = ode.clock.n(1.2)
    np.testing.assert_allclose(path.at(n), path(1.2), rtol=1e-9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        path.end = 2.0


@pytest.mark.parametrize("span", [1e-12, 1e-3, 0.05])
def test_a_short_time_is_a_short_way(span):
    path = ft.limit_ode(experiment(SLOW, ONE, batch_size=2)).solve([5.0], start=0.5, end=0.5 + span)
    exact = 4 * math.expm1(-CURVATURE * (path.end - 0.5))
    assert path.w - 5.0 == pytest.approx(exact, rel=1e-3, abs=2e-15)


def test_by_default_from_the_first_model_to_the_last_round():
    e = experiment(SLOW)
    path = ft.limit_ode(e).solve()
    assert (path.start, path.end) == (0.0, pytest.approx((0.1 * np.arange(1, 81) ** -0.8).sum()))
    a, b = (part.mean(axis=0) for part in PROBLEM.moments[:2])
    values, vectors = np.linalg.eigh(a)
    rest, first = np.linalg.solve(a, b), PROBLEM.initial(0)
    for t in (0.0, 0.3, path.end):
        exact = rest + vectors @ (np.exp(-values * t) * (vectors.T @ (first - rest)))
        np.testing.assert_allclose(path(t), exact, atol=1e-8)
    np.testing.assert_allclose(path.w, exact, atol=1e-8)
    np.testing.assert_array_equal(path([0.3, 0.1])[1], path(0.1))


@pytest.mark.parametrize("influence", ["limit", "finite"])
def test_no_time_at_all_leaves_the_model_where_it_is(influence):
    ode = ft.limit_ode(experiment(), influence)
    for t in (0.0, 0.4, 1.0):
        np.testing.assert_allclose(ode.solve([3.0, 4.0], start=t, end=t).w, [3, 4], rtol=1e-9)


@pytest.mark.parametrize("start, end, slack", [(0.25, 0.5, 1e-12), (5.0, 1000.0, 1e-9)])
def test_a_solution_answers_within_its_span_and_a_rounding_error(start, end, slack):
    path = ft.limit_ode(experiment(SLOW, ONE, batch_size=2)).solve([5.0], start=start, end=end)
    assert path(end + 0.5 * slack) == pytest.approx(path.w, rel=1e-9)
    assert path(start - 0.5 * slack) == pytest.approx(5.0, rel=1e-9)
    for t in (end + 1.4 * slack, start - 1.4 * slack, [start, 2 * end], [end, start / 2], np.nan):
        with pytest.raises(ft.FedtaperError, match="larger end="):
            path(t)


def test_spans_and_models_that_are_refused():
    ode = ft.limit_ode(experiment())
    for start, end in ((-0.1, 1.0), (1.0, 0.9), (math.nan, 1.0), (0.0, math.inf), (0.0, math.nan)):
        with pytest.raises(ft.FedtaperError, match="end must be later than start"):
            ode.solve(start=start, end=end)
    for w in ([math.nan, 0.0], [math.inf, 0.0], [[1.0, 2.0]], 3.0):
        with pytest.raises(ft.FedtaperError, match="one model of 2 finite numbers"):
            ode.solve(w, end=1.0)


# ------------------------------------------------------------------ patience, other problems


def test_patience():
    ode = ft.limit_ode(experiment())
    np.testing.assert_array_equal(ode.solve(end=1.0, patience=60).w, ode.solve(end=1.0).w)
    with pytest.raises(room.TooLongError, match="more than 0 s"):
        ode.solve(end=1.0, patience=0)


def test_full_gradients_of_any_problem_up_to_a_size(monkeypatch):
    sloped = SimpleNamespace(
        kind="gradient", dim=3, num_clients=2, every_sample=lambda i: 10 * (i + 1),
        gradient=lambda i, w, every: every * w,
    )  # fmt: skip
    monkeypatch.setattr(room, "LARGEST", 3)
    found = room.mean_fields(sloped)(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(found, [[-10, -20, -30], [-20, -40, -60]])
    monkeypatch.setattr(room, "LARGEST", 2)
    with pytest.raises(ft.FedtaperError, match="3 parameters is too large"):
        room.mean_fields(sloped)
    for kind, says in (("recorded", "a recorded run"), ("moving", "moves, so there is no limit")):
        with pytest.raises(ft.FedtaperError, match=says):
            room.mean_fields(SimpleNamespace(kind=kind, dim=2))
