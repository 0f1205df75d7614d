import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

import fedtaper as ft


def test_paper_defaults():
    problem = ft.LinearRegression()
    assert [x.shape for x in problem.x] == [(5000, 3)] * 10
    assert np.std(problem.x[3]) == pytest.approx(5, rel=0.02)
    for i in range(10):  # 10 dB: the noise has a tenth of the signal's variance
        signal = problem.x[i] @ problem.client_w[i]
        noise = problem.y[i] - signal
        assert np.var(signal) / np.var(noise) == pytest.approx(10, rel=0.12)


def test_variants():
    problem = ft.LinearRegression(
        num_clients=3, dim=4, samples=(2000, 3000, 4000), feature_spread=(1, 2, 3),
        true_w=(1.0, 2.0, 3.0, 4.0), snr_db=(0.0, 20.0, math.inf), seed=3,
    )  # fmt: skip
    assert [len(y) for y in problem.y] == [2000, 3000, 4000]
    np.testing.assert_allclose([np.std(x) for x in problem.x], [1, 2, 3], rtol=0.03)
    np.testing.assert_allclose(problem.y[2], problem.x[2] @ [1, 2, 3, 4])
    signal = problem.x[0] @ np.array([1, 2, 3, 4.0])
    assert np.var(signal) / np.var(problem.y[0] - signal) == pytest.approx(1, rel=0.1)


def test_data_is_by_seed_and_by_client():
    a, b = ft.LinearRegression(num_clients=3), ft.LinearRegression(num_clients=5)
    np.testing.assert_array_equal(a.x[2], b.x[2])  # more clients leave the others' data alone
    assert not np.array_equal(a.x[0], ft.LinearRegression(num_clients=3, seed=1).x[0])


def test_equilibrium_minimises_the_weighted_loss(tiny):
    p = np.array([1.0, 0.3, 0.0])

    def loss(w):
        return sum(p[i] * np.mean((tiny.x[i] @ w - tiny.y[i]) ** 2) for i in range(3))

    found = minimize(loss, np.zeros(2), tol=1e-14).x
    np.testing.assert_allclose(tiny.equilibrium(p), found, atol=1e-6)
    own = np.linalg.lstsq(tiny.x[2], tiny.y[2])[0]
    np.testing.assert_allclose(tiny.equilibrium([0, 0, 1]), own, rtol=1e-10)


def test_gradient_is_that_of_the_loss(tiny):
    w = np.array([0.3, -2.0])
    everything = slice(None)
    for i in range(3):
        numeric = approx_fprime(w, lambda v, i=i: tiny.losses(v)[i], 1e-7)
        np.testing.assert_allclose(tiny.gradient(i, w, everything), numeric, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tiny.mean_field(w)[i], -tiny.gradient(i, w, everything))
        direct = 0.5 * np.mean((tiny.x[i] @ w - tiny.y[i]) ** 2)
        assert tiny.losses(w)[i] == pytest.approx(direct)


def test_batched_shapes_agree_with_single_ones(tiny):
    w = np.random.default_rng(0).normal(size=(4, 5, 2))
    assert tiny.mean_field(w).shape == (4, 5, 3, 2)
    np.testing.assert_allclose(tiny.mean_field(w)[1, 2], tiny.mean_field(w[1, 2]))
    np.testing.assert_allclose(tiny.losses(w)[3, 4], tiny.losses(w[3, 4]))
    p = np.array([[1, 1, 1], [1, 0, 0.5]])
    np.testing.assert_allclose(tiny.equilibrium(p)[1], tiny.equilibrium(p[1]))


def test_curvature_is_the_largest_eigenvalue(tiny):
    for i in range(3):
        singular = np.linalg.svd(tiny.x[i], compute_uv=False)[0]
        assert tiny.curvature[i] == pytest.approx(singular**2 / 40)


def test_metrics_against_plain_loops(tiny):
    rng = np.random.default_rng(1)
    w = rng.normal(size=(2, 3, 2))
    p_n = rng.uniform(0.1, 1, size=(3, 3))
    found = tiny.metrics(w, p_n, np.ones(3))
    for s in range(2):
        for k in range(3):
            field = tiny.mean_field(w[s, k])
            pull = sum(p_n[k, i] * field[i] for i in range(3))
            assert found["gradient_norm"][s, k] == pytest.approx(np.linalg.norm(pull))
            away = w[s, k] - tiny.equilibrium(p_n[k])
            assert found["error"][s, k] == pytest.approx(np.linalg.norm(away))
            away = w[s, k] - tiny.equilibrium(np.ones(3))
            assert found["error_limit"][s, k] == pytest.approx(np.linalg.norm(away))
            assert found["train_loss"][s, k] == pytest.approx(tiny.losses(w[s, k]).mean())


@pytest.mark.parametrize(("clients", "dim"), [(3, 2), (10, 3), (7, 17)])
def test_metrics_do_not_depend_on_the_block_of_rounds(clients, dim):
    """To the bit: a resumed run and a watched one are measured in other blocks than a whole one."""
    problem = ft.LinearRegression(num_clients=clients, dim=dim, samples=60, seed=3)
    rng = np.random.default_rng(0)
    w, p_n = rng.normal(size=(4, 50, dim)), rng.random((50, clients))
    whole = problem.metrics(w, p_n, p_n[0])
    for seeds, rounds in ((1, 1), (1, 3), (3, 1), (4, 2), (2, 49)):
        block = problem.metrics(w[:seeds, :rounds], p_n[:rounds], p_n[0])
        for name, values in block.items():
            assert np.array_equal(values, whole[name][:seeds, :rounds]), name


def test_own_arrays(tiny):
    problem = ft.LinearRegression.from_arrays(tiny.x, tiny.y, init_spread=1.0)
    assert (problem.num_clients, problem.dim, problem.samples) == (3, 2, (40, 40, 40))
    np.testing.assert_allclose(problem.equilibrium([1, 1, 1]), tiny.equilibrium([1, 1, 1]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, y: (x, y[:2]), "match"),
        (lambda x, y: ([x[0], x[1][:0], x[2]], [y[0], y[1][:0], y[2]]), "client 1 is empty"),
        (lambda x, y: ([x[0], x[1], x[2][:, :1]], y), "client 2 has 1 features"),
        (lambda x, y: ([x[0] * np.nan, x[1], x[2]], y), r"client 0: x\[0, 0\] is nan"),
        (lambda x, y: (x, [y[0], y[1] * np.inf, y[2]]), "client 1: y"),
        (lambda x, y: (x, [y[0][:5], y[1], y[2]]), "client 0: x has shape"),
        (lambda x, y: ([], []), "match"),
    ],
)
def test_bad_arrays_are_refused(tiny, change, text):
    x, y = change(list(tiny.x), list(tiny.y))
    with pytest.raises(ft.FedtaperError, match=text):
        ft.LinearRegression.from_arrays(x, y)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_clients": 0}, {"dim": 0}, {"samples": 0}, {"samples": (5, 5)}, {"samples": 2.5},
        {"feature_spread": -1}, {"feature_spread": math.nan}, {"sigma_w": -1}, {"seed": -1},
        {"true_w": (1.0,)}, {"true_w": (1.0, math.nan, 0.0)}, {"snr_db": (1, 2)},
        {"snr_db": math.nan},
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings):
    with pytest.raises(ft.FedtaperError):
        ft.LinearRegression(**settings)


def test_bad_influences_are_refused(tiny):
    for p in ([1, 1], [0, 0, 0], [1, -1, 0], [math.nan, 1, 1], 1.0):
        with pytest.raises(ft.FedtaperError):
            tiny.equilibrium(p)
    flat = ft.LinearRegression.from_arrays([np.ones((5, 2))], [np.ones(5)])
    with pytest.raises(ft.FedtaperError, match="independent"):
        flat.equilibrium([1.0])


def test_short_sums_have_numpys_bits():
    from fedtaper.core.sums import norms, summed

    random = np.random.default_rng(0)
    for updates in (1, 2, 5, 7, 8, 12):
        for clients in (1, 3, 10):
            a = random.normal(size=(60, updates, clients)) * 10.0 ** random.integers(-6, 6)
            apart = np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 2, 0)), 0, 2)
            for given in (a, apart, a[:1], a[:0]):
                assert np.array_equal(summed(given), given.sum(axis=1))
                assert np.array_equal(norms(given), np.linalg.norm(given, axis=-1))


def test_losses_are_the_same_wherever_they_are_asked_for(tiny):
    from fedtaper.engines.steered import client_losses
    from fedtaper.theory.losses import losses_of

    w = np.array([0.3, -2.0])
    assert np.array_equal(client_losses(tiny, w), tiny.losses(w))
    assert np.array_equal(losses_of(tiny).values(w), tiny.losses(w))
