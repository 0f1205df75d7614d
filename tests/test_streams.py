"""Streams: the process, its populations, and what learns from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.problems.gauss_markov import block_length, gauss_markov


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.99])
def test_process_has_the_law_of_gauss_and_markov(rho):
    length = block_length(rho)
    blocks = 60_000 // length + 2
    x = np.concatenate([gauss_markov(5, 2, k, rho, 3) for k in range(blocks)])
    count = len(x) * (1 - rho) / (1 + rho)  # independent values that it is worth
    for lag in (0, 1, 7):
        found = np.mean(x[: len(x) - lag, :2] * x[lag:, :2], axis=0)
        assert np.all(np.abs(found - rho**lag) < 5 * np.sqrt(2 / count)), lag
    assert np.abs(np.mean(x[:, 0] * x[:, 1])) < 5 / np.sqrt(count)
    step = x[1:, :2] - rho * x[:-1, :2]  # the innovations, also across the ends of blocks
    assert step.var(axis=0) == pytest.approx(1 - rho**2, rel=0.05)
    for j in range(2):
        assert abs(np.corrcoef(step[1:, j], step[:-1, j])[0, 1]) < 5 / np.sqrt(len(x))
    assert x[:, 2].std() == pytest.approx(1, rel=0.02)  # the column of noise
    assert abs(np.corrcoef(x[1:, 2], x[:-1, 2])[0, 1]) < 5 / np.sqrt(len(x))


@settings(max_examples=20, deadline=None)
@given(
    rho=st.sampled_from([0.0, 0.3, 0.9]),
    start=st.integers(0, 500),
    cut=st.integers(1, 99),
)
def test_any_stretch_can_be_computed_by_itself(rho, start, cut):
    problem = ft.RegressionStream(num_clients=2, rho=rho)
    whole = problem.stretch(3, 1, start, 100)
    parts = [problem.stretch(3, 1, start, cut), problem.stretch(3, 1, start + cut, 100 - cut)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_population_moments_are_those_of_the_samples():
    problem = ft.RegressionStream(num_clients=2, rho=0.5, feature_spread=[1.0, 2.0], seed=3)
    e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=5, local_steps=1, batch_size=100_000)
    a, b, c = problem.moments
    for i in range(2):
        (x, y), *_ = problem.batches(e, 0, i, 0)
        scale = problem.spreads[i] ** 2
        assert np.abs(x.T @ x / len(y) - a[i]).max() < 0.03 * scale
        assert np.abs(x.T @ y / len(y) - b[i]).max() < 0.03 * scale * np.abs(b[i] / scale).max()
        assert np.mean(y * y) == pytest.approx(c[i], rel=0.03)
        snr = np.var(x @ problem.client_w[i]) / problem.noise[i] ** 2
        assert snr == pytest.approx(10, rel=0.05)


def test_quadratic_functions_against_the_samples_of_a_finite_problem():
    finite = ft.LinearRegression(num_clients=3, dim=2, samples=50, seed=1)
    stream = ft.RegressionStream(num_clients=3, dim=2)
    object.__setattr__(stream, "moments", finite.moments)
    w = np.random.default_rng(0).normal(size=(4, 6, 2))
    assert np.allclose(stream.mean_field(w), finite.mean_field(w))
    assert np.allclose(stream.losses(w), finite.losses(w))
    assert np.allclose(stream.curvature, finite.curvature)
    p = np.random.default_rng(1).uniform(0.1, 1, size=(6, 3))
    assert np.allclose(stream.equilibrium(p), finite.equilibrium(p))
    mine, theirs = stream.metrics(w, p, p[0]), finite.metrics(w, p, p[0])
    assert mine.keys() == theirs.keys()
    assert all(np.allclose(mine[name], theirs[name]) for name in mine)


def test_a_run_goes_to_the_equilibrium_of_the_population():
    problem = ft.RegressionStream(
        num_clients=2, dim=2, rho=0.9, feature_spread=1.0, sigma_w=1.0, init_spread=1.0
    )
    schedules = [ft.Power(1.0, 0.8, offset=10), ft.Power(0.25, 0.8, offset=10)]
    e = ft.Experiment(problem, schedules, rounds=150, local_steps=2, batch_size=20)
    run = ft.run(e, progress=False, engine="reference")
    assert run.metrics["error"][-1] < 0.1
    assert np.linalg.norm(run.w[-1] - problem.equilibrium([1, 1])) > 0.3


def test_a_client_that_moves():
    stream = ft.RegressionStream(
        num_clients=2, dim=2, feature_spread=1.0, sigma_w=1.0, init_spread=0.1
    )
    moving = ft.MovingRegression(stream, drift=0.01, change_round=41, change=(2.0, 2.0))
    w = moving.targets(0, 80)
    assert np.linalg.norm(w[10] - w[9], axis=-1) == pytest.approx(0.01)
    assert np.all(np.linalg.norm(w[40] - w[39], axis=-1) > 1.9)
    e = ft.Experiment(moving, ft.Constant(0.1), rounds=80, local_steps=5, batch_size=20)
    run = ft.run(e, progress=False, engine="reference")
    error = moving.error(run)
    assert error[39] < 0.3 and error[40] > 0.5 and error[79] < 0.3  # a constant step follows
    direct = np.linalg.norm(run.w[59] - moving.targets(59, 60)[0].mean(axis=0))
    assert error[59] == pytest.approx(direct)  # equal influence, equal features: the mean


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho": 1.0}, "rho of client 0 is 1"),
        ({"rho": -0.1}, "rho of client 0"),
        ({"rho": [0.5] * 3}, "rho"),
        ({"true_w": [1.0]}, "true_w has shape"),
        ({"num_clients": 0}, "num_clients"),
    ],
)
def test_bad_streams(settings, words):
    with pytest.raises(ft.FedtaperError, match=words):
        ft.RegressionStream(**settings)


def test_streams_keep_the_contract():
    from fedtaper.testing import check_problem

    stream = ft.RegressionStream(num_clients=3, rho=0.9)
    check_problem(stream)
    check_problem(ft.MovingRegression(stream, drift=0.1))


def test_bad_movements():
    stream = ft.RegressionStream(num_clients=2)
    with pytest.raises(ft.FedtaperError, match="change_round"):
        ft.MovingRegression(stream, change=1.0)
    with pytest.raises(ft.FedtaperError, match="drift"):
        ft.MovingRegression(stream, drift=-1.0)
