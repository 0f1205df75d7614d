"""The paper's settings, checked with programs of their own on the exposed data."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.paper.regression_cases import PAPER_STEP, case_2, case_3

pytestmark = pytest.mark.filterwarnings("ignore::fedtaper.core.errors.StabilityWarning")


def own_equilibrium(problem, p):
    """Least squares on all clients' rows, each weighted by sqrt(p / samples)."""
    scale = [np.sqrt(p[i] / len(problem.y[i])) for i in range(problem.num_clients)]
    x = np.concatenate([s * x for s, x in zip(scale, problem.x, strict=True)])
    y = np.concatenate([s * y for s, y in zip(scale, problem.y, strict=True)])
    return np.linalg.lstsq(x, y)[0]


@pytest.mark.parametrize(
    ("schedules", "near"), [([PAPER_STEP] * 10, 0.05), (case_2(), 0.15), (case_3(), 0.15)]
)
def test_cases_end_at_the_equilibrium_of_their_influences(schedules, near):
    problem = ft.LinearRegression()
    run = ft.run(ft.Experiment(problem, schedules, rounds=5000, local_steps=5))
    assert run.w.shape == (5000, 3)
    n = 25_000
    assert run.n[-1] == n
    a = np.array([s.c / n**s.delta for s in schedules])
    away = np.linalg.norm(run.w[-1] - own_equilibrium(problem, a / a.max()))
    assert away < near
    assert run.metrics["error"][-1] == pytest.approx(away, abs=2e-3)
    limit = own_equilibrium(problem, ft.influence(schedules))
    assert run.metrics["error_limit"][-1] == pytest.approx(np.linalg.norm(run.w[-1] - limit))


def test_ode_time_is_the_sum_of_the_reference_steps():
    e = ft.Experiment(ft.LinearRegression(), case_3(), rounds=40, local_steps=5)
    run = ft.run(e, thin=7)
    assert list(run.round) == [7, 14, 21, 28, 35, 40]
    steps = 0.1 / np.arange(1, 201) ** 0.76
    np.testing.assert_allclose(run.t, [steps[: 5 * k].sum() for k in run.round])


def test_change_is_the_step_of_the_shared_model():
    e = ft.Experiment(ft.LinearRegression(), PAPER_STEP, rounds=30, local_steps=5)
    run = ft.run(e)
    path = np.vstack([run.w0, run.w])
    np.testing.assert_allclose(run.metrics["change"], np.linalg.norm(np.diff(path, axis=0), axis=1))
    thinned = ft.run(e, thin=10)
    np.testing.assert_array_equal(thinned.metrics["change"], run.metrics["change"][9::10])


def test_constant_tenth_diverges_and_is_reported():
    e = ft.Experiment(ft.LinearRegression(), ft.Constant(0.1), rounds=5000, local_steps=5)
    run = ft.run(e)
    assert len(run.diverged) == 1
    end = run.diverged[0]
    assert 250 < end.round < 400 and len(run.round) == end.round - 1
    assert 0 <= end.client < 10 and "above 2" in end.reason
    assert np.all(np.isfinite(run.w))
    slow = ft.run(e, engine="reference")
    assert (slow.diverged[0].round, slow.diverged[0].client) == (end.round, end.client)


def test_one_diverging_seed_leaves_the_others():
    """Round 332 comes after the end of seeds 0 and 3 and before that of seeds 1 and 2."""
    e = ft.Experiment(ft.LinearRegression(), ft.Constant(0.1), rounds=332, local_steps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = ft.run(e, seeds=range(4))
        alone = ft.run(replace(e, seed=1))
    assert run.w.shape[:2] == (4, 332)
    assert {d.seed for d in run.diverged} == {0, 3}
    for d in run.diverged:
        assert np.all(np.isfinite(run.w[d.seed, : d.round - 1]))
        assert np.all(np.isnan(run.w[d.seed, d.round - 1 :]))
    assert np.all(np.isfinite(run.w[[1, 2]]))
    assert np.array_equal(run.w[1], alone.w)
