"""plan() by value: limits, prices, fading, vanishing and the table, each from its definition."""

import dataclasses
import re
import sys
import warnings

import numpy as np
import pytest
from test_plan import measured

import fedtaper as ft

PROBLEM = ft.LinearRegression(num_clients=3, dim=2, samples=60, feature_spread=1.0, seed=7)


def planned(target, rounds=20, local_steps=3, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.AssumptionWarning)
        return ft.plan(target, rounds, local_steps, **how)


def test_a_plan_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        planned([1, 1]).advice = "other"


def test_prices_are_those_of_the_planned_shares_up_to_a_size(monkeypatch):
    names = ("north", "south", "west")
    found = planned([1, 0.5, 0.25], problem=PROBLEM, names=names)
    exact = ft.price(PROBLEM, p=found.experiment.influence().share)
    np.testing.assert_allclose(found.prices.loss, exact.loss, rtol=1e-9)
    assert found.prices.names == names
    assert found.notes and "1 % more influence" in found.notes[0]
    for limit, shown in ((2, True), (1, False)):  # the model has two parameters
        monkeypatch.setattr(sys.modules["fedtaper.planning.plan"], "PRICED", limit)
        again = planned([1, 0.5, 0.25], problem=PROBLEM)
        assert (again.prices is not None) == shown
        assert len(again.rows()[0]) == (12 if shown else 9)
    assert planned([1, 1]).prices is None, "a problem that stands in has no prices"


def test_the_table_row_by_row():
    found = planned([1, 0.5, 0.25], problem=PROBLEM, participation=(1.0, 0.5, 1.0), offset=3.0)
    head, *rows = found.rows()
    assert head[:9] == ["client", "step size", "target", "effective", "limit", "a at end", "steps",
                        "weight", "rate"]  # fmt: skip
    e = found.experiment
    for i, row in enumerate(rows):
        s = e.schedules[i]
        assert row[:3] == [str(i), f"{s.c:.4g}/(n+3)^0.76", f"{(1, 0.5, 0.25)[i]:.3g}"]
        last = np.mean([s.c / (n + 3.0) ** 0.76 for n in (58, 59, 60)])
        numbers = [(1, 0.5, 0.25)[i], (1, 0.5, 0.25)[i], last, 3, 1 / 3, (1.0, 0.5, 1.0)[i]]
        assert row[3:9] == [f"{x:.3g}" for x in numbers]
        assert row[9:] == found.prices.rows()[i + 1][1:4]
    assert [row[1] for row in planned([1, 1]).rows()[1:]] == ["0.1/n^0.76"] * 2
    fading = planned("fade client 1 to 50% by round 9", num_clients=2).rows()
    assert [row[2] for row in fading] == ["target", "1", "fades"]
    assert len(found.rows(prices=False)[0]) == 9
    assert "Influence at round 20 (n = 60)" in str(found)
    assert repr(found) == "Plan(20 rounds, influence 0 1, 1 0.5, 2 0.25)"


def test_the_stable_offset_is_that_of_the_plan_without_one():
    plain = planned([1, 1, 1], problem=PROBLEM, c=3.0)
    found = planned([1, 1, 1], problem=PROBLEM, c=3.0, offset=None)
    wanted = ft.stability(plain.experiment).safe_offset
    assert wanted > 1
    assert found.schedules[0].offset == pytest.approx(wanted, rel=1e-12)
    tiny = planned([1, 1, 1], problem=PROBLEM, c=1e-4, offset=None)
    assert tiny.schedules[0].offset == 0.0


def test_without_a_measured_curvature_there_is_no_offset(monkeypatch):
    """As for a model that is too large to measure its curvature."""
    monkeypatch.setattr(sys.modules["fedtaper.planning.plan"], "curvatures", lambda e: None)
    found = planned([1, 1, 1], problem=PROBLEM, c=3.0, offset=None)
    assert found.schedules[0].offset == 0.0 and "too large to measure" in found.advice


@pytest.mark.parametrize("client", [0, 1])
def test_fading_of_two_clients_with_clocks_of_their_own(client):
    """In epochs, a client's updates of one round stand at clock values of its own."""
    rule = f"fade client {client} to 80% by round 12"
    how = {"sizes": [40, 400], "local_epochs": 2, "clock": "epoch", "batch_size": 20}
    e = planned(rule, rounds=20, local_steps=None, **how).experiment
    early, late = measured(e, 1), measured(e, 12)
    other = 1 - client
    assert early[client] / early[other] == pytest.approx(1.0, rel=1e-9)
    assert late[client] / late[other] == pytest.approx(0.8, rel=1e-9)


def test_the_delta_that_a_fade_needs_in_closed_form():
    """One update a round: by round r it falls to r^-(delta - 0.76), so delta is a logarithm."""
    kept, faded = planned("fade client 1 to 80% by round 10", 20, 1, num_clients=2).schedules
    assert (kept.c, kept.delta) == (pytest.approx(0.1), 0.76)
    assert faded.delta == pytest.approx(0.76 - np.log10(0.8), rel=1e-12)
    assert faded.c == pytest.approx(0.1, rel=1e-12)
    found = planned("fade client 1 to 0.1% by round 10", 20, 1, num_clients=2)
    has = 10**-0.24
    assert found.schedules[1].delta == 1.0
    assert found.warnings == (
        "client 1 cannot fade to 0.001 by round 10 inside A2: that needs delta = 3.76. With "
        f"delta = 1, the fastest, it has {has:.3g} then; to reach 0.001 by then, let it start at "
        f"{0.001 / has:.3g}",
    )


def test_fading_needs_a_fall():
    room = sys.modules["fedtaper.planning.over_time"]
    e = planned([1, 1]).experiment
    for end in (0.0, -0.1, 0.5, 0.6):
        with pytest.raises(ft.FedtaperError, match="must fall, and to more than 0"):
            room.fading(e, list(e.schedules), 0, room.Fade(end, 9, 0.5), np.ones(2))
    for rule in ("fade client 0 from 50% to 50% by round 9", "fade client 0 to 0% by round 9"):
        with pytest.raises(ft.FedtaperError, match=r"must fall|cannot read the rule|above 0"):
            planned(rule, num_clients=2)


def test_what_a_vanishing_client_has_left_and_when_it_has_less():
    found = planned([2, 0], rounds=100, local_steps=5)
    left = measured(found.experiment, 100)
    has = 2 * left[1] / left[0]
    assert found.effective == pytest.approx([2, has])
    when = 500 * (has / 0.01) ** (1 / 0.24)
    assert f"it has {has:.3g} then, and 0.01 at n of about {when:.1g}." in found.warnings[0]
    same = planned([1, 0], rounds=100, local_steps=5, delta=1.0)
    assert "it has 1 then. For less" in same.warnings[0], "with one delta nobody vanishes"
    some = planned([0.2, 0], rounds=100, local_steps=5)
    assert re.search(r"it has 0\.0[45]\d* then, and 0\.01 at n of", some.warnings[0])
    small = planned([0.02, 0], rounds=100, local_steps=5)
    assert re.search(r"it has 0\.00\d+ then\. For less", small.warnings[0])


def test_a_client_that_never_comes_may_be_asked_to_vanish():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ft.plan([1, 0], 10, 2, participation=(1.0, 0.0), num_clients=2)
    assert found.schedules[1].delta == 1.0 and found.schedules[1].c > 0


def test_the_number_of_clients_comes_from_sizes_or_the_target():
    assert planned({0: 2.0}, sizes=np.array([60, 70, 80])).experiment.num_clients == 3
    assert planned({0: 2.0}, num_clients=4, sizes=60).experiment.num_clients == 4
    assert list(planned([1, 2]).experiment.problem.sizes) == [5000, 5000]
    with pytest.raises(ft.FedtaperError, match="how many clients"):
        planned({0: 2.0}, sizes=60)
    with pytest.raises(ft.FedtaperError, match="not both"):
        planned([1, 1, 1], problem=PROBLEM, sizes=[1, 2, 3])


def test_what_is_assumed_unless_it_is_said():
    found = planned([1, 0.5])
    assert found.schedules == (ft.Power(0.1, 0.76, 0.0), ft.Power(0.05, 0.76, 0.0))
    assert not found.real and not ft.Plan(found.experiment, found.target, (), "").real
    assert len(planned([1, 0.5, 0.5], problem=PROBLEM).rows()[0]) == 12, "with prices"


def test_epochs_are_the_clock_of_a_problem_that_stands_in():
    epochs = {"local_steps": None, "local_epochs": 2, "batch_size": 20}
    assert planned([1, 1], sizes=60, **epochs).experiment.clock == "epoch"
    assert planned([1, 1], sizes=60, clock="round", **epochs).experiment.clock == "round"
    plain = ft.Experiment(PROBLEM, ft.Power(0.1, 0.76), rounds=20, local_epochs=2, batch_size=20)
    assert planned([1, 1, 1], problem=PROBLEM, **epochs).experiment.clock == plain.clock
    assert planned([1, 1]).experiment.clock == "update"


@pytest.mark.parametrize("target", [[1, 1], [1, 0.5], "fade client 1 to 80% by round 9"])
def test_who_never_comes_cannot_count(target):
    with (
        pytest.warns(ft.FedtaperWarning, match="never takes part"),
        pytest.raises(ft.FedtaperError, match="cannot have influence"),
    ):
        ft.plan(target, 20, 3, num_clients=2, participation=(1.0, 0.0))


def test_advice_says_why_stability_was_not_judged():
    room = sys.modules["fedtaper.planning.plan"]
    e = planned([1, 1, 1], problem=PROBLEM).experiment
    assert "that needs the problem" in room._advice(e, None, False)
    assert "too large to measure" in room._advice(e, None, True)
    judged = f"stability: {ft.stability(e).advice}"
    assert room._advice(e, room.curvatures(e), True) == judged
    assert planned([1, 1, 1], problem=PROBLEM).advice == judged
