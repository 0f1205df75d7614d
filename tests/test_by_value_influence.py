"""Influence by value: its factors, its limit, its groups and its table, worked out by hand."""

import dataclasses

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core.influence import ClientGroup, reference_client

SLOW, FAST = ft.Power(0.1, 0.8), ft.Power(0.4, 1.0)
PROBLEM = ft.LinearRegression(num_clients=3, dim=2, samples=(100, 200, 300), feature_spread=1.0)


def experiment(schedules=SLOW, **how):
    settings = {"rounds": 10, "local_steps": 4, "batch_size": 20} | how
    return ft.Experiment(PROBLEM, schedules, **settings)


# ------------------------------------------------------------------ one clock value


def test_the_reference_by_taper_scale_place_and_presence():
    assert reference_client([FAST, SLOW]) == 1
    assert reference_client([ft.Power(0.1, 0.8), ft.Power(0.2, 0.8), ft.Power(0.2, 0.8)]) == 1
    assert reference_client([SLOW, FAST], rates=[0.0, 0.3]) == 1, "who never comes is passed over"
    assert reference_client([SLOW, FAST], rates=[0.0, 0.0]) == 0, "unless nobody comes"


def test_limits_and_values():
    three = [SLOW, ft.Power(0.05, 0.8, offset=7), FAST]
    np.testing.assert_allclose(ft.influence(three), [1, 0.5, 0])
    a = np.array([0.1 / 32**0.8, 0.05 / 39**0.8, 0.4 / 32])
    np.testing.assert_allclose(ft.influence(three, n=32), a / a[0], rtol=1e-14)
    assert ft.influence(three, n=[[32, 64]]).shape == (1, 2, 3)


def test_factors_shares_and_the_table():
    found = ft.effective_influence([SLOW, FAST], 32, local_steps=[2, 6], participation=[1.0, 0.5])
    raw = np.array([0.5 * 2 * 0.1 / 32**0.8, 0.5 * 0.5 * 6 * 0.4 / 32])
    np.testing.assert_allclose(found.raw, raw, rtol=1e-14)
    np.testing.assert_allclose(found.share, raw / raw.sum(), rtol=1e-14)
    np.testing.assert_allclose(found.step_sum, [0.2 / 32**0.8, 2.4 / 32], rtol=1e-14)
    head, first, second = found.rows()
    assert head == ["client", "effective", "share", "step size", "steps", "step sum", "weight",
                    "rate", "gain"]  # fmt: skip
    assert first == ["0", "1", f"{raw[0] / raw.sum():.4g}", f"{0.1 / 32**0.8:.4g}", "2",
                     f"{0.2 / 32**0.8:.4g}", "0.5", "1", "1"]  # fmt: skip
    assert second[0] == "1" and second[1] == f"{raw[1] / raw[0]:.4g}" and second[7] == "0.5"
    assert repr(found) == f"Influence(0 1, 1 {raw[1] / raw[0]:.3g})"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.reference = 1
    for wrong in ({"local_steps": 0}, {"participation": 1.1}, {"participation": -0.1},
                  {"server_weight": [-1.0, 1.0]}):  # fmt: skip
        with pytest.raises(ft.FedtaperError):
            ft.effective_influence([SLOW, FAST], 32, **wrong)
    assert ft.effective_influence([SLOW, FAST], 32, server_weight=[0, 1]).raw[0] == 0
    assert ft.effective_influence([SLOW, FAST], 32, participation=[0, 1]).raw[0] == 0
    with pytest.raises(ft.FedtaperError):
        ft.effective_influence([SLOW, FAST], 0)


@pytest.mark.parametrize(
    "clients, names, words",
    [
        ((4,), (), "client 4"),
        ((2, 3, 4), (), "clients 2 to 4"),
        ((2, 4), (), "clients 2, 4"),
        ((2, 3), ("north", "south"), "north, south"),
    ],
)
def test_groups_in_words(clients, names, words):
    assert ClientGroup(clients, SLOW, 1.0, 1.0, 1.0, 1.0, 1.0, names).who == words


def test_what_is_assumed_of_a_client_unless_it_is_said():
    found = ft.effective_influence([SLOW, FAST], 32)
    np.testing.assert_allclose(found.step_sum, [0.1 / 32**0.8, 0.4 / 32], rtol=1e-14)
    assert found.local_steps.tolist() == [1, 1] and found.participation.tolist() == [1, 1]
    assert found.server_weight.tolist() == [0.5, 0.5] and found.gain == 1.0
    with pytest.raises(ft.FedtaperError, match="the clock n starts at 1"):
        ft.effective_influence([SLOW, FAST], 0.05)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ClientGroup((4,), SLOW, 1.0, 1.0, 1.0, 1.0, 1.0).limit = 0.0


# ------------------------------------------------------------------ in an experiment


def test_weights_of_mean_fields_around_a_clock_value():
    """A round of 4 updates centred at n = 30 stands at n = 29 to 32."""
    e = experiment([SLOW, FAST, FAST], local_steps=(4, 2, 3), server=ft.Average("samples"),
                   participation=(1.0, 0.5, 1.0))  # fmt: skip
    first, rest = np.arange(29, 33) ** -0.8 * 0.1, 0.4 / np.arange(29, 33)
    sums = np.array([first.sum(), rest[:2].sum(), rest[:3].sum()])
    raw = np.array([1 / 6, 1 / 3 * 0.5, 1 / 2]) * sums
    np.testing.assert_allclose(e.field_weights(30.0), raw / sums[0], rtol=1e-12)
    assert e.field_weights(np.array([[30.0, 50.0]])).shape == (1, 2, 3)
    squares = np.array([(first**2).sum(), (rest[:2] ** 2).sum(), (rest[:3] ** 2).sum()])
    drift = (sums - squares / sums) / 2
    np.testing.assert_allclose(e.local_drift(30.0), drift, rtol=1e-12)
    np.testing.assert_allclose(e.influence(8).raw, raw, rtol=1e-12)  # its updates are 29 to 32
    np.testing.assert_allclose(e.effective_influence(7, 8), [raw / raw[0]], rtol=1e-12)


def test_one_update_a_round_does_not_drift():
    np.testing.assert_allclose(experiment(local_steps=1).local_drift(30.0), 0.0, atol=1e-18)


def test_the_limit_of_the_weights():
    e = experiment([SLOW, ft.Power(0.05, 0.8), FAST], local_steps=(4, 2, 3),
                   server=ft.Average("samples"), participation=(1.0, 0.5, 1.0))  # fmt: skip
    wanted = np.array([1 / 6, 1 / 3 * 0.5 * 0.5 * 2 / 4, 0.0])
    np.testing.assert_allclose(e.limit_field_weights, wanted, rtol=1e-12)
    own = experiment([SLOW, ft.Power(0.05, 0.8), FAST], local_steps=4, own_clock=True,
                     participation=(1.0, 0.5, 1.0))  # fmt: skip
    slower = 0.5**-0.8  # the second client is at clock n / 2
    np.testing.assert_allclose(own.limit_field_weights, [1 / 3, 0.25 / 3 * slower, 0], rtol=1e-12)


def test_momentum_with_reset_counts_what_is_left_of_a_round():
    """beta = 0.5: with 4 equal steps the gradients count 15/8, 7/4, 3/2 and 1 of a step."""
    e = experiment(ft.Constant(0.1), local=ft.Momentum(0.5, reset=True), local_steps=(4, 1, 2))
    gain = np.array([(15 / 8 + 7 / 4 + 3 / 2 + 1) / 4, 1.0, (3 / 2 + 1) / 2])
    found = e.influence(3)
    np.testing.assert_allclose(found.gain, gain, rtol=1e-12)
    np.testing.assert_allclose(found.raw, np.array([0.4, 0.1, 0.2]) / 3 * gain, rtol=1e-12)
    np.testing.assert_allclose(found.participation, 1.0, rtol=1e-12)
    limit = np.array([1.0, 0.25, 0.5]) / 3 * gain
    np.testing.assert_allclose(e.limit_field_weights, limit, rtol=1e-12)
    kept = experiment(ft.Constant(0.1), local=ft.Momentum(0.5), local_steps=(4, 1, 2))
    np.testing.assert_allclose(kept.influence(3).gain, 2.0, rtol=1e-12)
    np.testing.assert_allclose(kept.limit_field_weights, np.array([2, 0.5, 1]) / 3, rtol=1e-12)


def test_groups_of_clients_that_count_alike():
    e = experiment([SLOW, FAST, FAST], names=("north", "south", "west"))
    first, second = e.groups()
    assert first.clients == (0,) and first.who == "north" and first.effective == 1.0
    assert second.clients == (1, 2) and second.names == ("south", "west")
    assert (second.limit, second.server_weight, second.participation) == (0.0, 1 / 3, 1.0)
    assert second.step_sum == pytest.approx((0.4 / np.arange(37, 41)).sum(), rel=1e-12)
    assert second.schedule == FAST


# ------------------------------------------------------------------ rules, presence, clocks


def raw_of(e, n=30):
    """Weight times sum of the step sizes of a round of 4 updates centred at n, by hand."""
    made = np.arange(4)[:, None] < e.steps
    a = np.array([[s(m) for s in e.schedules] for m in range(n - 1, n + 3)]) * made
    return a.sum(axis=0) / 3, a


def test_the_server_s_momentum_multiplies_every_influence():
    """beta = 0.75: in the long run each update counts four times."""
    e = experiment([SLOW, FAST, FAST], server=ft.AverageMomentum(0.75))
    raw, a = raw_of(e)
    np.testing.assert_allclose(e.field_weights(30.0), 4 * raw / a[:, 0].sum(), rtol=1e-12)
    np.testing.assert_allclose(e.influence(8).raw, 4 * raw, rtol=1e-12)
    np.testing.assert_allclose(e.influence(8).gain, 4.0, rtol=1e-12)
    np.testing.assert_allclose(e.limit_field_weights, [4 / 3, 0, 0], rtol=1e-12)


def test_momentum_with_reset_at_finite_n():
    """beta = 0.5: the gradient of update m counts a_m + a_(m+1) / 2 + a_(m+2) / 4 + ..."""
    e = experiment([SLOW, FAST, FAST], local=ft.Momentum(0.5, reset=True), local_steps=(4, 2, 1))
    _, a = raw_of(e)
    each = [sum(a[k:, i] @ 0.5 ** np.arange(4 - k) for k in range(4)) for i in range(3)]
    np.testing.assert_allclose(e.field_weights(30.0) * a[:, 0].sum() * 3, each, rtol=1e-12)
    found = e.influence(8)
    np.testing.assert_allclose(found.step_sum, a.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.step_size, a.sum(axis=0) / (4, 2, 1), rtol=1e-12)
    assert found.local_steps.tolist() == [4, 2, 1] and found.reference == 0
    np.testing.assert_allclose(found.raw * 3, each, rtol=1e-12)
    np.testing.assert_allclose(found.gain, np.array(each) / a.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.participation, 1.0, rtol=1e-12)


def test_a_mean_over_those_present_keeps_the_sum_of_the_weights():
    """FedNova's weights add up to 8/3 here; the others share those of a client that is absent."""
    server = ft.Normalised(by="samples")
    e = experiment(local_steps=(4, 2, 1), participation=(1.0, 0.5, 1.0), average_over="present",
                   server=server)  # fmt: skip
    share = np.array([1 / 6, 1 / 3, 1 / 2])
    q = share * (share @ (4, 2, 1)) / (4, 2, 1)
    alone = np.array([q[0], 0, q[2]]) * q.sum() / (q[0] + q[2])
    wanted = (q + alone) / 2
    _, a = raw_of(e)
    sums = a.sum(axis=0)
    np.testing.assert_allclose(e.field_weights(30.0), wanted * sums / sums[0], rtol=1e-12)
    found = e.influence(8)
    np.testing.assert_allclose(found.server_weight, q, rtol=1e-12)
    np.testing.assert_allclose(found.participation, wanted / q, rtol=1e-12)
    np.testing.assert_allclose(e.limit_field_weights, wanted * (1, 1 / 2, 1 / 4), rtol=1e-12)


def test_corrections_make_participation_the_same_for_all():
    """SCAFFOLD: each counts as if it came as often as the clients do on average."""
    rates = np.array([1.0, 0.5, 0.2])
    e = experiment([SLOW, FAST, FAST], participation=tuple(rates), **ft.PRESETS["scaffold"])
    raw, a = raw_of(e)
    pace = raw @ rates / raw.sum()
    np.testing.assert_allclose(e.field_weights(30.0), raw * pace / a[:, 0].sum(), rtol=1e-12)
    found = e.influence(8)
    np.testing.assert_allclose(found.participation, pace, rtol=1e-12)
    np.testing.assert_allclose(found.raw, raw * pace, rtol=1e-12)
    np.testing.assert_allclose(found.gain, 1.0, rtol=1e-12)


def test_a_client_that_never_comes():
    with pytest.warns(ft.FedtaperWarning, match="never takes part"):
        one = experiment([SLOW, FAST, ft.Power(0.1, 1.0)], participation=(0.0, 0.5, 1.0))
    assert one.reference == 1, "the slowest taper is that of a client that never comes"
    np.testing.assert_allclose(one.limit_field_weights, [0, 1 / 6, 1 / 12], rtol=1e-12)


def test_a_clock_of_its_own_counts_a_client_s_own_rounds():
    """At n = 60 a client that comes half of the time is at 30; the pace is that at n = 60."""
    rates = np.array([0.5, 1.0, 0.25])
    e = experiment(SLOW, own_clock=True, participation=tuple(rates), rounds=20)
    sums = np.array([sum(0.1 * (58 * rate + m) ** -0.8 for m in (1, 2, 3, 4)) for rate in rates])
    np.testing.assert_allclose(e.field_weights(60.0), rates * sums / 3 / sums[1], rtol=1e-12)
    np.testing.assert_allclose(e.limit_field_weights, rates**0.2 / 3, rtol=1e-12)


def test_many_rounds_no_round_and_names():
    e = experiment([SLOW, FAST, FAST], local_steps=1, rounds=2500, names=("north", "south", "west"))
    found = e.effective_influence(0, 2500)
    assert found.shape == (2500, 3)
    np.testing.assert_allclose(found[:, 1], 4 * np.arange(1, 2501) ** -0.2, rtol=1e-12)
    assert e.effective_influence(5, 5).shape == (0, 3)
    assert e.influence(3).names == ("north", "south", "west")
    assert experiment().influence(3).names == ()


def test_who_differs_in_one_factor_is_in_a_group_of_its_own():
    e = experiment(SLOW, participation=(1.0, 0.5, 1.0))
    assert [group.clients for group in e.groups()] == [(0, 2), (1,)]
    assert [group.names for group in e.groups()] == [(), ()]
    e = experiment(SLOW, local_steps=(4, 4, 2))
    assert [group.clients for group in e.groups()] == [(0, 1), (2,)]
    e = experiment(SLOW, server=ft.Average("samples"))
    assert [group.clients for group in e.groups()] == [(0,), (1,), (2,)]


def test_a_client_drifts_with_the_velocity_that_it_has_built_up():
    """By hand: where it is before each update, weighted by how far that update's gradient gets."""
    b, n = 0.6, 40.0
    problem = ft.LinearRegression(num_clients=2, samples=30)
    schedules = [ft.Power(0.1, 0.9), ft.Power(0.3, 0.76)]
    rule = ft.Momentum(b, reset=True)
    e = ft.Experiment(problem, schedules, rounds=20, local_steps=4, batch_size=9, local=rule)
    a = e.steps_around(n)[0]
    for i in range(2):
        steps, place, velocity, drift, whole = a[:, i], 0.0, 0.0, 0.0, 0.0
        for k in range(4):
            counts = sum(steps[m] * b ** (m - k) for m in range(k, 4))
            drift, whole = drift + counts * place, whole + counts
            velocity = b * velocity + 1.0
            place += steps[k] * velocity
        assert e.local_drift(n)[i] == pytest.approx(drift / whole, rel=1e-12)
