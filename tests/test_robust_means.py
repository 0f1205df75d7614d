"""Robust means: what one client can do at most, and what they do to influence."""

from dataclasses import replace

import numpy as np
import pytest
from flower_loop import LoopGrid, Source
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedtaper as ft
from fedtaper.deploy.server import serve
from fedtaper.engines import gate
from fedtaper.testing import check_server_rule

RULES = (ft.Median(), ft.Trimmed(each=1), ft.Clipped(), ft.Clipped(norm=0.05, by="samples"))
SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))


def experiment(problem, **changes):
    basic = {"rounds": 6, "local_steps": 3, "batch_size": 10, "seed": 4}
    return ft.Experiment(problem, changes.pop("schedules", SCHEDULES), **(basic | changes))


numbers = st.floats(-100, 100)


@settings(max_examples=60, deadline=None)
@given(
    honest=arrays(np.float64, (6, 3), elements=numbers),
    lies=arrays(np.float64, (2, 3), elements=st.floats(-1e300, 1e300)),
)
def test_liars_in_the_minority_move_no_coordinate_beyond_the_honest(honest, lies):
    everyone = np.concatenate([honest, lies])
    weights = np.full(8, 1 / 8)
    low, high = honest.min(axis=0), honest.max(axis=0)
    room = 1e-12 * (1 + np.abs(honest).max())
    for rule in (ft.Median(), ft.Trimmed(each=2)):
        found = rule.combine(everyone, weights)
        assert np.all(found >= low - room)
        assert np.all(found <= high + room)


@settings(max_examples=60, deadline=None)
@given(updates=arrays(np.float64, (5, 3), elements=numbers), scale=st.floats(1, 1e100))
def test_a_clipped_client_moves_the_model_by_its_weight_times_the_norm_at_most(updates, scale):
    rule, weights = ft.Clipped(norm=2.0), np.full(5, 0.2)
    other = updates.copy()
    other[0] *= scale
    moved = np.linalg.norm(rule.combine(other, weights) - rule.combine(updates, weights))
    assert moved <= 2 * 0.2 * 2.0 * (1 + 1e-9)
    loose = ft.Clipped(norm=1e9).combine(updates, weights)
    np.testing.assert_allclose(loose, weights @ updates, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(updates=arrays(np.float64, (5, 2), elements=numbers), each=st.integers(1, 9))
def test_trimming_by_an_independent_computation(updates, each):
    cut = min(each, 2)
    columns = [sorted(column)[cut : 5 - cut] for column in updates.T.tolist()]
    expected = [sum(column) / len(column) for column in columns]
    np.testing.assert_allclose(ft.Trimmed(each).combine(updates, None), expected, atol=1e-9)
    middle = [sorted(column)[2] for column in updates.T.tolist()]
    np.testing.assert_allclose(ft.Median().combine(updates, None), middle)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_flower_and_the_reference_agree(tiny, rule):
    e = experiment(tiny, server=rule, participation=0.8)
    source = Source(e, ft.Federation(("north", "south", "west"), deadline=0.3))
    theirs = serve(LoopGrid(source), source, None)
    mine = ft.run(e)
    assert mine.engine == "reference"
    np.testing.assert_allclose(theirs.w, mine.w, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_networks_on_the_cpu_and_over_flower_agree(rule):
    problem = ft.ImageClassification("digits", split=ft.Iid(), model="cnn", num_clients=3)
    e = ft.Experiment(problem, SCHEDULES, rounds=1, local_epochs=1, batch_size=64, server=rule)
    source = Source(e, ft.Federation(("north", "south", "west"), deadline=60.0))
    theirs = serve(LoopGrid(source), source, None)
    np.testing.assert_allclose(theirs.w, ft.run(e).w, atol=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_they_keep_the_contract(rule):
    check_server_rule(rule)


def test_a_round_without_anyone_changes_nothing(tiny):
    e = experiment(tiny, server=ft.Median(), participation=0.15, rounds=12)
    run = ft.run(e)
    nobody = ~(run.update_norms > 0).any(axis=1)
    assert nobody.any()
    assert np.isfinite(run.w).all()
    assert (run.metrics["change"][nobody] == 0).all()


def test_a_lone_attacker_decides_the_mean_and_not_the_robust_ones():
    problem = ft.LinearRegression(num_clients=5, dim=3, samples=200, feature_spread=1.0, seed=3)
    e = ft.Experiment(
        problem, ft.Power(0.1, 0.76), rounds=80, local_steps=3, batch_size=40,
        behaviours={4: ft.Noise(100.0)},
    )  # fmt: skip
    target = problem.equilibrium([1, 1, 1, 1, 0])
    away = {}
    for rule in (ft.Average(), ft.Median(), ft.Trimmed(), ft.Clipped()):
        w = ft.run(replace(e, server=rule), engine="reference").w
        away[type(rule).__name__] = float(np.linalg.norm(w[-20:].mean(axis=0) - target))
    assert away["Average"] > 5 * max(away["Median"], away["Trimmed"], away["Clipped"]), away


def test_what_robust_means_do_to_influence_is_said(tiny):
    for rule in RULES:
        e = experiment(tiny, server=rule)
        for ask in (ft.limit_ode, lambda e: ft.forecast(e, 1e5), ft.intervals):
            with pytest.raises(ft.FedtaperError, match="weighted mean"):
                ask(e)
    assert ft.Median().erases_influence
    assert ft.Trimmed().erases_influence
    assert ft.Clipped().erases_influence
    assert not ft.Clipped(norm=5.0).erases_influence
    with pytest.raises(ft.FedtaperError, match="undoes the step sizes"):
        ft.plan(target=[1, 0.5, 0.1], rounds=10, local_steps=2, server=ft.Median())


def test_they_are_written_and_read_and_the_gate_knows_them(tiny):
    for rule in RULES:
        e = experiment(ft.LinearRegression(num_clients=3), server=rule)
        assert ft.from_toml(ft.to_toml(e)).server == rule
    with pytest.raises(ft.FedtaperError, match="compiled engine"):
        ft.run(experiment(tiny, server=ft.Median()), engine="compiled")
    assert any(row[0].startswith("robust means") for row in gate.table())


@pytest.mark.parametrize(
    "bad", [lambda: ft.Trimmed(0), lambda: ft.Trimmed(1.5), lambda: ft.Clipped(0.0),
            lambda: ft.Clipped(float("nan")), lambda: ft.Clipped(True), lambda: ft.Clipped(by="x")],
)  # fmt: skip
def test_bad_settings_are_one_line(bad):
    with pytest.raises(ft.FedtaperError):
        bad()


def test_noise_for_privacy_is_refused_with_them(tiny):
    agreed = ft.Federation(("a", "b", "c"), clipping_norm=1.0, noise_multiplier=1.0)
    source = Source(experiment(tiny, server=ft.Median()), agreed)
    with pytest.raises(ft.FedtaperError, match="noise_multiplier needs a weighted mean"):
        serve(LoopGrid(source), source, None)
