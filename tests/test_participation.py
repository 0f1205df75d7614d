"""Who takes part: exactly k of L, and what a mean over those present gives each."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.core.participation import Chances, Exactly, mean_shares

NUMBERS = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6)


def by_enumeration(rates, q):
    """All sets of clients, one after another."""
    total = np.zeros(len(q))
    for there in itertools.product([0, 1], repeat=len(q)):
        there = np.array(there)
        if there.any():
            chance = np.prod(np.where(there, rates, 1 - np.array(rates)))
            total += chance * there * q / (there @ q)
    return total


@given(NUMBERS, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_shares_of_a_mean_over_those_present(rates, seed):
    q = np.random.default_rng(seed).uniform(0.1, 5.0, len(rates))
    found = mean_shares(Chances(tuple(rates)), q)
    assert found == pytest.approx(by_enumeration(rates, q), rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_exactly_k(k):
    q = np.array([0.1, 0.2, 0.3, 0.4])
    there = Exactly(k).present(10, 3010, seed=5, num_clients=4)
    assert np.all(there.sum(axis=1) == k)
    assert np.abs(there.mean(axis=0) - k / 4).max() < 0.04
    assert np.array_equal(there[100:200], Exactly(k).present(110, 210, 5, 4))
    sets = [np.isin(range(4), chosen) for chosen in itertools.combinations(range(4), k)]
    exact = np.mean([s * q / (s @ q) for s in sets], axis=0)
    assert mean_shares(Exactly(k), q) == pytest.approx(exact, rel=1e-12)
    assert mean_shares(Exactly(k), np.stack([q, q / 2])) == pytest.approx(np.stack([exact] * 2))


def test_too_many_are_refused():
    with pytest.raises(ft.FedtaperError, match="there are 3"):
        Exactly(4).rates(3)


def test_the_table_of_draws_is_the_single_draws():
    from fedtaper.core import draws

    table = draws.uniform_table(7, [0, 3, 5], 10, 14)
    single = [[draws.uniform(7, i, k) for i in (0, 3, 5)] for k in range(10, 14)]
    assert np.array_equal(table, single)


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize("over", ["all", "present"])
def test_the_two_means_by_hand(engine, over):
    problem = ft.LinearRegression(num_clients=4, samples=30, feature_spread=1.0)
    e = ft.Experiment(
        problem, ft.Constant(0.05), rounds=6, local_steps=2, batch_size=5,
        participation=Exactly(2), average_over=over, server=ft.Average("samples"),
    )  # fmt: skip
    run = ft.run(e, engine=engine, updates=True)
    w = run.w0
    for k, there in enumerate(e.present(0, 6, 0)):
        assert np.array_equal(run.update_norms[k] > 0, there)
        share = there / (4 if over == "all" else 2)
        w = w + share @ run.updates[k]
        assert run.w[k] == pytest.approx(w, rel=1e-12)
        w = run.w[k]


def test_influence_says_which_mean():
    problem = ft.LinearRegression(num_clients=2, samples=30)
    how = {"rounds": 5, "local_steps": 1, "batch_size": 5, "participation": (1.0, 0.5)}
    over_all = ft.Experiment(problem, ft.Constant(0.1), **how).influence()
    present = ft.Experiment(problem, ft.Constant(0.1), **how, average_over="present").influence()
    assert over_all.raw == pytest.approx([0.05, 0.025])
    assert present.raw == pytest.approx([0.075, 0.025])  # alone half the time, else half each
    with pytest.raises(ft.FedtaperError, match="average_over"):
        ft.Experiment(problem, ft.Constant(0.1), **how, average_over="some")


def test_in_a_file():
    e = ft.Experiment(
        ft.LinearRegression(num_clients=4), ft.Constant(0.1), rounds=5, local_steps=1,
        participation=Exactly(3), average_over="present", names=("a", "b", "c", "d"),
    )  # fmt: skip
    assert 'participation = { kind = "exactly", k = 3 }' in ft.to_toml(e)
    back = ft.from_toml(ft.to_toml(e))
    assert (back.participation, back.average_over, back.names) == (Exactly(3), "present", e.names)


@pytest.mark.parametrize("name", list(ft.PRESETS))
def test_presets_in_a_file(name):
    settings = {"local_steps": 2} | ft.PRESETS[name]
    e = ft.Experiment(ft.LinearRegression(num_clients=2), ft.Constant(0.1), rounds=5, **settings)
    back = ft.from_toml(ft.to_toml(e))
    assert (back.local, back.server) == (e.local, e.server)
