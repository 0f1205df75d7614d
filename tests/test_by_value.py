"""Values worked out by hand: what a changed sign, limit or constant would move.

Among them are mutants that no other test noticed (docs/development/mutants.md).
"""

import dataclasses
import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.rules import server

judge = import_module("fedtaper.auditing.judge")  # the package has a function of that name

# ------------------------------------------------------------------ rules


def test_fednova_by_samples_with_unequal_steps():
    """Shares 0.1, 0.3, 0.6 and 1, 2, 5 steps: the mean number of steps is 3.7."""
    rule = ft.Normalised(by="samples", over="steps")
    found = rule.weights(np.array([10.0, 30, 60]), np.array([1.0, 2, 5]), np.ones((2, 3)))
    np.testing.assert_allclose(found, [[0.37, 0.555, 0.444]] * 2, rtol=1e-14)
    sums = np.array([[0.2, 0.5, 1.0]])  # the mean sum is 0.77
    found = replace(rule, over="step_sums").weights(np.array([10.0, 30, 60]), np.ones(3), sums)
    np.testing.assert_allclose(found, [[0.385, 0.462, 0.462]], rtol=1e-14)


def test_moments_of_the_adaptive_servers():
    assert server.adagrad(2.0, 3.0, 0.9) == pytest.approx(11.0)
    assert server.adam(2.0, 3.0, 0.9) == pytest.approx(0.9 * 2 + 0.1 * 9)
    assert server.yogi(2.0, 3.0, 0.9) == pytest.approx(2 + 0.1 * 9)  # below the square: up
    assert server.yogi(20.0, 3.0, 0.9) == pytest.approx(20 - 0.1 * 9)
    assert server.yogi(9.0, 3.0, 0.9) == 9.0
    assert server.momentum(2.0, 3.0, 0.75) == pytest.approx(2.25)
    assert server.scaled_step(1.0, 2.0, 9.0, 0.5, 1.0) == pytest.approx(1.25)


def test_local_rules_step_by_step():
    w, anchor, gradient = np.array([2.0]), np.array([1.0]), np.array([3.0])
    assert ft.Proximal(0.5).step(w, gradient, anchor, 0.1, ())[0] == pytest.approx(2 - 0.1 * 3.5)
    assert ft.Sgd().step(w, gradient, anchor, 0.1, ())[0] == pytest.approx(1.7)
    rule = ft.Momentum(0.5)
    first, memory = rule.step(w, gradient, anchor, 0.1, rule.init(w))
    again, _ = rule.step(first, gradient, anchor, 0.1, memory)
    assert first == pytest.approx(1.7) and again == pytest.approx(1.7 - 0.1 * 4.5)
    assert rule.gain == 2.0 and ft.Proximal(0.5).added_curvature == 0.5


# ------------------------------------------------------------------ schedules, influence


def test_step_sizes_by_hand():
    assert ft.Power(0.3, 0.8, offset=2)(6) == pytest.approx(0.3 / 8**0.8, rel=1e-15)
    assert ft.Cosine(0.1, over=101, end=0.02)(51) == pytest.approx(0.06, rel=1e-12)
    assert ft.Cosine(0.1, over=100, end=0.02)(1000) == 0.02
    assert ft.WarmUp(ft.Constant(0.4), over=8)([2, 8, 80]).tolist() == [0.1, 0.4, 0.4]
    two = ft.Piecewise(((1, 0.1), (10, ft.Power(1.0, 1.0))))
    assert two([9, 10, 20]).tolist() == [0.1, 0.1, 0.05]
    assert (two.c, two.delta) == (1.0, 1.0)


def test_schedules_at_the_limits_of_what_is_accepted():
    for make in (ft.Constant, lambda x: ft.Power(x, 0.8), lambda x: ft.Power(0.1, 0.8, offset=x),
                 lambda x: ft.Cosine(x, over=9, end=0.01), lambda x: ft.Cosine(0.1, 9, end=x),
                 lambda x: ft.Cosine(0.1, over=1 + x), lambda x: ft.Piecewise(((1, x),)),
                 lambda x: ft.WarmUp(ft.Constant(0.1), over=x)):  # fmt: skip
        made = make(0.05)
        for refused in (-0.05, math.nan):
            with pytest.raises(ft.FedtaperError):
                make(refused)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.other = 1
    with pytest.raises(ft.FedtaperError, match="the clock starts at 1"):
        ft.Cosine(0.1, over=1)
    short = ft.Cosine(0.1, over=1.5, end=0.02)
    assert short([1, 1.25, 1.5, 2]).tolist() == pytest.approx([0.1, 0.06, 0.02, 0.02])
    assert ft.Power(0.1, 0.8, offset=0).offset == ft.Power(0.1, 0.8).offset == 0
    for delta in (0.7501, 1.0):
        ft.Power(0.1, delta)  # no warning
    for delta in (0.05, 0.75, 1.001):
        with pytest.warns(ft.AssumptionWarning):
            ft.Power(0.1, delta)
    for pieces in ((), (0.1,), ((1, 0.1, 2),), ((1, True),), ((1, 0.1), (5, "0.1")), ((5, 0.1),),
                   ((1, 0.1), (9, 0.1), (5, 0.1))):  # fmt: skip
        with pytest.raises(ft.FedtaperError):
            ft.Piecewise(pieces)


def test_where_schedules_settle_and_on_what():
    fixed, slow, wave = ft.Constant(0.3), ft.Power(0.2, 0.8, offset=3), ft.Cosine(0.4, over=50)
    assert (fixed.c, fixed.delta, fixed.offset, fixed.settles) == (0.3, 0, 0, 1)
    assert slow.settles == 1 and wave.settles == 50 and wave.limit == ft.Constant(0.004)
    assert ft.WarmUp(wave, over=20).settles == 50 and ft.WarmUp(wave, over=70).settles == 70
    parts = ft.Piecewise(((1, slow), (10, 0.1), (20, wave)))
    assert parts.settles == 50 and parts.limit == wave.limit
    parts = ft.Piecewise(((1, slow), (10, wave), (80, slow)))
    assert parts.settles == 80 and (parts.c, parts.delta, parts.offset) == (0.2, 0.8, 3)
    assert ft.Cosine(0.4, over=2, end=0.1)([1, 2, 3]).tolist() == [0.4, pytest.approx(0.1), 0.1]
    assert isinstance(slow(4), float) and slow([4]).shape == (1,) and slow([[4]]).shape == (1, 1)


def test_messages_name_the_clock_value_that_is_wrong():
    for clock, bad in (([1, 0.5, 3], "0.5"), ([1.0, 2.0, -7.0], "-7"), (0.9, "0.9")):
        with pytest.raises(ft.FedtaperError, match=f"; {bad} is not a clock value"):
            ft.Constant(0.1)(clock)
    for value in (0.0, -0.1, math.inf, math.nan):
        shaped = ft.Shaped(lambda n, v=value: np.where(n == 5, v, 0.1), ft.Constant(0.1))
        with pytest.raises(ft.FedtaperError, match=f"shape gives {value} at n = 5;"):
            shaped([3, 4, 5, 6])


def test_a_shape_is_compared_with_its_limit_once_far_out():
    """At twice ``after``, or at 1e12: within a tenth."""
    for after, far in ((50, 100), (math.inf, 1e12)):
        for factor in (0.91, 1.0, 1.09):
            ft.Shaped(lambda n, k=factor, f=far: np.where(n == f, k, 9.0), ft.Constant(1), after)
        for factor in (0.89, 0.9, 1.1, 1.7):
            with pytest.warns(ft.FedtaperWarning, match="times its declared limit"):
                ft.Shaped(lambda n, k=factor: k + 0.0 * n, ft.Constant(1), after)
    assert ft.Shaped(np.ones_like, ft.Constant(1), after=1).settles == 1
    for after in (0.999, -math.inf, math.nan):
        with pytest.raises(ft.FedtaperError, match="after must be"):
            ft.Shaped(np.ones_like, ft.Constant(1), after=after)


def test_effective_influence_by_hand():
    pair = [ft.Power(0.1, 0.8), ft.Power(0.2, 1.0)]
    found = ft.effective_influence(
        pair, 32, local_steps=[2, 6], server_weight=[0.25, 0.75], participation=[1.0, 0.5]
    )
    ratio = (0.75 * 0.5 * 6 * 0.2 / 32) / (0.25 * 2 * 0.1 / 32**0.8)
    np.testing.assert_allclose(found.effective, [1, ratio], rtol=1e-13)
    np.testing.assert_allclose(found.share, [1 / (1 + ratio), ratio / (1 + ratio)], rtol=1e-13)
    np.testing.assert_allclose(ft.influence(pair, n=32), [1, 2 / 32**0.2], rtol=1e-13)
    constants = ft.influence([ft.Constant(0.1), ft.Constant(0.3)])
    assert constants[0] / constants[1] == pytest.approx(1 / 3)


# ------------------------------------------------------------------ plan


def test_the_largest_scale_is_that_of_a_client_that_stays():
    """A client that is to vanish may have a larger one: it makes fewer updates."""
    problem = ft.LinearRegression(num_clients=3, samples=100)
    with pytest.warns(ft.AssumptionWarning):
        found = ft.plan([1, 1, 0], rounds=50, local_steps=[4, 4, 1], problem=problem, c=0.1)
    c = [s.c for s in found.schedules]
    assert c[:2] == [pytest.approx(0.1)] * 2 and c[2] > 0.3
    assert [s.delta for s in found.schedules] == [0.76, 0.76, 1.0]


# ------------------------------------------------------------------ ODE, forecast


def one_dimensional(mu, **how):
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(40, 1)) * s for s in (1.0, 2.0)]
    y = [rows[:, 0] * k + rng.normal(size=40) for rows, k in zip(x, (1.0, -2.0), strict=True)]
    problem = ft.LinearRegression.from_arrays(x, y)
    schedules = [ft.Power(0.05, 0.8), ft.Power(0.05, 1.0)]
    settings = {"rounds": 20, "local_steps": 3, "batch_size": 40, "local": ft.Proximal(mu)} | how
    return ft.Experiment(problem, schedules, **settings)


@pytest.mark.parametrize("mu", [0.0, 4.0])
def test_fedprox_adds_to_the_curvature_that_a_client_feels(mu):
    """Sum of weight_i f_i(w) / (1 + drift_i (A_i + mu)), times dt/dx with x = log(1 + n)."""
    e = one_dimensional(mu)
    ode = replace(ft.limit_ode(e, "finite"), drift=True)
    pull, slope, _ = ode._right_side(0.0, ode.clock.t(60.0))
    n, w = 30.0, np.array([0.7])
    curvature = np.array([(rows**2).mean() for rows in e.problem.x])
    moment = [(rows[:, 0] * y).mean() for rows, y in zip(e.problem.x, e.problem.y, strict=True)]
    fields = np.array(moment) - curvature * w
    felt = e.field_weights(n) / (1 + e.local_drift(n) * (curvature + mu))
    pace = ode.clock.slope(np.array([n]))[0] * (1 + n)
    x = float(np.log1p(n))
    np.testing.assert_allclose(pull(x, w), [pace * (felt * fields).sum()], rtol=1e-5)
    np.testing.assert_allclose(slope(x, w), [[-pace * (felt * curvature).sum()]], rtol=1e-5)


def test_when_a_client_fades_by_hand():
    """One update per round: influence is n^-0.2, which is 0.3 at n = 0.3^-5."""
    e = one_dimensional(0.0, local_steps=1)
    found = ft.forecast(e, n=1000.0)
    assert found.fades(0.3)[1] == pytest.approx(0.3**-5, rel=5e-3)
    assert found.fades(0.3)[0] == math.inf and found.fades(3.0).tolist() == [1.0, 1.0]
    assert found.influence[1] == pytest.approx(1000**-0.2, rel=1e-3)
    assert found.distance == pytest.approx(abs(found.w[0] - found.equilibrium[0]))


# ------------------------------------------------------------------ the audit's judge


def robbins(error):
    """The boundary of Robbins' normal mixture, in standard errors, for a chance of 0.005."""
    v = (0.05 / error) ** 2
    return math.sqrt((1 + 1 / v) * (2 * math.log(100) + math.log(1 + v)))


@pytest.mark.parametrize("error", [0.002, 0.05, 0.3])
def test_thresholds_of_the_audit(error):
    assert judge.threshold(error, "norms") == pytest.approx(robbins(error), rel=1e-12)
    assert judge.threshold(error, "updates") == pytest.approx(robbins(error), rel=1e-12)
    assert judge.threshold(error, "held-out", 3.2) == 3.2
    assert judge.threshold(error, "peers", 5.0) == pytest.approx(max(5.0, robbins(error)))
    assert judge.threshold(error, "updates", 99.0) == pytest.approx(robbins(error))


@pytest.mark.parametrize(
    "witness, score, verdict",
    [
        ("norms", "accuse + 0.01", "fading"),
        ("norms", "accuse - 0.01", "cannot tell yet"),
        ("norms", "-accuse - 2.99", "cannot tell yet"),
        ("norms", "-accuse - 3.01", "rising"),
        ("updates", "-accuse - 0.99", "cannot tell yet"),
        ("updates", "-accuse - 1.01", "rising"),
        ("updates", "-accuse + 0.01", "as declared"),
        ("held-out", "-accuse - 3.01", "cannot tell yet"),
        ("held-out", "accuse + 0.01", "fading"),
        ("none", "accuse + 9", "cannot tell"),
        ("misfit", "accuse + 9", "cannot tell"),
    ],
)
def test_verdicts_at_their_limits(witness, score, verdict):
    error = 0.05
    accuse = 3.2 if witness == "held-out" else robbins(error)
    excess = error * eval(score, {"accuse": accuse})
    assert judge._taper_verdict(excess, error, witness, accuse) == verdict


def test_as_declared_needs_an_excess_ruled_out():
    error = 0.05  # 1.96 standard errors above must stay below 0.14
    assert judge._taper_verdict(0.14 - 1.96 * error - 1e-6, error, "norms", 0.0) == "as declared"
    assert (
        judge._taper_verdict(0.14 - 1.96 * error + 1e-6, error, "norms", 0.0) == "cannot tell yet"
    )
    assert judge._taper_verdict(0.0, math.inf, "norms", 0.0) == "cannot tell yet"
    t = 2.570581835636314  # Student's 0.975 quantile with 5 degrees of freedom
    assert judge._challenge_verdict(0.14 - t * error - 1e-6, error, 5.0, 0) == "as declared"
    assert judge._challenge_verdict(0.14 - t * error + 1e-6, error, 5.0, 0) == "cannot tell yet"
    assert judge._challenge_verdict(-9.0, error, 5.0, 7) == "fading"
