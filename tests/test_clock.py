"""The ODE's clock against direct sums, high-precision values, and its own inverse."""

from dataclasses import FrozenInstanceError
from math import factorial, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import zeta

import fedtaper as ft
from fedtaper.theory import clock as clocks
from fedtaper.theory.clock import OdeClock, power_sum, power_sum_slope

PROBLEM = ft.LinearRegression(num_clients=3, samples=(100, 200, 300))
COUNTS = [
    {"local_steps": 5},
    {"local_steps": 1},
    {"local_steps": (2, 5, 3)},
    {"local_steps": 4, "clock": "round"},
    {"local_epochs": 2, "clock": "epoch"},
    {"local_epochs": 2, "clock": "update"},
]
SCHEDULES = [ft.Power(0.1, 0.76), ft.Power(0.1, 1.0, offset=3.5), ft.Power(0.3, 0.999999)]
SCHEDULES += [ft.Constant(0.05)]


def clock_of(schedule, **settings):
    settings = settings or {"local_steps": 5}
    return OdeClock.of(ft.Experiment(PROBLEM, schedule, rounds=10, **settings))


@pytest.mark.parametrize("settings", COUNTS, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_equals_the_sum_of_step_sizes_at_every_aggregation(settings, schedule):
    e = ft.Experiment(PROBLEM, schedule, rounds=10, **settings)
    summed = np.cumsum(e.step_sums(0, 3000)[:, e.reference])
    found = OdeClock.of(e).t(np.arange(1, 3001) * e.period)
    np.testing.assert_allclose(found, summed, rtol=1e-12)


def test_equals_the_sum_between_aggregations_too():
    sums = np.cumsum(0.1 / np.arange(1, 41) ** 0.76)
    np.testing.assert_allclose(clock_of(ft.Power(0.1, 0.76)).t(np.arange(1, 41)), sums, rtol=1e-13)


@pytest.mark.parametrize(
    "delta, offset, n, exact",
    [  # Hurwitz zeta(delta, 1 + offset) - zeta(delta, n + 1 + offset), with 40 digits (mpmath)
        (0.76, 0, 1e18, 87050.39825142319347877692),
        (0.76, 0, 1e12, 3157.132695126859996832247),
        (0.999999, 0, 1e15, 35.11658845740089665600385),
        (0.9, 7, 1e16, 385.8741136375393459746516),
        (1.0, 0, 1e18, 42.02374733879435517343036),  # the harmonic number
    ],
)
def test_far_values(delta, offset, n, exact):
    found = clock_of(ft.Power(1.0, delta, offset=offset)).t(n)
    assert found == pytest.approx(exact, rel=1e-13)


def test_outside_a2():
    with pytest.warns(ft.AssumptionWarning):
        slow = ft.Power(1.0, 0.4)
    assert clock_of(slow).t(1e18) == pytest.approx(105159557412.2307438200742, rel=1e-13)


@given(
    st.floats(0.76, 1.0),
    st.floats(0, 50),
    st.floats(0, 18),
    st.sampled_from(COUNTS),
)
def test_inverse(delta, offset, power, settings):
    clock = clock_of(ft.Power(0.1, delta, offset=offset), **settings)
    n = 10.0**power - 1
    assert clock.n(clock.t(n)) == pytest.approx(n, rel=1e-11, abs=1e-11)


@given(st.floats(0.0, 2.0), st.floats(0.05, 1e6))
def test_slope_is_the_derivative(delta, y):
    step = 1e-5 * y
    numeric = (power_sum(y + step, delta) - power_sum(y - step, delta)) / (2 * step)
    assert power_sum_slope(y, delta) == pytest.approx(numeric, rel=1e-4)


@given(st.floats(0.0, 2.0), st.floats(0.05, 1e3))
def test_difference_is_the_term(delta, y):
    assert power_sum(y + 1, delta) - power_sum(y, delta) == pytest.approx(y**-delta, rel=1e-9)


@pytest.mark.parametrize("delta", [0.3, 0.76, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("y", [0.05, 0.3, 1.0, 7.5, 400.0])
def test_sums_and_slopes_are_those_of_hurwitz_zeta(delta, y):
    """S is a constant less zeta(delta, y), whose derivative is delta zeta(delta + 1, y)."""
    assert power_sum_slope(y, delta) == pytest.approx(delta * zeta(delta + 1, y), rel=1e-14)
    if delta > 1:
        exact = zeta(delta, y) - zeta(delta, y + 3.25)
        assert power_sum(y + 3.25, delta) - power_sum(y, delta) == pytest.approx(exact, rel=1e-12)


def test_the_series_has_bernoulli_s_numbers():
    """The last two are below a rounding error in every sum, so they are compared by themselves."""
    exact = [-2 * (-1) ** j * factorial(2 * j) * zeta(2 * j) / (2 * pi) ** (2 * j)
             for j in range(1, 7)]  # fmt: skip
    np.testing.assert_allclose(clocks.BERNOULLI, exact, rtol=1e-14)


def test_updates_with_clock_values_of_their_own_make_a_single_sum():
    usual, round_ = (clock_of(ft.Power(0.1, 0.8, offset=2), local_steps=500, clock=clock)
                     for clock in ("update", "round"))  # fmt: skip
    assert (usual.places.tolist(), usual.counts.tolist(), usual.unit) == ([3.0], [1.0], 1.0)
    assert (round_.places.tolist(), round_.counts.tolist(), round_.unit) == ([3.0], [500.0], 1.0)
    fewer = clock_of(ft.Power(0.1, 0.8), local_steps=(2, 5, 3))
    assert fewer.places.tolist() == [0.2, 0.4] and fewer.unit == 5.0


def test_a_constant_step_has_a_constant_slope():
    assert power_sum_slope(0.3, 0.0) == pytest.approx(1.0, rel=1e-15)
    clock = clock_of(ft.Constant(0.05), local_steps=4, clock="round")
    assert clock.slope(7.0) == pytest.approx(0.2, rel=1e-14)
    assert clock.t(0.0) == 0.0 and clock.n(0.0) == 0.0


def test_the_slope_of_several_places_in_a_round():
    """Unequal steps: by hand, the sum over the places of one zeta each."""
    clock = clock_of(ft.Power(0.1, 0.8, offset=2.0), local_steps=(2, 5, 3))
    e = ft.Experiment(PROBLEM, ft.Power(0.1, 0.8, offset=2.0), rounds=10, local_steps=(2, 5, 3))
    period, first = e.period, e.clock_values(0, 1)[0, : e.steps[e.reference], 0]
    places = (first + 2.0) / period + 30.0 / period
    exact = 0.1 * period**-0.8 / period * (0.8 * zeta(1.8, places)).sum()
    assert clock.slope(30.0) == pytest.approx(exact, rel=1e-13)


def test_near_and_far_values_are_inverted_together():
    """Each of them to its last digits, whichever settles first."""
    n = np.array([0.0, 1e-3, 0.02, 0.5, 3.0, 1e4, 1e9, 1e17])
    for settings in ({"local_steps": 5}, {"local_steps": (2, 5, 3)}, {"local_steps": 1}):
        clock = clock_of(ft.Power(0.1, 0.8, offset=1.5), **settings)
        np.testing.assert_allclose(clock.n(clock.t(n)), n, rtol=1e-11, atol=1e-12)


def test_the_reference_may_stand_last_with_clock_values_of_its_own():
    """2, 4 and 6 batches an epoch: the last client has 6 updates at each of its clock values."""
    schedules = [ft.Power(0.1, 1.0), ft.Power(0.1, 1.0), ft.Power(0.1, 0.8)]
    e = ft.Experiment(PROBLEM, schedules, rounds=10, local_epochs=2, clock="epoch", batch_size=50)
    clock = OdeClock.of(e)
    assert e.reference == 2 and clock.counts.tolist() == [6.0, 6.0]
    assert clock.t(20.0) == pytest.approx(6 * 0.1 * (np.arange(1, 21) ** -0.8).sum(), rel=1e-13)
    with pytest.raises(FrozenInstanceError):
        clock.scale = 1.0


# ------------------------------------------------------------------ schedules of another shape


def shaped(schedule=None, **settings):
    schedule = schedule or ft.Cosine(0.2, over=41, end=0.05)
    settings = {"rounds": 10, "local_steps": 4} | settings
    return ft.Experiment(PROBLEM, schedule, **settings)


def test_a_shaped_clock_before_where_and_after_it_settles():
    e = shaped()
    clock, summed = OdeClock.of(e), np.cumsum(e.step_sums(0, 40)[:, e.reference])
    assert len(clock.head) == 12 and clock._settled == 44.0, "11 rounds of 4 reach 41"
    np.testing.assert_allclose(clock.t(np.arange(1, 41) * 4.0), summed, rtol=1e-13)
    assert clock.t(44.0) == pytest.approx(summed[10], rel=1e-14)
    np.testing.assert_allclose(
        clock.t(np.array([45.0, 1e6])), summed[10] + 0.05 * np.array([1, 999_956])
    )
    np.testing.assert_allclose(clock.slope(np.array([44.0, 50.0, 1e6])), 0.05, rtol=1e-13)
    for n in (0.0, 3.3, 20.0, 43.9, 44.0, 44.1, 500.0):
        assert clock.n(clock.t(n)) == pytest.approx(n, rel=1e-12, abs=1e-12)
    for n in (6.0, 21.0, 42.0):
        numeric = (clock.t(n + 1e-4) - clock.t(n - 1e-4)) / 2e-4
        assert clock.slope(n) == pytest.approx(numeric, rel=1e-7)


def test_a_schedule_that_never_settles_is_known_to_the_end_of_the_run():
    never = ft.Shaped(
        shape=lambda n: 0.1 / n**0.9 * (1 + 0.1 * np.cos(n)), limit=ft.Power(0.1, 0.9)
    )
    clock = OdeClock.of(shaped(never))
    assert clock.farthest == 40.0
    end = clock.t(40.0)
    assert clock.n(end) == pytest.approx(40.0, rel=1e-12)
    for n in (40.5, [3.0, 40.5]):
        with pytest.raises(ft.FedtaperError, match="nothing is known beyond the run's end"):
            clock.t(n)
    for t in (end * 1.001, [end / 2, end * 1.001]):
        with pytest.raises(ft.FedtaperError, match="nothing is known beyond the run's end"):
            clock.n(t)
    slow = ft.Shaped(shape=lambda n: 1e-4 / n * (1 + 1 / n), limit=ft.Power(1e-4, 1.0))
    clock = OdeClock.of(shaped(slow))
    assert clock.n(clock.t(8.0)) == pytest.approx(8.0), "the whole run takes less than 0.001"
    assert OdeClock.of(shaped()).farthest == np.inf
    assert OdeClock.of(shaped(ft.Constant(0.1))).head is None


def test_the_shortest_shape_and_the_largest_steps():
    short = OdeClock.of(shaped(ft.Cosine(0.2, over=2, end=0.05), local_steps=1))
    assert [short.t(n) for n in (1.0, 2.0, 6.0)] == pytest.approx([0.2, 0.25, 0.45], rel=1e-13)
    with np.errstate(over="ignore"):
        large = OdeClock.of(shaped(ft.Cosine(1.5e308, over=41, end=0.1)))
    assert np.isfinite(large.head[0]) and np.isinf(large.head[-1])
    with pytest.raises(ft.FedtaperError, match="too large for a number"):
        large.t(3.0)


def test_a_head_is_not_summed_without_end(monkeypatch):
    whole = OdeClock.of(shaped(ft.Cosine(0.2, over=4000, end=0.05))).head
    assert len(whole) == 1001 and whole[0] == 0.0
    monkeypatch.setattr(clocks, "LONGEST_HEAD", 999)
    with pytest.raises(ft.FedtaperError, match="settles only after 1,000 rounds"):
        OdeClock.of(shaped(ft.Cosine(0.2, over=4000, end=0.05)))
    monkeypatch.setattr(clocks, "LONGEST_HEAD", 1000)
    OdeClock.of(shaped(ft.Cosine(0.2, over=4000, end=0.05)))


def test_the_inverse_of_finite_sums_up_to_their_end():
    with pytest.warns(ft.AssumptionWarning):
        clock = clock_of(ft.Power(1.0, 2.0))
    end = np.pi**2 / 6
    assert clock.n(1.0) == pytest.approx(1.0, rel=1e-12)
    assert clock.n(end - 1e-6) == pytest.approx(1e6, rel=1e-3)
    with pytest.raises(ft.FedtaperError, match=r"sum to 1\.64493"):
        clock.n([1.0, end * (1 + 1e-14)])


def test_finite_sums_never_reach_a_late_time():
    with pytest.warns(ft.AssumptionWarning):
        clock = clock_of(ft.Power(1.0, 2.0))
    assert clock.t(1e18) == pytest.approx(np.pi**2 / 6, rel=1e-12)
    with pytest.raises(ft.FedtaperError, match="never reaches 2"):
        clock.n(2.0)


def test_wrong_values():
    clock = clock_of(ft.Power(0.1, 0.76))
    for n in (-1, np.nan, [5.0, -0.1]):
        with pytest.raises(ft.FedtaperError, match="starts at 1"):
            clock.t(n)
    for t in (-0.1, np.nan, [5.0, -0.1]):
        with pytest.raises(ft.FedtaperError, match="starts at 0"):
            clock.n(t)
    for t in (1000.0, [1.0, 1000.0]):
        with pytest.raises(ft.FedtaperError, match="beyond"):
            clock_of(ft.Power(0.1, 1.0)).n(t)
