import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.core.influence import reference_client

scales = st.floats(1e-6, 1e3)
deltas = st.floats(0.7501, 1.0)
powers = st.builds(ft.Power, c=scales, delta=deltas, offset=st.floats(0, 100))


def test_hand_worked_values():
    assert ft.Power(0.1, 1.0)(4) == 0.025
    assert ft.Power(2.0, 1.0, offset=6)(2) == 0.25
    assert ft.Power(1.0, 0.8)(32) == pytest.approx(2**-4)
    assert ft.Constant(0.3)(10**12) == 0.3


@given(powers, st.integers(1, 10**12))
def test_steps_are_positive_and_fall(schedule, n):
    assert 0 < schedule(n + 1) <= schedule(n)


@given(powers, st.lists(st.integers(1, 10**9), min_size=1, max_size=5))
def test_arrays_and_scalars_agree(schedule, clock):
    np.testing.assert_allclose(schedule(clock), [schedule(n) for n in clock], rtol=1e-14)


@pytest.mark.parametrize("c", [0, -1, math.nan, math.inf, "1", None, True])
def test_bad_scales_are_refused(c):
    with pytest.raises(ft.FedtaperError, match="c must be"):
        ft.Power(c, 0.8)


@pytest.mark.parametrize("delta", [0, -1, math.nan])
def test_bad_deltas_are_refused(delta):
    with pytest.raises(ft.FedtaperError, match="delta must be"):
        ft.Power(0.1, delta)


@pytest.mark.parametrize("offset", [-1, math.nan, math.inf])
def test_bad_offsets_are_refused(offset):
    with pytest.raises(ft.FedtaperError, match="offset"):
        ft.Power(0.1, 0.8, offset)


@pytest.mark.parametrize("n", [0, -5, math.nan, [1, 0]])
def test_clock_starts_at_one(n):
    for schedule in (ft.Power(0.1, 0.8), ft.Constant(0.1)):
        with pytest.raises(ft.FedtaperError, match="clock"):
            schedule(n)


@pytest.mark.parametrize("delta", [0.5, 0.75, 1.01])
def test_deltas_outside_a2_warn_and_name_it(delta):
    with pytest.warns(ft.AssumptionWarning, match="A2"):
        ft.Power(0.1, delta)


def test_influence_of_the_paper_s_cases():
    slow = ft.Power(0.1, 0.76)
    case_2 = [slow, ft.Power(0.05, 0.76), *[ft.Power(1.0, 1.0)] * 8]
    np.testing.assert_array_equal(ft.influence(case_2), [1, 0.5] + [0] * 8)
    assert ft.influence(case_2, 25_000)[2] == pytest.approx(10 * 25_000**-0.24)
    assert ft.influence([slow, ft.Power(0.1, 1.0)], 25_000)[1] == pytest.approx(0.088, abs=5e-4)


def test_the_reference_is_found_wherever_it_stands():
    schedules = [ft.Power(9.0, 1.0), ft.Power(0.1, 0.8), ft.Power(0.2, 0.8), ft.Power(5.0, 0.9)]
    assert reference_client(schedules) == 2
    np.testing.assert_allclose(ft.influence(schedules), [0, 0.5, 1, 0])


def test_mixed_constant_and_tapering_warn():
    mixed = [ft.Power(0.1, 0.8), ft.Constant(0.01)]
    with pytest.warns(ft.AssumptionWarning, match="A2"):
        np.testing.assert_array_equal(ft.influence(mixed), [0, 1])


@given(st.lists(powers, min_size=1, max_size=6))
def test_limit_influence_is_between_0_and_1_with_a_reference(schedules):
    p = ft.influence(schedules)
    assert p.shape == (len(schedules),)
    assert np.all((p >= 0) & (p <= 1)) and p.max() == 1


@given(st.lists(powers, min_size=2, max_size=5), st.integers(1, 10**9))
def test_influence_at_n_is_the_ratio_of_steps(schedules, n):
    p = ft.influence(schedules, n)
    top = schedules[reference_client(schedules)]
    np.testing.assert_allclose(p, [s(n) / top(n) for s in schedules], rtol=1e-12)


@given(st.lists(scales, min_size=2, max_size=5), deltas, st.integers(1, 10**9))
def test_one_delta_gives_the_limit_at_every_n(cs, delta, n):
    schedules = [ft.Power(c, delta) for c in cs]
    np.testing.assert_allclose(ft.influence(schedules, n), ft.influence(schedules), rtol=1e-9)


def test_influence_takes_arrays_of_clock_values():
    schedules = [ft.Power(0.1, 0.76), ft.Power(0.1, 1.0)]
    assert ft.influence(schedules, [1, 10, 100]).shape == (3, 2)
    assert ft.influence(schedules, np.ones((2, 3))).shape == (2, 3, 2)
    for n in (-1, 0, math.nan):
        with pytest.raises(ft.FedtaperError, match="clock"):
            ft.influence(schedules, n)


def test_no_or_wrong_schedules_are_refused():
    with pytest.raises(ft.FedtaperError, match="no schedules"):
        ft.influence([])
    with pytest.raises(ft.FedtaperError, match="schedule 1"):
        ft.influence([ft.Power(0.1, 0.8), 0.1])


def test_effective_influence_multiplies_its_factors():
    same = [ft.Power(0.1, 0.8)] * 3
    found = ft.effective_influence(
        same,
        50,
        local_steps=[10, 20, 10],
        server_weight=[0.5, 0.25, 0.25],
        participation=[1, 1, 0.5],
    )
    np.testing.assert_allclose(found.effective, [1, 1, 0.25])
    assert found.share.sum() == pytest.approx(1)
    with pytest.raises(ft.FedtaperError, match="participation"):
        ft.effective_influence(same, 50, participation=1.5)
    with pytest.raises(ft.FedtaperError, match="local_steps"):
        ft.effective_influence(same, 50, local_steps=[1, 2])
