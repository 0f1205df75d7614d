"""The bound, the noise sums, probability-one curves and the table of assumptions."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

import fedtaper as ft
from fedtaper.core import draws
from fedtaper.core.protocols import Problem
from fedtaper.theory.probability import binomial_interval
from fedtaper.theory.replayed import replayed

SLOW, FAST = ft.Power(0.1, 0.76), ft.Power(0.1, 1.0)
CASES = {
    1: (SLOW,) * 10,
    2: (SLOW, ft.Power(0.05, 0.76), *[ft.Power(1.0, 1.0)] * 8),
    3: (SLOW, *[FAST] * 9),
}


def simulate(schedules, seeds, problem=None, **settings):
    settings = {"rounds": 5000, "local_steps": 5} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        e = ft.Experiment(problem or ft.LinearRegression(), schedules, **settings)
        return ft.run(e, seeds=range(seeds))


@pytest.fixture(scope="module")
def small():
    problem = ft.LinearRegression(num_clients=3, samples=(60, 90, 200))
    schedules = [ft.Power(0.1, 0.76, 20), ft.Power(0.1, 0.9, 20), ft.Power(0.05, 1.0, 20)]
    return simulate(schedules, 2, problem, rounds=40, local_steps=(2, 4, 3), batch_size=7)


def plain_trace(run, seed, k):
    """One round again by the readable rules: sums of a h and a M, and the drifts before."""
    e, problem = run.experiment, run.experiment.problem
    start = run.w0[seed] if k == 0 else run.w[seed, k - 1]
    a = e.step_sizes(k, k + 1)[0]
    out = []
    for i in range(e.num_clients):
        w, sums, noises, apart, noise_apart = start, np.zeros(3), np.zeros(3), 0.0, 0.0
        for step in range(e.steps[i]):
            batch = draws.batch(run.seeds[seed], i, k, step, e.batch_size, problem.sizes[i])
            field, gradient = problem.mean_field(w)[i], problem.gradient(i, w, batch)
            apart += a[step, i] * np.linalg.norm(sums)
            noise_apart += a[step, i] * np.linalg.norm(noises)
            sums = sums + a[step, i] * field
            noises = noises + a[step, i] * (-gradient - field)
            w = w - a[step, i] * gradient
        out.append((sums, noises, apart, noise_apart))
    return [np.array(column) for column in zip(*out, strict=True)]


def test_trace_is_the_run_s_own_updates(small):
    rounds = np.array([0, 1, 5, 39])
    (found,) = replayed(small, rounds)
    for s in range(2):
        for j, k in enumerate(rounds):
            drift, noise, apart, noise_apart = plain_trace(small, s, int(k))
            np.testing.assert_allclose(found.drift[s, j], drift, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(found.noise[s, j], noise, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(found.drift_apart[s, j], apart, rtol=1e-9)
            np.testing.assert_allclose(found.noise_apart[s, j], noise_apart, rtol=1e-9)


def test_drift_and_noise_make_up_the_shared_model_s_step(small):
    (found,) = replayed(small, np.arange(40))
    path = np.concatenate([small.w0[:, None], small.w], axis=1)
    step = (found.drift + found.noise).mean(axis=2)
    np.testing.assert_allclose(np.diff(path, axis=1), step, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("influence", ["limit", "finite"])
@pytest.mark.parametrize("case", [1, 2, 3])
def test_the_bound_holds_on_every_window_of_every_seed(case, influence):
    found = ft.bound(simulate(CASES[case], 20, rounds=2000), 0.1, influence=influence)
    assert found.measured.shape == (20, len(found.round)) and np.all(found.measured > 0)
    assert np.all(found.measured <= found.total)
    assert found.holds
    if influence == "finite" or case == 1:
        assert found.terms["W"].max() < 1e-12
    for name in "KPQU":
        middle = np.median(found.terms[name], axis=0)
        assert middle[-1] < middle[0] / 3


def test_the_bound_of_other_federations(small):
    settings = {"server": ft.Average(by="samples"), "local_steps": (1, 5, 3), "batch_size": 7}
    for server in (ft.Average(by="samples"), ft.Normalised(), ft.Normalised(over="step_sums")):
        settings |= {"server": server}
        e = replace(small.experiment, rounds=300, **settings)
        for influence in ("limit", "finite"):
            assert ft.bound(ft.run(e, seeds=range(5)), 0.05, influence=influence).holds
    steep = ft.LinearRegression(feature_spread=(5, 25, 10), num_clients=3)
    assert ft.bound(simulate(SLOW, 5, steep, rounds=300), 0.01).holds


def test_the_bound_by_hand():
    """Three clients with one sample on an axis each, one update a round, no noise: K alone."""
    axes = 2 * np.eye(3)  # A_i = 4 on its axis, b_i = 12: every coordinate has w' = (12 - 4w) / 3
    problem = ft.LinearRegression.from_arrays(axes[:, None], [[6.0]] * 3, init_spread=0.0)
    e = ft.Experiment(problem, ft.Power(0.1, 1.0), rounds=4, local_steps=1, batch_size=1)
    found = ft.bound(ft.run(e, seeds=[0]), 0.1 / 2 + 0.1 / 3 + 1e-9, starts=[1])
    w1 = 0.1 * 12 / 3
    pull = (12 - 4 * w1) / 3
    squares = 0.05**2 + (0.1 / 3) ** 2
    assert found.terms["K"][0, 0] == pytest.approx(4 * np.sqrt(3) * pull * squares)
    assert found.factor[0] == pytest.approx(np.exp(4 * (0.05 + 0.1 / 3)))
    for name in "PQWU":
        assert found.terms[name][0, 0] == pytest.approx(0, abs=1e-12)
    w2 = w1 + 0.05 * pull
    w3 = w2 + 0.1 / 3 * (12 - 4 * w2) / 3
    ode = [3 + (w1 - 3) * np.exp(-4 / 3 * t) for t in (0.05, 0.05 + 0.1 / 3)]
    hand = np.sqrt(3) * max(abs(w2 - ode[0]), abs(w3 - ode[1]))
    assert found.measured[0, 0] == pytest.approx(hand, rel=1e-9)


def test_the_bound_refuses_what_it_is_not_made_for(small):
    with pytest.raises(ft.FedtaperError, match="plain local steps"):
        ft.bound(simulate(SLOW, 1, rounds=50, local=ft.Proximal()))
    with pytest.raises(ft.FedtaperError, match="mean at the server"):
        ft.bound(simulate(SLOW, 1, rounds=50, server=ft.Adam()))
    with pytest.raises(ft.FedtaperError, match="participation=1"):
        ft.bound(simulate(SLOW, 1, rounds=50, participation=0.5))
    with pytest.raises(ft.FedtaperError, match="longer than the run"):
        ft.bound(small, 100.0)


def outside(schedule):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        return schedule()


@pytest.mark.parametrize(
    "schedule, settles",
    [
        (SLOW, True),
        (FAST, True),
        (outside(lambda: ft.Power(0.1, 0.4)), False),
        (ft.Constant(0.01), False),
    ],
    ids=str,
)
def test_noise_sums_settle_inside_a2_and_wander_outside(schedule, settles):
    found = ft.noise_sums(simulate(schedule, 20, rounds=2000))
    fit = found.fit(client=0, after=20)
    assert fit.high < 0 if settles else fit.low > 0
    # with delta = 0.4 the noise itself still grows: early local models lie near own optima
    assert abs(fit.exponent - found.theory[0]) < (0.15 if schedule.delta == 0.4 else 0.1)
    assert np.all(np.diff(found.tail, axis=1) <= 1e-12)


def test_noise_sums_by_hand(small):
    found = ft.noise_sums(small, points=200)
    (part,) = replayed(small, np.arange(40))
    path = np.cumsum(part.noise, axis=1)
    for j, k in enumerate(found.round):
        np.testing.assert_allclose(found.sums[:, j], path[:, k - 1])
        late = path[:, k - 1 :]
        box = np.linalg.norm(late.max(axis=1) - late.min(axis=1), axis=-1)
        np.testing.assert_allclose(found.tail[:, j], box)
    for j, k in enumerate(found.doubled):
        late = path[:, k - 1 : 2 * k]
        box = np.linalg.norm(late.max(axis=1) - late.min(axis=1), axis=-1)
        np.testing.assert_allclose(found.doubling[:, j], box)
    with pytest.raises(ft.FedtaperError, match="8 rounds"):
        ft.noise_sums(simulate(SLOW, 1, rounds=4))


def test_noise_has_mean_zero():
    found = ft.noise_sums(simulate(SLOW, 200, rounds=50))
    last = found.sums[:, -1]  # (seeds, L, d)
    error = last.std(axis=0, ddof=1) / np.sqrt(200)
    assert np.mean(np.abs(last.mean(axis=0)) < 2 * error) > 0.8


def test_probability_one_by_hand():
    run = simulate(SLOW, 4, rounds=6)
    error = np.array([[9, 1, 9, 1, 1, 1], [9, 1, 1, 1, 1, 1], [np.nan] * 6, [1] * 6])
    found = ft.probability_one(replace(run, metrics={"error": error}), eps=[5.0, 0.5])
    np.testing.assert_array_equal(found.share[0], [0.75, 0.5, 0.5, 0.25, 0.25, 0.25])
    np.testing.assert_array_equal(found.share[1], 1.0)
    assert found.at(5.0, 4)[0] == 0.25
    with pytest.raises(ft.FedtaperError, match=r"no metric 'eror'.*did you mean 'error'"):
        ft.probability_one(run, metric="eror")
    with pytest.raises(ft.FedtaperError, match="above 0"):
        ft.probability_one(run, eps=[0.0])
    with pytest.raises(ft.FedtaperError, match="not among"):
        found.at(0.1, 1)
    with pytest.raises(ft.FedtaperError, match="ends before"):
        found.at(5.0, 7)


@pytest.mark.parametrize("trials", [1, 7, 200])
def test_binomial_interval(trials):
    low, high = binomial_interval(trials)
    for count in {0, 1, trials // 2, trials}:
        exact = binomtest(count, trials).proportion_ci(method="exact")
        assert (low[count], high[count]) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "fedprox", "fednova"])
def test_tapering_takes_the_curve_to_0_and_a_constant_step_leaves_it_at_1(name):
    """20 seeds here; 1,000 in benchmarks/theory.py."""
    rules = ft.PRESETS[name]
    tapering = ft.probability_one(simulate(SLOW, 20, **rules))
    assert tapering.at(0.1, 1)[0] == 1 and tapering.at(0.1, 4000)[0] == 0
    constant = ft.probability_one(simulate(ft.Constant(0.01), 20, **rules))
    assert constant.at(0.1, 4000)[0] == 1


@pytest.mark.parametrize("rule", [ft.Adam, ft.Yogi])
def test_a_fedopt_server_settles_where_tau_does_not_hide_the_taper(rule):
    assert ft.probability_one(simulate(SLOW, 10, server=rule(eta=1, tau=1))).at(0.1, 4000)[0] == 0
    assert ft.probability_one(simulate(SLOW, 10, server=rule())).at(0.1, 4000)[0] > 0


def check(schedules, **settings):
    problem = settings.pop("problem", ft.LinearRegression())
    return ft.check(ft.Experiment(problem, schedules, rounds=100, local_steps=5, **settings))


def test_assumptions_of_the_paper_s_own_setting():
    found = check(SLOW)
    assert [row.status for row in found.rows] == ["holds"] * 4 + ["fails"]
    assert found["A1"].number == f"K_1 = {ft.LinearRegression().curvature.max():.4g}"
    assert not found.holds and "bounded sets" in found["A5"].why
    needs = {need.asks: need for need in found.needs}
    assert needs["gradient dissimilarity bounded"].needed_by == ("FedProx", "FedNova")
    assert needs["convex"].status == "holds"
    assert "A2 holds" in str(found)
    with pytest.raises(ft.FedtaperError, match="A1, A2, A3, A4, A5"):
        found["A6"]


def test_assumption_numbers_against_plain_sums():
    problem = ft.LinearRegression(num_clients=2, samples=50)
    found = check(ft.Power(0.1, 0.9, 20), problem=problem)
    w = problem.equilibrium([1.0, 1.0])
    second = [
        np.mean([np.sum((x * (x @ w - y)) ** 2) for x, y in zip(*xy, strict=True)])
        for xy in zip(problem.x, problem.y, strict=True)
    ]
    assert found["A5"].number.startswith(f"{max(second):.4g} at w*")


def test_assumptions_that_fail():
    assert check(ft.Constant(0.01))["A2"].status == "fails"
    assert check(ft.Constant(0.01))["A3"].status == "assumed"
    assert "not summable" in check(outside(lambda: ft.Power(0.1, 0.4)))["A2"].why
    assert "delta > 3/4" in check(outside(lambda: ft.Power(0.1, 0.6)))["A2"].why
    assert "finite sum" in check(outside(lambda: ft.Power(0.1, 1.5)))["A2"].why
    blown = check(ft.Constant(0.1))
    assert blown["A3"].status == "fails" and "fold per round" in blown["A3"].number
    same = ft.LinearRegression(true_w=(1, 2, 3), snr_db=np.inf)
    needs = {need.asks: need.status for need in check(SLOW, problem=same).needs}
    assert needs["gradient dissimilarity bounded"] == "holds"
    flat = ft.LinearRegression(samples=2, num_clients=1)
    assert check(SLOW, problem=flat, batch_size=2)["A3"].status == "assumed"
    assert check(ft.Constant(0.1), server=ft.Adam())["A3"].status == "assumed"


class Other(Problem):
    kind, default_clock = "gradient", "update"
    num_clients, dim, sizes = 2, 3, np.array([100, 100])


def test_assumptions_of_an_unknown_objective_are_assumed():
    found = check(SLOW, problem=Other())
    assert [row.status for row in found.rows] == ["assumed", "holds", "assumed", "holds", "assumed"]
    assert found.holds


def test_samples_of_a_stream_are_as_dependent_as_its_rho_says():
    def independent(problem):
        return ft.check(ft.Experiment(problem, SLOW, rounds=5, local_steps=1))["A4"]

    walk = ft.RegressionStream(num_clients=2, rho=(0.5, 0.99))
    for problem in (walk, ft.MovingRegression(walk, drift=0.1)):
        found = independent(problem)
        assert (found.status, found.number) == ("fails", "correlation 0.99")
        assert "dependent stream" in found.why
    fresh = ft.RegressionStream(num_clients=2)
    found = independent(fresh)
    assert (found.status, found.number) == ("holds", "correlation 0")
    assert "drawn anew" in found.why and "finite set" not in found.why
    found = independent(ft.MovingRegression(fresh, drift=0.1))
    assert found.status == "fails" and "population moves" in found.why
    assert "finite set" in independent(ft.LinearRegression(num_clients=2)).why
