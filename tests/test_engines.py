import numpy as np
import pytest
from scipy import stats

import fedtaper as ft
from fedtaper import engines
from fedtaper.core import draws
from fedtaper.core.protocols import Options
from fedtaper.engines import compiled, reference

TAPERS = [ft.Power(0.3, 0.76), ft.Power(0.5, 1.0), ft.Power(0.1, 0.9, offset=3)]


def small(**settings):
    problem = settings.pop("problem", None) or ft.LinearRegression(
        num_clients=3, dim=2, samples=(40, 60, 51), feature_spread=1.0, seed=7
    )
    given = {"rounds": 25, "local_steps": 3, "batch_size": 7, "seed": 5} | settings
    return ft.Experiment(problem, given.pop("schedules", TAPERS), **given)


CASES = {
    "plain": {},
    "even batch": {"batch_size": 8},
    "batch of one": {"batch_size": 1},
    "constant": {"schedules": ft.Constant(0.1)},
    "own steps": {"local_steps": (1, 4, 2)},
    "own steps, nova": {"local_steps": (1, 4, 2), "server": ft.Normalised()},
    "step sums, nova": {"local_steps": (1, 4, 2), "server": ft.Normalised(over="step_sums")},
    "by samples": {"server": ft.Average(by="samples")},
    "prox": {"local": ft.Proximal(0.7)},
    "adagrad": {"server": ft.Adagrad()},
    "adam": {"server": ft.Adam(mean=ft.Average(by="samples"))},
    "yogi": {"server": ft.Yogi(eta=0.5)},
    "epochs": {"local_steps": None, "local_epochs": 2, "clock": "epoch"},
    "round clock": {"clock": "round"},
    "participation": {"participation": (1.0, 0.4, 0.7)},
    "many features": {"problem": ft.LinearRegression(3, 20, 60, 0.3, seed=1)},
    "one feature": {"problem": ft.LinearRegression(3, 1, 60, 1.0, seed=1)},
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_agrees_with_reference(name):
    e = small(**CASES[name])
    slow = ft.run(e, engine="reference", seeds=[5, 9])
    fast = ft.run(e, engine="compiled", seeds=[5, 9])
    np.testing.assert_allclose(fast.w, slow.w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fast.update_norms, slow.update_norms, rtol=1e-9, atol=1e-12)


def test_an_independent_loop_gives_the_same(tiny):
    """Eqn3 written out with nothing of the library but the draws."""
    e = ft.Experiment(tiny, TAPERS, rounds=6, local_steps=4, batch_size=5, seed=3)
    w, n = tiny.initial(3), 0
    for k in range(6):
        models = []
        for i in range(3):
            mine = w.copy()
            for s in range(4):
                picks = draws.batch(3, i, k, s, 5, 40)
                x, y = tiny.x[i][picks], tiny.y[i][picks]
                a = TAPERS[i].c / (n + s + 1 + TAPERS[i].offset) ** TAPERS[i].delta
                mine = mine - a * (x.T @ (x @ mine - y)) / 5
            models.append(mine)
        w, n = np.mean(models, axis=0), n + 4
        np.testing.assert_allclose(ft.run(e).w[k], w, rtol=1e-12)


def test_seeds_do_not_depend_on_the_batch_they_are_run_in():
    e = small()
    many = ft.run(e, seeds=range(40))
    for s in (0, 17, 39):
        np.testing.assert_array_equal(many.w[s], ft.run(e, seeds=[s]).w[0])


def test_blocks_of_rounds_join_without_a_seam():
    e = small(rounds=30, server=ft.Adam(), participation=0.8)
    whole = ft.run(e, seeds=[1, 2])
    for engine in (compiled.ENGINE, reference.ENGINE):
        state = engines.init(e, np.array([1, 2]))
        session = engine.open(e, state, Options())
        parts = [session.advance(rounds).w for rounds in (7, 1, 22)]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole.w, rtol=1e-10, atol=1e-12)


def test_batches_are_uniform_and_independent():
    picks = np.concatenate([draws.batch(1, 2, k, 0, 50, 20) for k in range(2000)])
    assert stats.chisquare(np.bincount(picks, minlength=20)).pvalue > 1e-3
    pairs = picks[:-1] * 20 + picks[1:]
    assert stats.chisquare(np.bincount(pairs, minlength=400)).pvalue > 1e-3
    assert (
        len(
            {
                tuple(draws.batch(1, c, k, s, 9, 1000))
                for c in range(3)
                for k in range(3)
                for s in range(3)
            }
        )
        == 27
    )


def test_mini_batch_gradients_are_unbiased(tiny):
    w = np.array([2.0, -1.0])
    found = [tiny.gradient(1, w, draws.batch(0, 1, k, 0, 5, 40)) for k in range(4000)]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(4000)
    assert np.all(np.abs(mean + tiny.mean_field(w)[1]) < 4 * error)


def test_participation_has_its_rate():
    e = small(rounds=4000, participation=(1.0, 0.25, 0.6))
    share = e.present(0, 4000, seed=0).mean(axis=0)
    np.testing.assert_allclose(share, [1, 0.25, 0.6], atol=0.03)


def test_first_model_is_the_mean_of_the_clients_draws():
    problem = ft.LinearRegression(num_clients=10, samples=10)
    starts = np.array([problem.initial(s) for s in range(3000)])
    assert np.std(starts) == pytest.approx(20 / np.sqrt(10), rel=0.05)


def test_a_client_with_more_steps_counts_more_and_fednova_evens_it():
    problem = ft.LinearRegression(num_clients=2, samples=200, feature_spread=1.0, seed=2)
    same = ft.Power(0.02, 0.76)
    plain = ft.Experiment(problem, same, rounds=50, local_steps=(1, 3), batch_size=10)
    assert plain.influence().effective[1] == pytest.approx(3, rel=0.01)
    nova = ft.Experiment(
        problem, same, rounds=50, local_steps=(1, 3), batch_size=10, server=ft.Normalised()
    )
    assert nova.influence().effective[1] == pytest.approx(1, rel=0.01)
    np.testing.assert_allclose(nova.limit_influence, [1, 1])
    np.testing.assert_allclose(plain.limit_influence, [1, 3])
