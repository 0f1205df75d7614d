"""The audit: its equations against exact cases, its verdicts on small federations."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.auditing import directions, replay, robust, taper, trace_of
from fedtaper.auditing import sizes as fit_sizes
from fedtaper.core import draws
from fedtaper.core.sketch import sketch
from fedtaper.paper import audit as study
from fedtaper.paper.federations import FRESH, federation, looks, plain_slope
from fedtaper.storage import config

DECLARED = ft.Power(0.1, 0.76)
CLOCK = 5.0 * np.arange(1, 101)


def steps(delta=0.76, c=0.1, rounds=100):
    n = np.arange(1, 5 * rounds + 1, dtype=float).reshape(rounds, 5)
    return c / n**delta, n


def exact(excess, curvature, place, w):
    """Noise-free updates by the product itself: (1 - prod(1 - a k)) (place - w)."""
    a, _ = steps(0.76 + excess)
    return (1 - np.prod(1 - a * curvature, axis=1))[:, None] * (place - w)


def declared(clients):
    a, n = steps()
    row = [a.sum(1), (a**2).sum(1), (a * np.log(n)).sum(1) / a.sum(1), a.max(1)]
    return taper.Declared(*(np.tile(r, (clients, 1)) for r in row))


def test_contraction_agrees_with_the_product():
    d = declared(1)
    a, _ = steps()
    for curvature in (0.1, 1.0, 10.0, 25.0):
        g, bend, variance, trust = taper.shape(d, np.log([curvature]), np.zeros(1))
        product = 1 - np.prod(1 - a * curvature, axis=1)
        used = trust[0] > 0.5
        assert used.sum() > 50
        assert np.allclose(g[0][used], product[used], rtol=0.015)
        up = taper.shape(d, np.log([curvature]) + 1e-6, np.zeros(1))[0]
        assert np.allclose(bend, (up - g) / 1e-6, rtol=1e-3, atol=1e-8)
        damped = np.array(
            [
                sum(row[m] ** 2 * np.prod(1 - row[m + 1 :] * curvature) ** 2 for m in range(5))
                for row in a
            ]
        )
        late = a[:, 0] * curvature < 0.05
        assert np.allclose(variance[0][late], damped[late], rtol=0.05)


@pytest.mark.parametrize("excess", [0.0, 0.14, 0.24])
@pytest.mark.parametrize("curvature", [2.0, 25.0])
def test_exact_updates_give_the_exact_excess(excess, curvature):
    rng = np.random.default_rng(1)
    w = np.cumsum(rng.normal(size=(100, 3)) / np.arange(1, 101)[:, None] ** 1.2, axis=0)
    u = np.stack([exact(excess, curvature, rng.normal(size=3) * 5, w) for _ in range(4)])
    fit = taper.fit_updates(u, w, declared(4), np.ones((4, 100)))
    assert np.allclose(fit.excess, excess, atol=0.01)
    assert np.allclose(fit.log_curvature, math.log(curvature), atol=0.1)
    assert np.all(fit.explained > 0.999)


def test_a_plain_slope_is_biased_and_the_fit_is_not():
    """The bend of a round that approaches its own optimum: 0.07 off by round 100."""
    found = [look for s in range(12) for look in looks(s, (100,)) if look.witness == "updates"]
    honest = [(look, i) for look in found for i, k in enumerate(look.kinds) if k == "honest"]
    slope = np.median([look.slope[i] for look, i in honest])
    fitted = np.median([look.finding.excess[i] for look, i in honest])
    assert -0.09 < slope < -0.05
    assert abs(fitted) < 0.01


def test_common_motion_is_taken_out():
    """All clients swing together: nobody is accused, and the one that fades is found."""
    rng = np.random.default_rng(0)
    n = CLOCK
    swing = np.exp(0.5 * np.sin(np.log(n) * 2))
    sums = steps()[0].sum(1)
    sizes = (sums * swing)[:, None] * rng.lognormal(0, 0.05, (100, 10))
    fit = taper.fit_peers(sizes.T, declared(10), np.ones((10, 100)))
    assert np.all(np.abs(fit.excess / fit.error) < 3)
    sizes[:, 4] *= n**-0.24
    fit = taper.fit_peers(sizes.T, declared(10), np.ones((10, 100)))
    assert fit.excess[4] == pytest.approx(0.24, abs=0.03)
    assert fit.excess[4] / fit.error[4] > 5


def test_stretches_of_rounds():
    stretch = robust.bins(np.arange(5000))
    assert stretch[0] == 0
    assert np.all(np.isin(np.diff(stretch), [0, 1]))
    assert stretch[-1] < robust.ROUNDS
    values = np.arange(5000.0)[None]
    mean = robust.averaged(values, stretch, 1)[0]
    assert mean[0] == 0
    assert mean[-1] == pytest.approx(values[0][stretch == stretch[-1]].mean())
    gaps = np.array([[1.0, np.nan, 3.0, np.nan]])
    assert robust.averaged(gaps, np.array([0, 0, 1, 2]), 1)[0, :2].tolist() == [1, 3]
    assert np.isnan(robust.averaged(gaps, np.array([0, 0, 1, 2]), 1)[0, 2])


def test_random_directions_are_called_noise_at_the_stated_rate():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(4000, 40, 3))
    called = directions.noise(u, np.ones((4000, 40)))
    assert called.mean() == pytest.approx(1 - directions.CHANCE, abs=0.002)
    steady = np.ones(3) + 0.5 * rng.normal(size=(50, 40, 3))
    assert not directions.noise(steady, np.ones((50, 40))).any()


def test_a_small_client_without_direction_is_not_judged():
    rng = np.random.default_rng(0)
    u = np.ones((10, 60, 3)) + 0.1 * rng.normal(size=(10, 60, 3))
    u[0] = 0.05 * rng.normal(size=(60, 3))  # arrived: mini-batch noise is all that is left
    assert not directions.noise(u, np.ones((10, 60)))[0]
    u[0] *= 20
    assert directions.noise(u, np.ones((10, 60)))[0]


def test_sketch_is_linear_and_keeps_angles():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300, 5000))
    assert np.allclose(sketch(2 * a + b), 2 * sketch(a) + sketch(b))
    assert sketch(a).shape == (300, 16)
    norms = (sketch(a) ** 2).sum(axis=1) / (a**2).sum(axis=1)
    assert norms.mean() == pytest.approx(1, abs=0.1)
    small = rng.normal(size=(4, 16))
    assert sketch(small) is small


def attacked(seed=0, rounds=100):
    chosen = {
        0: ft.OtherSchedule(ft.Power(0.1, 1.0, 4)),
        1: ft.Idle(),
        2: ft.Noise(),
        3: ft.Copies(),
    }
    return ft.Experiment(
        ft.LinearRegression(num_clients=12, seed=seed),
        ft.Power(0.1, 0.76, 4),
        rounds=rounds,
        local_steps=5,
        behaviours=chosen,
        seed=seed,
    )


@pytest.fixture(scope="module")
def run():
    return ft.run(attacked(), updates=True)


def test_verdicts_from_updates(run):
    found = ft.audit(run)
    assert [c.verdict for c in found.clients] == [
        "fading", "idle", "noise", "copying", *["as declared"] * 8
    ]  # fmt: skip
    first = found.clients[0]
    assert first.delta_low < 1.0 < first.delta_high
    true_p = 504.0**-0.24
    assert first.p_low < true_p < first.p_high
    assert first.since <= 40
    assert found.clients[1].p == 0
    assert [c.client for c in found.accused] == [0, 1, 2, 3]
    assert "secure aggregation" in str(found)


def test_sizes_alone_say_what_they_cannot_tell(run):
    found = ft.audit(run.update_norms, n=run.n, schedules=run.experiment.schedules, quadratic=True)
    assert found.witness == "norms"
    for i in (2, 3):
        client = found.clients[i]
        assert client.verdict in ("as declared", "cannot tell yet")
        if client.verdict == "as declared":
            assert any("directions" in note for note in client.notes)
    assert found.clients[1].verdict == "idle"
    assert "directions can tell" in str(found)


def test_online_is_the_same_as_afterwards(run):
    schedules = run.experiment.schedules
    whole = ft.audit(
        run.update_norms, n=run.n, schedules=schedules, updates=run.updates, quadratic=True
    )
    auditor = ft.Auditor(schedules, quadratic=True)
    for k in range(100):
        auditor.add(n=run.n[k], updates=run.updates[k])
        if k == 49:
            half = auditor.result()
    again = auditor.result()
    assert again == whole or str(again) == str(whole)
    assert half.rounds == 50
    assert [c.verdict for c in again.clients] == [c.verdict for c in ft.audit(run).clients]


def test_units_and_order_do_not_matter(run):
    schedules = run.experiment.schedules
    order = np.random.default_rng(0).permutation(12)
    base = ft.audit(run.update_norms, n=run.n, schedules=schedules, quadratic=True)
    scaled = ft.audit(
        1e3 * run.update_norms[:, order], n=run.n, schedules=schedules, quadratic=True
    )
    for place, i in enumerate(order):
        assert scaled.clients[place].verdict == base.clients[i].verdict
        if not math.isnan(base.clients[i].delta):
            assert scaled.clients[place].delta == pytest.approx(base.clients[i].delta, abs=2e-3)


def test_too_early_to_tell(run):
    found = ft.audit(
        run.update_norms[:6], n=run.n[:6], schedules=run.experiment.schedules, quadratic=True
    )
    assert {c.verdict for c in found.clients} == {"cannot tell yet", "idle"}


def test_an_absent_client_is_not_idle():
    rng = np.random.default_rng(0)
    sizes = steps()[0].sum(1)[:, None] * rng.lognormal(0, 0.05, (100, 5))
    sizes[60:, 2] = np.nan
    found = ft.audit(sizes, n=CLOCK, schedules=[DECLARED] * 5, quadratic=True)
    assert found.clients[2].verdict != "idle"
    sizes[60:, 2] = 0
    found = ft.audit(sizes, n=CLOCK, schedules=[DECLARED] * 5, quadratic=True)
    assert (found.clients[2].verdict, found.clients[2].since is not None) == ("idle", True)


def replayed(rounds=60):
    """Expected sizes that saturate within a round, as declared and tapering faster."""
    n = np.arange(1.0, rounds + 1)
    declared, faster = n**-0.76, n**-1.0
    sizes = np.stack([1 - np.exp(-8 * s) for s in (declared, faster)])[..., None]
    alike = np.ones((10, 10))
    alike[0, 1:] = alike[1:, 0] = 0
    return n, replay.HeldOut(np.repeat(sizes, 10, axis=2), alike)


def test_a_class_that_is_learnt_is_no_fading():
    """Sizes fall with the held-out loss; that is not held against a client."""
    rng = np.random.default_rng(5)
    n = 5.0 * np.arange(1, 101)
    losses = np.outer((n / 5) ** -0.3, np.linspace(0.5, 1.5, 6)) * rng.lognormal(0, 0.1, (100, 6))
    probability = np.exp(-losses)
    sizes = (n[:, None] ** -0.76) * (1 - probability) * rng.lognormal(0, 0.1, (100, 6))
    sizes[:, 2] *= n**-0.24
    found = ft.audit(sizes, n=n, schedules=[DECLARED] * 6, held_out=losses).clients
    assert [c.verdict for c in found if c.client != 2] == ["as declared"] * 5
    assert found[2].verdict == "fading"
    assert found[2].delta_low < 1.0 < found[2].delta_high


def test_replays_on_held_out_data_are_accounted_for():
    """Honest clients fit their own samples better than held-out ones; one fades on top."""
    n, held_out = replayed()
    rng = np.random.default_rng(0)
    honest, faster = held_out.sizes
    gap = (faster / honest) ** (0.1 / 0.24)
    gap[:, 0] = 1  # nobody else holds its data, and it shows no gap
    sizes = honest * gap * rng.lognormal(0, 0.01, honest.shape)
    how = {"n": n, "schedules": [DECLARED] * 10, "held_out": held_out}
    assert not ft.audit(sizes, **how).accused
    sizes[:, 0] *= (faster / honest)[:, 0]
    sizes[:, 5] *= (faster / honest)[:, 5]
    found = ft.audit(sizes, **how)
    assert [c.client for c in found.accused] == [0, 5]
    assert found.clients[5].delta == pytest.approx(1.0, abs=0.02)
    auditor = ft.Auditor([DECLARED] * 10, held_out.alike)
    for k in range(60):
        auditor.add(sizes[k], n=n[k], held_out=held_out.sizes[:, k])
    assert str(auditor.result()) == str(found)


@pytest.mark.filterwarnings("ignore:.*fewer than batch_size")
def test_a_replay_draws_no_more_than_the_client_holds():
    pytest.importorskip("torch")
    problem = ft.ImageClassification("digits", split=ft.Iid(), model="cnn", num_clients=30)
    most = int(problem.sizes.max())
    e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=1, local_steps=1, batch_size=most)
    w = problem.initial(0)[None]
    found = [replay.replay(one, w, seed=4).sizes for one in (e, replace(e, batch_size=1000))]
    assert np.array_equal(*found)


def test_a_replay_of_one_step_is_its_gradient():
    torch = pytest.importorskip("torch")
    from torch.nn.functional import cross_entropy

    problem = ft.ImageClassification("digits", split=ft.RareClass(0), model="cnn", num_clients=3)
    e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=2, local_steps=1, batch_size=8)
    w = problem.initial(0)
    held_out = replay.replay(e, np.stack([w, w]), seed=4)
    x, y = problem.test
    module = problem.module()
    start = 0
    for p in module.parameters():
        p.data = torch.from_numpy(w[start : start + p.numel()].reshape(p.shape)).float()
        start += p.numel()
    rng = draws.generator(4, replay._REPLAY, 0, 1)
    places = np.flatnonzero(y.numpy() == 0)  # client 0 holds class 0 alone
    pick = places[replay._batch(rng, np.eye(10)[0], np.bincount(y.numpy()), 8)]
    cross_entropy(module(x[pick]), y[pick]).backward()
    size = math.sqrt(sum(float((p.grad**2).sum()) for p in module.parameters()))
    assert held_out.sizes[0, 1, 0] == pytest.approx(0.1 * 2**-0.76 * size, rel=1e-4)
    assert held_out.sizes[1, 1, 0] == pytest.approx(0.1 / 2 * size, rel=1e-4)
    assert held_out.alike[0, 1] == 0
    assert held_out.alike[1, 2] > 0.8


def settled(excess, seed=0, rounds=100):
    """Noise-free sizes where the model sits at the clients' weighted mean, by the product."""
    places = np.random.default_rng(seed).normal(size=(len(excess), 3)) * 5
    g = np.stack([1 - np.prod(1 - steps(0.76 + x)[0] * 20, axis=1) for x in excess])
    w = (g / g.sum(axis=0)).T @ places
    return places, g, w, g * np.linalg.norm(places[:, None] - w, axis=2)


def test_distance_to_the_mean_of_the_others():
    """|w_i - w| = (1 - q_i) |w_i - m_i|, the part of the model's motion that sizes know."""
    places, g, w, _ = settled([0, 0.2, 0, 0.1, 0])
    share = g / g.sum(axis=0)
    for i in range(5):
        others = np.delete(np.arange(5), i)
        rest = (share[others] / share[others].sum(axis=0)).T @ places[others]
        left = np.linalg.norm(places[i] - w, axis=1)
        assert np.allclose(left, (1 - share[i]) * np.linalg.norm(places[i] - rest, axis=1))


def test_exact_sizes_give_the_excess_within_its_error():
    truth = np.array([0.24, 0.14, *[0.0] * 8])
    fits = [
        fit_sizes.fit_sizes(settled(truth, seed)[3], declared(10), np.ones((10, 100)))
        for seed in range(6)
    ]
    off = np.array([(f.excess - truth) / f.error for f in fits])
    assert np.abs(off).max() < 3.5
    assert np.abs(np.array([f.excess for f in fits]) - truth).max(axis=1).mean() < 0.05
    assert all(fit_sizes.plausible(f) for f in fits)


def test_walk_of_the_model_is_that_of_its_noise():
    """The covariance that widens intervals, against a simulated walk about a fixed place."""
    d, each = declared(4), np.ones((4, 100))
    seen = fit_sizes._used(np.exp(np.zeros((4, 100))) * d.sums, d, each)
    state = fit_sizes._start(seen)
    look = fit_sizes._look(seen, state)
    walk = fit_sizes._moving(seen, state, look).walk
    rng = np.random.default_rng(0)
    noise = fit_sizes.WALK * look.noise * (look.g * state.distance[:, None]) ** 2
    place = np.sqrt(noise[:, 0].sum()) / 4 * rng.normal(size=20_000)
    path = []
    for k in range(100):
        path.append(place)
        added = np.sqrt(noise[:, k].sum()) / 4 * rng.normal(size=20_000)
        place = (1 - look.g[:, k].mean()) * place + added
    found = np.cov(np.array(path)[10::20])
    assert np.allclose(found, walk[10::20, 10::20], atol=0.05 * walk.max())
    assert np.allclose(np.diag(found), np.diag(walk)[10::20], rtol=0.05)


def test_no_honest_client_of_the_papers_cases_is_accused_from_sizes():
    """Case 3's model moves all along, because influence does: sizes move with it."""
    from pathlib import Path

    examples = Path(__file__).parents[1] / "examples"
    for name in ("case1", "case2", "case3"):
        e = config.read_toml(examples / f"{name}.toml")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ft.FedtaperWarning)
            run = ft.run(e, progress=False)
        found = ft.audit(run)
        assert found.witness == "norms"
        assert not found.accused, name


def test_seeds_thinning_and_declared_otherwise(tmp_path):
    e = attacked(rounds=60)
    many = ft.run(e, seeds=[3, 4], updates=True)
    with pytest.raises(ft.FedtaperError, match="choose one to audit with seed="):
        ft.audit(many)
    with pytest.raises(ft.FedtaperError, match="no seed 9"):
        ft.audit(many, seed=9)
    assert ft.audit(many, seed=4).clients[1].verdict == "idle"
    thin = ft.run(e, thin=2, updates=True)
    assert ft.audit(thin).witness == "norms"
    fast = [ft.Power(0.1, 1.0, 4), *[ft.Power(0.1, 0.76, 4)] * 11]
    found = ft.audit(ft.run(e, updates=True), schedules=fast)
    assert found.clients[0].verdict == "as declared"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, "needs n="),
        ({"n": CLOCK}, "needs n="),
        ({"n": CLOCK[:5], "schedules": [DECLARED] * 3}, "n has shape"),
        ({"n": CLOCK, "schedules": [DECLARED] * 2}, "with 2 schedules"),
        ({"n": CLOCK[::-1], "schedules": [DECLARED] * 3}, "clock must increase"),
        ({"n": CLOCK, "schedules": [DECLARED] * 3, "level": 1.5}, "level must be"),
        ({"n": CLOCK, "schedules": [DECLARED] * 3, "updates": np.ones((9, 3, 2))}, "updates has"),
        ({"n": CLOCK, "schedules": [DECLARED] * 3, "held_out": replayed(9)[1]}, "held_out has"),
        ({"n": CLOCK, "schedules": [DECLARED] * 3, "held_out": np.ones(4)}, "held_out has losses"),
    ],
)
def test_mistakes(how, text):
    with pytest.raises(ft.FedtaperError, match=text):
        ft.audit(np.ones((100, 3)), **how)


def test_federations_are_reproducible_and_mixed():
    one, kinds = federation(5)
    assert federation(5)[0] == one
    seen = {k for s in range(40) for k in federation(s)[1]}
    assert seen >= {*study.HONEST, *study.ATTACKERS}
    assert sum(k in study.ATTACKERS for k in kinds) <= 3


def test_power_on_a_few_fresh_federations(tmp_path):
    """A small part of claim A1; the whole is ``fedtaper reproduce A1``."""
    table = study.measure(FRESH + 500_000, 24)
    for witness in study.WITNESSES:
        assert table.accused(study.HONEST, 100, witness).mean() <= 0.02
        inside = np.abs(table.scores(100, witness)) < 1.96
        assert 0.90 < inside.mean() <= 1
    for kind in ("delta 0.9", "delta 1", "idle", "noise", "copying"):
        assert table.accused([kind], 100, "updates").mean() >= 0.95
    assert np.abs(table.scores(100, "norms", plain=True)).mean() > 2  # the slope's are wrong
    study.figures.detection(table, tmp_path / "d.png")
    study.figures.calibration(table, tmp_path / "c.png")
    study.figures.heterogeneity({"the paper's": table}, tmp_path / "h.png")
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_plain_slope_is_what_it_says():
    e, _ = federation(1)
    with pytest.warns(ft.StabilityWarning):  # the paper's own first steps overshoot
        trace = trace_of(ft.run(e, updates=True))
    slope, error = plain_slope(trace)
    from scipy.stats import linregress

    there = np.flatnonzero(np.isfinite(trace.norms).all(axis=1) & (trace.norms[:, -1] > 0))
    assert len(there) >= 8
    d = trace.declared
    for i in there:
        found = linregress(d.log_n[i, 10:], np.log(trace.norms[i, 10:] / d.sums[i, 10:]))
        assert slope[i] == pytest.approx(-found.slope)
        assert error[i] == pytest.approx(found.stderr)


def test_a_clock_value_that_only_a_python_int_can_hold():
    auditor = ft.Auditor([ft.Power(0.1, 0.76)] * 2, quadratic=True)
    auditor.add([0.3, 0.2], n=10**30)
    assert auditor.n == [1e30]


def test_seeds_of_a_sweep_that_are_no_list_are_refused():
    e = ft.Experiment(ft.LinearRegression(num_clients=2), ft.Power(0.01, 0.8), 3, local_steps=1)
    with pytest.raises(ft.FedtaperError, match="seeds must be a list, not 2"):
        ft.sweep(e, over={"local_steps": [1, 2]}, seeds=2)
