"""The ODE's clock against direct sums, high-precision values, and its own inverse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtaper as ft
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


def test_finite_sums_never_reach_a_late_time():
    with pytest.warns(ft.AssumptionWarning):
        clock = clock_of(ft.Power(1.0, 2.0))
    assert clock.t(1e18) == pytest.approx(np.pi**2 / 6, rel=1e-12)
    with pytest.raises(ft.FedtaperError, match="never reaches 2"):
        clock.n(2.0)


def test_wrong_values():
    clock = clock_of(ft.Power(0.1, 0.76))
    with pytest.raises(ft.FedtaperError, match="starts at 1"):
        clock.t(-1)
    with pytest.raises(ft.FedtaperError, match="starts at 0"):
        clock.n(-0.1)
    with pytest.raises(ft.FedtaperError, match="beyond"):
        clock_of(ft.Power(0.1, 1.0)).n(1000.0)
