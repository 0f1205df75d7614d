"""The limit ODE against the matrix exponential and Euler's rule; forecasts; refusals."""

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import fedtaper as ft
from fedtaper.core import draws
from fedtaper.problems.recorded import Recorded

SLOW, FAST = ft.Power(0.1, 0.76), ft.Power(0.1, 1.0)
PROBLEM = ft.LinearRegression()
SPREAD = ft.LinearRegression(feature_spread=(5, 5, 10, 10, 15, 15, 20, 20, 25, 25))
CASE_3 = (SLOW, *[FAST] * 9)


def experiment(schedules=SLOW, problem=PROBLEM, **settings):
    return ft.Experiment(problem, schedules, **({"rounds": 5000, "local_steps": 5} | settings))


@pytest.mark.parametrize("problem", [PROBLEM, SPREAD], ids=["curvature 25", "25 to 625"])
def test_agrees_with_the_matrix_exponential(problem):
    e = experiment(problem=problem)
    path = ft.limit_ode(e).solve()
    a, b = problem.moments[0].mean(axis=0), problem.moments[1].mean(axis=0)
    rest, first = np.linalg.solve(a, b), problem.initial(0)
    times = np.concatenate([np.geomspace(1e-4, 4.3, 200), [0.0]])
    exact = np.stack([rest + expm(-a * t) @ (first - rest) for t in times])
    assert np.abs(path(times) - exact).max() < 1e-8
    assert np.abs(path.at(25_000) - rest).max() < 1e-8


def test_p_n_in_place_of_p_against_the_plain_right_side():
    ode = ft.limit_ode(experiment(CASE_3), "finite")
    plain = solve_ivp(ode, (0, 1.5), PROBLEM.initial(0), "Radau", rtol=1e-8, atol=1e-10)
    assert np.abs(ode.solve(end=1.5)(plain.t) - plain.y.T).max() < 1e-6


def test_weights_are_those_of_the_round_they_lie_in():
    e = experiment(
        CASE_3, local_steps=(3, *[5] * 9), server=ft.Average(by="samples"), participation=0.5
    )
    rounds = np.array([0, 1, 7, 400])
    found = e.field_weights((rounds + 0.5) * e.period)
    p_n = np.concatenate([e.effective_influence(k, k + 1) for k in rounds])
    np.testing.assert_allclose(found / found[:, :1], p_n, rtol=1e-12)
    np.testing.assert_allclose(found[:, 0], 0.1 * 0.5, rtol=1e-12)  # share of samples x rate
    np.testing.assert_allclose(e.field_weights(1e18), e.limit_field_weights, atol=1e-4)


def test_time_scale_is_that_of_the_paper_for_the_plain_mean():
    e = experiment(CASE_3)
    np.testing.assert_allclose(e.limit_field_weights, np.array([1.0] + [0.0] * 9) / 10)
    w = np.array([1.0, -2.0, 0.5])
    hand = PROBLEM.mean_field(w)[0] / 10
    np.testing.assert_allclose(ft.limit_ode(e)(0.0, w), hand, rtol=1e-12)


def test_is_what_full_batch_rounds_come_to_as_their_steps_shrink():
    """Rounds without noise are Euler's rule for the ODE: first order, and no error beyond."""
    schedules = tuple(ft.Power(s.c, s.delta, offset=100) for s in CASE_3)
    e = experiment(schedules, rounds=400)
    exact = ft.limit_ode(e, "finite").solve().w

    def euler(parts):
        w = PROBLEM.initial(0)
        for sums in np.repeat(e.step_sums(0, 400), parts, axis=0):
            w = w + (sums / parts / 10) @ PROBLEM.mean_field(w)
        return w

    one, two, four = (euler(parts) for parts in (1, 2, 4))
    assert np.abs(one - exact).max() == pytest.approx(2 * np.abs(two - exact).max(), rel=0.1)
    assert np.abs((8 * four - 6 * two + one) / 3 - exact).max() < 1e-6  # Richardson


def test_far_forecasts_are_quick_and_near_the_limit():
    e = experiment(CASE_3)
    ft.forecast(e, n=10)
    began = time.perf_counter()
    far = ft.forecast(e, n=1e16)
    assert time.perf_counter() - began < 1
    own = PROBLEM.equilibrium([1.0] + [0.0] * 9)
    assert np.linalg.norm(far.w - own) < 0.02
    began = time.perf_counter()
    near = ft.forecast(e, n=1e12)
    assert time.perf_counter() - began < 1
    assert near.distance < 0.01
    assert np.linalg.norm(near.w - PROBLEM.equilibrium(near.influence)) == pytest.approx(
        near.distance
    )


@pytest.mark.parametrize("rounds", [2000, 20_000])
def test_forecast_is_the_expected_model(rounds):
    """In expectation a round of regression is an affine map, known in closed form."""
    e = experiment(CASE_3, rounds=rounds)
    a, b, _ = PROBLEM.moments
    rest, identity = np.linalg.solve(a, b[..., None])[..., 0], np.eye(3)
    w = PROBLEM.initial(0)
    for steps in e.step_sizes(0, rounds):
        kept = identity - steps[0, :, None, None] * a
        for step in steps[1:]:
            kept = (identity - step[:, None, None] * a) @ kept
        w = (rest + (kept @ (w - rest)[..., None])[..., 0]).mean(axis=0)
    far = ft.forecast(e, n=5 * rounds)
    plain = ft.limit_ode(e, "finite").solve().w
    assert np.linalg.norm(far.w - w) < 2e-4 * (2000 / rounds)
    assert np.linalg.norm(far.w - w) < np.linalg.norm(plain - w) / 10


def test_forecast_agrees_with_simulation():
    """The mean of 20 seeds after 10,000 rounds (n = 5e4); claim T1 goes to n = 1e6."""
    e = experiment(CASE_3, rounds=10_000)
    with pytest.warns(ft.StabilityWarning):
        last = ft.run(e, seeds=range(20), thin=10_000).w[:, -1]
    error = last.std(axis=0, ddof=1) / np.sqrt(20)
    assert np.all(np.abs(ft.forecast(e, n=5e4).w - last.mean(axis=0)) < 3 * error)


def test_forecast_from_where_a_run_stands():
    e = experiment(CASE_3)
    w = np.array([3.0, 3.0, 3.0])
    here = ft.forecast(e, n=25_000, w=w, start=25_000)
    np.testing.assert_allclose(here.w, w)
    later = ft.forecast(e, n=1e6, w=w, start=25_000)
    np.testing.assert_allclose(later.w, ft.forecast(e, n=1e6).w, atol=1e-6)


def test_when_influences_fade():
    e = experiment(CASE_3)
    by_hand = 0.01 ** (-1 / 0.24)
    found = ft.forecast(e, n=10).fades(0.01)
    assert np.isinf(found[0])
    np.testing.assert_allclose(found[1:], by_hand, rtol=1e-3)
    late = experiment((SLOW, *[ft.Power(0.001, 1.0)] * 9)).field_weights(1.0)
    assert late[1] / late[0] < 0.02
    assert ft.forecast(experiment((SLOW, *[ft.Power(0.001, 1.0)] * 9)), n=10).fades(0.02)[1] == 1


@dataclass(frozen=True)
class Logistic:
    """Two-class logistic regression with a little weight decay: a user's convex loss."""

    x: tuple
    y: tuple
    decay: float = 0.01
    kind: ClassVar = "gradient"
    default_clock: ClassVar = "update"

    @property
    def num_clients(self):
        return len(self.x)

    @property
    def dim(self):
        return self.x[0].shape[1]

    @property
    def sizes(self):
        return np.array([len(y) for y in self.y])

    def initial(self, seed):
        return np.zeros(self.dim)

    def batches(self, e, seed, client, round_):
        for step in range(e.steps[client]):
            yield draws.batch(seed, client, round_, step, e.batch_size, len(self.y[client]))

    def every_sample(self, client):
        return slice(None)

    def gradient(self, client, w, batch):
        x, y = self.x[client][batch], self.y[client][batch]
        return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y) + self.decay * w

    def metrics(self, w, p_n, p):
        return {}


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = np.column_stack([x / 16, np.ones(len(x))])
    parts = np.array_split(np.random.default_rng(0).permutation(len(x)), 3)
    return Logistic(tuple(x[p] for p in parts), tuple((y[p] >= 5) * 1.0 for p in parts))


def test_any_objective_with_full_gradients(digits):
    e = experiment(ft.Power(0.5, 0.8), digits, rounds=300)
    ode = ft.limit_ode(e)
    w = np.linspace(-1, 1, digits.dim)
    hand = -np.mean([digits.gradient(i, w, slice(None)) for i in range(3)], axis=0)
    np.testing.assert_allclose(ode(0.0, w), hand, rtol=1e-12)
    rest = ode.solve(end=3000.0).w
    assert np.linalg.norm(ode(0.0, rest)) < 1e-6
    far = ft.forecast(replace(e, schedules=[SLOW, SLOW, FAST]), n=1e6)
    assert far.equilibrium is None and np.isnan(far.distance) and np.all(np.isfinite(far.w))


def test_any_objective_is_tracked(digits):
    e = experiment(ft.Power(2.0, 0.8), digits, rounds=200, batch_size=20)
    found = ft.tracking_error(ft.run(e, seeds=range(3)), window=2.0, starts=[10, 20, 50, 80])
    middle = found.band("finite")[1]
    assert np.all(middle > 0) and middle[-1] < middle[0]


def test_a_user_s_torch_loss(digits):
    torch = pytest.importorskip("torch", reason="needs fedtaper[torch]")
    data = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(digits.x, digits.y, strict=True)]

    def loss(model, x, y):
        found = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        return found + 0.5 * digits.decay * sum((p**2).sum() for p in model.parameters())

    problem = ft.Custom(loss, lambda: torch.nn.Linear(65, 1, bias=False), data)
    e = experiment(ft.Power(0.5, 0.8), problem, rounds=10)
    w = np.linspace(-1, 1, 65)
    np.testing.assert_allclose(
        ft.limit_ode(e)(0.0, w), ft.limit_ode(experiment(SLOW, digits))(0.0, w), rtol=1e-6
    )


def test_wrong_use_says_what_to_do():
    e = experiment(CASE_3)
    for n in (0.5, 0, -1, np.nan, np.inf):
        with pytest.raises(ft.FedtaperError, match="a number from 1 to"):
            ft.forecast(e, n=n)
    with pytest.raises(ft.FedtaperError, match="already past"):
        ft.forecast(e, n=10, start=20)
    with pytest.raises(ft.FedtaperError, match=r"not the gradients that the ODE needs"):
        ft.limit_ode(experiment(SLOW, Recorded((100, 100, 100), dim=2)))
    with pytest.raises(ft.FedtaperError, match="use Average or Normalised"):
        ft.limit_ode(experiment(server=ft.Adam()))
    with pytest.raises(ft.FedtaperError, match="limit, finite"):
        ft.limit_ode(e, "p")
    with pytest.raises(ft.FedtaperError, match="larger end="):
        ft.limit_ode(e).solve(end=1.0)(2.0)
    with pytest.raises(ft.FedtaperError, match="later than start"):
        ft.limit_ode(e).solve(start=2.0, end=1.0)
    with pytest.raises(ft.FedtaperError, match="finite numbers"):
        ft.limit_ode(e).solve([np.nan, 0, 0])
    with pytest.raises(ft.FedtaperError, match="above 0"):
        ft.forecast(e, n=10).fades(0)
