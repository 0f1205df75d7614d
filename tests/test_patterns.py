"""Patterns of participation: their rates are those of the rounds, and any stretch stands alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError
from fedtaper.core.participation import Chances, Exactly, Participation
from fedtaper.core.patterns import Cyclic, Listed, OnOff

PATTERNS = [
    Chances((0.1, 0.5, 1.0)),
    Exactly(2),
    Cyclic(3),
    OnOff((0.1, 0.5, 0.9), mean_on=(5.0, 20.0, 30.0)),
    Listed([[0], [0, 1], [2], []]),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: type(p).__name__)
def test_rates_are_those_of_the_rounds(pattern):
    assert isinstance(pattern, Participation)
    there = np.stack([pattern.present(0, 5000, seed, 3) for seed in range(20)])
    spread = there.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(20)
    found = there.mean(axis=(0, 1))
    assert np.all(np.abs(found - pattern.rates(3)) <= 5 * spread + 5e-4)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: type(p).__name__)
@settings(max_examples=10, deadline=None)
@given(first=st.integers(0, 300), cut=st.integers(0, 50), seed=st.integers(0, 10))
def test_any_stretch_stands_alone(pattern, first, cut, seed):
    whole = pattern.present(0, first + 50, seed, 3)[first:]
    parts = [
        pattern.present(first, first + cut, seed, 3),
        pattern.present(first + cut, first + 50, seed, 3),
    ]
    assert np.array_equal(whole, np.concatenate(parts))


def test_on_and_off_last_as_long_as_they_should():
    pattern = OnOff(0.2, mean_on=8.0)
    x = pattern.present(0, 200_000, 3, 1)[:, 0]
    stays, comes = x[1:][x[:-1]].mean(), x[1:][~x[:-1]].mean()
    assert stays == pytest.approx(1 - 1 / 8, abs=0.01)
    assert comes == pytest.approx(0.25 / 8, abs=0.005)
    lag = np.corrcoef(x[:-2], x[2:])[0, 1]
    assert lag == pytest.approx((stays - comes) ** 2, abs=0.02)  # Markov: lag 2 is lag 1 squared


def test_exactly_k_by_hand():
    there = Exactly(2).present(4, 9, 1, 5)
    for row, k in enumerate(range(4, 9)):
        u = [draws.uniform(1, i, k) for i in range(5)]
        assert set(np.flatnonzero(there[row])) == set(np.argsort(u)[:2].tolist())


@pytest.mark.parametrize("pattern", PATTERNS[2:], ids=lambda p: type(p).__name__)
def test_patterns_in_a_run(pattern, tiny):
    settings = {"rounds": 12, "local_steps": 2, "batch_size": 10, "participation": pattern}
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), **settings)
    run = ft.run(e, progress=False)
    assert np.array_equal(run.update_norms > 0, pattern.present(0, 12, 0, 3))
    assert np.allclose(e.rates, pattern.rates(3))
    assert ft.from_toml(ft.to_toml(e)) == e


def test_bad_patterns():
    with pytest.raises(FedtaperError, match="more groups"):
        Cyclic(4).rates(3)
    with pytest.raises(FedtaperError, match="names client 3"):
        Listed([[3]]).rates(3)
    with pytest.raises(FedtaperError, match="empty"):
        Listed([])
    with pytest.raises(FedtaperError, match="list of clients"):
        Listed([1, 2])
    with pytest.raises(FedtaperError, match="mean_on of at least 10"):
        OnOff(0.9, mean_on=2.0).rates(3)
    with pytest.raises(FedtaperError, match="rate"):
        OnOff(1.5).rates(3)
