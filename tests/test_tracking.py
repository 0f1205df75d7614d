"""Tracking error, against a plain computation, and what it must show."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.theory.tracking import power_law

SLOW = ft.Power(0.1, 0.76)
CASES = {
    1: (SLOW,) * 10,
    2: (SLOW, ft.Power(0.05, 0.76), *[ft.Power(1.0, 1.0)] * 8),
    3: (SLOW, *[ft.Power(0.1, 1.0)] * 9),
}


def simulate(schedules, seeds, **settings):
    settings = {"rounds": 5000, "local_steps": 5} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        e = ft.Experiment(ft.LinearRegression(), schedules, **settings)
        return ft.run(e, seeds=range(seeds))


@pytest.fixture(scope="module")
def small():
    return simulate(CASES[3], 3, rounds=600)


@pytest.mark.parametrize("kind", ["limit", "finite"])
def test_agrees_with_the_solver_on_a_fine_grid(small, kind):
    starts, window = [10, 55, 200], 0.11
    found = ft.tracking_error(small, window, starts=starts)
    ode = ft.limit_ode(small.experiment, kind)
    knots = np.concatenate([[0], small.t])
    for s in range(3):
        path = np.concatenate([small.w0[s][None], small.w[s]])
        for j, k in enumerate(starts):
            times = np.linspace(knots[k], knots[k] + window, 2000)
            solution = ode.solve(path[k], start=knots[k], end=times[-1])(times)
            line = np.stack([np.interp(times, knots, path[:, d]) for d in range(3)], axis=-1)
            plain = np.linalg.norm(line - solution, axis=1).max()
            assert getattr(found, kind)[s, j] == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize("case", [1, 2, 3])
def test_falls_fourfold_along_a_run_of_the_paper(case):
    """40 seeds here; the reproduction of T1 has as many as one likes."""
    found = ft.tracking_error(
        simulate(CASES[case], 40),
        0.05,
        starts=[*range(10, 51, 5), 150, 500, 1500, *range(4500, 4780, 40)],
    )
    assert found.fall((10, 50), (4500, 5000)) >= 4
    fit = found.fit(after=50)
    assert fit.low < fit.exponent < fit.high < -0.2
    assert found.theory == -0.38


def test_a_constant_step_does_not_come_closer():
    found = ft.tracking_error(simulate(ft.Constant(0.01), 10, rounds=1000), 0.5)
    assert 0.7 < found.fall((10, 100), (700, 1000)) < 1.4


def test_power_law_interval_covers_a_known_exponent():
    rng = np.random.default_rng(0)
    k = np.geomspace(10, 5000, 30)
    hits = 0
    for _ in range(200):
        fit = power_law(k, k**-0.4 * np.exp(0.3 * rng.normal(size=(20, 30))))
        hits += fit.low < -0.4 < fit.high
    assert hits > 175
    one = power_law(k, k[None] ** -0.4 * np.exp(0.3 * rng.normal(size=(1, 30))))
    assert one.low < -0.4 < one.high


def test_default_windows_and_bands(small):
    found = ft.tracking_error(small)
    assert found.limit.shape == found.finite.shape == (3, len(found.round))
    assert np.all(np.diff(found.band(), axis=0) >= 0)
    np.testing.assert_allclose(found.step, SLOW(found.round * 5.0))


def test_one_seed_and_diverged_seeds():
    one = ft.run(
        ft.Experiment(ft.LinearRegression(), ft.Power(0.1, 0.76, 20), rounds=100, local_steps=5)
    )
    assert ft.tracking_error(one).finite.shape[0] == 1
    with pytest.raises(ft.FedtaperError, match="no finite round"):
        ft.tracking_error(replace(one, w=one.w[:0], round=one.round[:0], t=one.t[:0]))
    many = simulate(ft.Constant(0.1), 2, rounds=2000)
    assert many.diverged
    assert np.all(np.isinf(ft.tracking_error(many, 0.5, starts=[1500]).finite))


def test_wrong_use_says_what_to_do(small):
    with pytest.raises(ft.FedtaperError, match=r"longer than the run.*shorten it or run more"):
        ft.tracking_error(small, window=100)
    with pytest.raises(ft.FedtaperError, match="above 0"):
        ft.tracking_error(small, window=-1)
    with pytest.raises(ft.FedtaperError, match="can start after rounds 0 to"):
        ft.tracking_error(small, window=0.1, starts=[599])
    with pytest.raises(ft.FedtaperError, match="thin=1"):
        ft.tracking_error(
            ft.run(replace(small.experiment, schedules=ft.Power(0.1, 0.76, 20)), thin=3)
        )
    with pytest.raises(ft.FedtaperError, match="no trajectory"):
        ft.tracking_error(replace(small, w=None))
    with pytest.raises(ft.FedtaperError, match="no window starts"):
        ft.tracking_error(small).fall((1, 2), (3, 4))
    with pytest.raises(ft.FedtaperError, match="at least 3 windows"):
        ft.tracking_error(small, 0.1, starts=[10, 20]).fit()
