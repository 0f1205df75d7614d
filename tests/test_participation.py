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
