import numpy as np
import pytest

import fedtaper as ft
from fedtaper.paper import LEDGER, pick
from fedtaper.paper.statistics import median_interval, share_interval
from fedtaper.theory.stability import stability


def test_stable_steps_are_silent():
    e = ft.Experiment(ft.LinearRegression(), ft.Power(0.05, 0.76), rounds=10, local_steps=5)
    assert stability(e).stable
    ft.run(e)  # a warning would be an error here


def test_too_large_a_constant_names_the_growth():
    e = ft.Experiment(ft.LinearRegression(), ft.Constant(0.1), rounds=500, local_steps=5)
    found = stability(e)
    assert not found.stable and found.growth > 1
    # one client's expected map has spectral radius |1 - a lambda|; all clients are alike
    assert found.growth == pytest.approx(abs(1 - 0.1 * 25.5) ** 5, rel=0.25)
    with pytest.warns(ft.StabilityWarning, match="diverges after about"):
        ft.run(e)


def test_a_climb_is_foretold_and_an_offset_avoids_it():
    problem = ft.LinearRegression(feature_spread=25.0, true_w=(1.0, 1.0, 1.0))
    e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=200, local_steps=5)
    found = stability(e)
    with pytest.warns(ft.StabilityWarning, match="climbs"):
        run = ft.run(e)
    climb = np.log10(run.metrics["error"].max() / np.linalg.norm(run.w0 - 1))
    assert found.peak == pytest.approx(climb, abs=3)
    assert abs(int(np.argmax(run.metrics["error"])) + 1 - found.peak_round) <= 3
    calm = ft.Power(0.1, 0.76, offset=found.safe_offset)
    gentle = ft.run(ft.Experiment(problem, calm, rounds=200, local_steps=5))
    assert gentle.metrics["error"].max() < 20


def test_optimisers_and_proximal_terms_are_counted():
    problem = ft.LinearRegression()
    adam = ft.Experiment(problem, ft.Constant(0.1), rounds=50, local_steps=5, server=ft.Adam())
    assert "overshoot" in stability(adam).advice
    stiff = ft.Proximal(mu=60.0)
    e = ft.Experiment(problem, ft.Constant(0.05), rounds=50, local_steps=5, local=stiff)
    assert not stability(e).stable


def test_intervals_by_hand():
    share, low, high = share_interval(np.array([True] * 8 + [False] * 2))
    assert (share, round(low, 3), round(high, 3)) == (0.8, 0.49, 0.943)  # Wilson's own example
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):  # problems differ: the interval must allow for that
        values = rng.normal(size=(10, 1)) + rng.normal(size=(10, 10))
        _, low, high = median_interval(values)
        hits += low <= 0 <= high
    assert hits >= 176


def test_the_ledger_holds_each_claim_once():
    assert [c for c in LEDGER if c.startswith("R")] == [f"R{i}" for i in range(1, 10)]
    assert all(c.measure and c.refuted_by for c in LEDGER.values())
    assert [c.id for c in pick(LEDGER, ["r9", "R1"])] == ["R1", "R9"]
    assert [c.id for c in pick(LEDGER, ["t", "R2"])] == ["R2", "T1", "T2"]
    assert len(pick(LEDGER, ["all"])) == len(LEDGER)
    with pytest.raises(ft.FedtaperError, match="no claim"):
        pick(LEDGER, ["Z1"])
