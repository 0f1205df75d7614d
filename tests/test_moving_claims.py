"""Claims X1 to X3: their parts, on a few seeds."""

import numpy as np
import pytest

from fedtaper.paper import LEDGER, moving, moving_race


def test_claims_are_in_the_ledger():
    assert {"X1", "X2", "X3"} <= set(LEDGER)


def test_every_case_can_be_made_and_predicted():
    for name, case in moving.cases().items():
        e = case.experiment
        assert e.limit_influence.min() > 0, name
        if case.without is not None:
            wrong = case.without / case.without[e.reference]
            assert not np.allclose(e.limit_influence, wrong), name


def test_standard_errors():
    w = np.random.default_rng(0).normal([1.0, 2.0], [0.1, 1.0], size=(400, 2))
    assert moving.apart(w, [1.0, 2.0]) < 3
    assert moving.apart(w, [1.05, 2.0]) == pytest.approx(10, abs=2)


def test_a_case_is_judged():
    case = moving.cases()["asynchronous, discounted"]
    w = np.random.default_rng(0).normal(case.experiment.problem.equilibrium(case.without), 0.01)
    seeds = w + 0.01 * np.random.default_rng(1).normal(size=(30, 3))
    right, wrong = moving.judged("toy", case, seeds)
    assert not right.passed and right.value > 10  # these models were made from the wrong factor
    assert wrong.value < right.value


def test_working_times_without_a_mean_fade():
    shares = moving.fading_shares()
    steady, fading = shares["with a mean"][1], shares["without a mean"][1]
    assert steady[-1] == pytest.approx(0.1, rel=0.1)
    slope = np.polyfit(np.log(shares["without a mean"][0][3:]), np.log(fading[3:]), 1)[0]
    assert slope == pytest.approx(moving.NO_MEAN - 1, abs=0.1)  # renewal theory: n^(tail - 1)


def test_when_a_goal_is_reached_for_good():
    good = np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=bool)
    time = np.arange(5) * 10.0
    assert moving_race.reached(time, good).tolist() == [30.0, 0.0, np.inf]


def test_evened_out_means_equal_influence():
    made = moving_race.federations(moving.problem(), 0.1, 10, local_steps=5, batch_size=10)
    assert np.allclose(made[moving_race.EVEN].limit_influence, 1)
    slow, quick = made[moving_race.PLAIN].limit_influence[:2]
    assert slow / quick == pytest.approx(0.1)
