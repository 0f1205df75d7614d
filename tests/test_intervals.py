"""Error bars: against exact recursions, Lyapunov's equation, forecasts and many seeds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov
from test_fair import logistic

import fedtaper as ft
from fedtaper.outcomes.scaling import CRITICAL, average
from fedtaper.paper.glm import last_models
from fedtaper.theory.fluctuation import centres, fluctuation
from fedtaper.theory.losses import losses_of

torch = pytest.importorskip("torch")


def small(schedules=None, rounds=600, **how):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=300, seed=1)
    schedules = ft.Power(0.05, 0.76, 30) if schedules is None else schedules
    return ft.Experiment(problem, schedules, rounds, 4, batch_size=20, **how)


def unequal():
    return [ft.Power(0.05, 0.76, 30), ft.Power(0.02, 0.76, 30), ft.Power(0.3, 1.0, 30)]


def exact_moments(e):
    """Mean and covariance of the model, round by round, update by update, by definition.

    Only the noise is that at the optimum, as everywhere in the theory.
    """
    a, b, _ = e.problem.moments
    w_star = e.problem.equilibrium(e.field_weights(float(e.rounds * e.period)))
    noise = [
        np.cov((x * (x @ w_star - y)[:, None]).T, bias=True) / e.batch_size
        for x, y in zip(e.problem.x, e.problem.y, strict=True)
    ]
    mean, spread_ = e.problem.initial(0), np.zeros((2, 2))
    steps, q, rate = e.step_sizes(0, e.rounds), 1 / e.num_clients, e.rates
    for k in range(e.rounds):
        new_mean, turn, made = np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2))
        for i in range(e.num_clients):
            product, shift, own = np.eye(2), np.zeros(2), np.zeros((2, 2))
            for s in range(steps.shape[1]):
                once = np.eye(2) - steps[k, s, i] * a[i]
                product, shift = once @ product, once @ shift + steps[k, s, i] * b[i]
                own = once @ own @ once.T + steps[k, s, i] ** 2 * noise[i]
            move = product @ mean + shift - mean
            new_mean += q * rate[i] * move
            turn += q * rate[i] * (product - np.eye(2))
            made += q**2 * (rate[i] * own + rate[i] * (1 - rate[i]) * np.outer(move, move))
        mean = mean + new_mean
        turn = np.eye(2) + turn
        spread_ = turn @ spread_ @ turn.T + made
    return mean, spread_


@pytest.mark.parametrize(
    "how", [{}, {"schedules": unequal()}, {"participation": (0.5, 1.0, 0.7)}], ids=str
)
def test_mean_and_covariance_are_those_of_the_exact_recursion(how):
    e = small(**how)
    mean, covariance = exact_moments(e)
    found = fluctuation(e, float(e.rounds * e.period))
    size = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), size, rtol=0.03)
    tilted = found.covariance / np.outer(size, size) - covariance / np.outer(size, size)
    assert np.abs(tilted).max() < 0.06
    assert np.abs(found.target + found.lag - mean).max() < 0.1 * size.min()


def test_equal_tapers_settle_at_lyapunov_s_solution():
    e = small(rounds=20_000)
    n = float(e.rounds * e.period)
    found = fluctuation(e, n)
    a, _, _ = e.problem.moments
    noise = found.losses.noise(found.target).mean(axis=0) / e.batch_size
    v = solve_continuous_lyapunov(a.mean(axis=0), noise / e.num_clients)
    step = float(e.schedules[0](n))
    np.testing.assert_allclose(found.covariance, step * v, rtol=0.03, atol=1e-3 * step)


def test_lag_is_the_forecast_s():
    e = small(unequal(), rounds=3000)
    n = float(e.rounds * e.period)
    far = ft.forecast(e, n=n)
    found = fluctuation(e, n)
    np.testing.assert_allclose(found.target, far.equilibrium, atol=1e-9)
    np.testing.assert_allclose(found.lag, far.w - far.equilibrium, rtol=0.05, atol=2e-5)
    target, path = centres(e, np.array([n / 4, n / 2, n]))
    # the forecast still remembers the first model a little
    np.testing.assert_allclose(path[1], ft.forecast(e, n=n / 2).w, atol=2e-3)
    np.testing.assert_allclose(path[2], far.w, atol=3e-4)
    np.testing.assert_allclose(target, far.equilibrium, atol=1e-9)


@pytest.mark.parametrize("how", [{}, {"schedules": unequal()}, {"participation": 0.5}], ids=str)
def test_coverage_over_seeds(how):
    e = small(**how)
    run = ft.run(e, seeds=range(300), progress=False)
    found = ft.intervals(run)
    share = e.field_weights(float(run.n[-1]))
    w = e.problem.equilibrium(share)
    f = e.problem.losses(w)
    for covered in (found.model.covers(w), found.losses.covers(f)):
        assert np.all(np.abs(covered.mean(axis=0) - 0.95) < 0.05)  # four standard errors
    weighted = found.weighted.covers(share @ f / share.sum()).mean()
    assert abs(weighted - 0.95) < 0.05
    scaled = ft.intervals(run, method="scaling")
    assert 0.82 < scaled.model.covers(w).mean() < 0.98  # runs as short as this fall short ...
    assert "cover less" in scaled.notes[0]  # ... and say so
    narrow = found.model.covers(w + 2 * np.sqrt(np.diag(found.covariance)))
    assert narrow.mean() < 0.6  # a wrong target is noticed


@pytest.mark.filterwarnings("ignore:.*fewer than batch_size")
def test_a_client_with_fewer_samples_than_a_batch_has_the_noise_of_what_it_holds():
    """Its mini-batches have only as many samples as it holds, so the run is the same."""
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=(10, 10, 40), seed=1)
    small_, large = (
        ft.Experiment(problem, ft.Power(0.05, 0.76, 30), 400, 4, batch_size=size)
        for size in (40, 1000)
    )
    runs = [ft.run(e, seeds=range(300), progress=False) for e in (small_, large)]
    assert np.array_equal(runs[0].w, runs[1].w)
    mine, theirs = (fluctuation(e, 1600.0).covariance for e in (large, small_))
    assert np.array_equal(mine, theirs)
    measured = runs[1].w[:, -1].std(axis=0) / np.sqrt(np.diag(mine))
    assert np.all(np.abs(measured - 1) < 0.17)  # four standard errors
    w = problem.equilibrium(large.field_weights(1600.0))
    covered = ft.intervals(runs[1]).model.covers(w)
    assert np.all(np.abs(covered.mean(axis=0) - 0.95) < 0.05)
    assert "mini-batches of 10 to 40 from 10" in ft.check(large)["A4"].number


def test_a_stream_draws_whole_batches_whatever_its_nominal_samples():
    stream = ft.RegressionStream(num_clients=2, dim=2, feature_spread=1.0, samples=10)
    for problem in (stream, ft.MovingRegression(stream, drift=0.1)):
        e = ft.Experiment(problem, ft.Power(0.5, 0.76, 30), 20, 4, batch_size=50)
        assert e.batch_sizes.tolist() == [50, 50]
        (x, _), *_ = problem.batches(e, 0, 1, 0)
        assert len(x) == 50


def test_population_intervals_over_data_sets():
    """The optimum of the population, over data sets drawn anew: true_w, since all share it."""
    truth, hits, narrow = np.array([1.0, -2.0]), [], []
    for seed in range(60):
        problem = ft.LinearRegression(
            3, 2, samples=100, true_w=tuple(truth), snr_db=0, seed=seed, feature_spread=1.0
        )
        e = ft.Experiment(problem, ft.Power(0.5, 0.76, 30), 150, 4, batch_size=20, seed=seed)
        run = ft.run(e, progress=False)
        found = ft.intervals(run, of="population")
        hits.append(found.model.covers(truth))
        own = np.sqrt(np.diag(fluctuation(e, 600.0).covariance))
        narrow.append(np.abs(found.model.value - truth) < 1.96 * own)
    assert abs(np.mean(hits) - 0.95) < 0.08  # four standard errors
    assert np.mean(narrow) < 0.85  # without the sampling of the data they are too narrow


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_population_losses_over_data_sets(apart):
    """Every client's expected loss at the population's optimum, over data sets drawn anew."""
    truths = np.ones((3, 2)) + apart * np.array([[0.5, -1.0], [-0.5, 0.0], [0.0, 1.0]])
    target = truths.mean(axis=0)  # the features have one distribution
    exact = 0.5 * ((target - truths) ** 2).sum(axis=1) + 0.5
    rng, hits = np.random.default_rng(0), []
    for _ in range(150):
        x = [rng.normal(size=(size, 2)) for size in (400, 200, 600)]
        y = [a @ w + rng.normal(size=len(a)) for a, w in zip(x, truths, strict=True)]
        problem = ft.LinearRegression.from_arrays(x, y)
        e = ft.Experiment(problem, ft.Power(0.5, 0.76, 30), 100, 4, batch_size=20)
        found = ft.intervals(e, of="population", n=1e6)
        hits.append(found.losses.covers(exact))
    assert not found.notes and found.weighted is None
    assert np.all(np.abs(np.mean(hits, axis=0) - 0.94) < 0.08)  # four standard errors
    few = ft.LinearRegression(num_clients=2, samples=(50, 300))
    shown = ft.intervals(replace(e, problem=few, schedules=e.schedules[0]), of="population")
    assert any("1 client has fewer than 200 samples" in note for note in shown.notes)


def test_the_spread_of_losses_by_hand():
    problem, data, _ = logistic(clients=3, samples=30, dim=2, uneven=True)
    w = np.array([0.3, -0.5, 0.2])
    variance, along = losses_of(problem).spread(w)
    for i, (x, y) in enumerate(data):
        score = x @ w[:-1] + w[-1]
        one = np.logaddexp(0, -score * (2 * y - 1))
        slope = (1 / (1 + np.exp(-score)) - y)[:, None] * np.column_stack([x, np.ones(len(x))])
        both = np.cov(np.column_stack([one, slope]).T, bias=True)
        np.testing.assert_allclose([variance[i], *along[i]], both[0], atol=1e-7)
    regression = ft.LinearRegression(num_clients=2, samples=(40, 60), dim=2)
    variance, along = losses_of(regression).spread(w[:2])
    for i, (x, y) in enumerate(zip(regression.x, regression.y, strict=True)):
        off = x @ w[:2] - y
        both = np.cov(np.column_stack([off**2 / 2, x * off[:, None]]).T, bias=True)
        np.testing.assert_allclose([variance[i], *along[i]], both[0], rtol=1e-9)


def test_logistic_models_of_the_compiled_study_are_the_reference_s():
    problem, data, decay = logistic(clients=3, samples=60, dim=2)
    e = ft.Experiment(problem, ft.Power(0.5, 0.76), 3, 4, batch_size=15)
    x = [np.column_stack([a, np.ones(len(a))]) for a, _ in data]
    y = [b for _, b in data]
    made = last_models(e, x, y, np.array([0, 7]), decay)
    for j, seed in enumerate((0, 7)):
        slow = ft.run(ft.Experiment(problem, ft.Power(0.5, 0.76), 3, 4, batch_size=15, seed=seed),
                      engine="reference", progress=False)  # fmt: skip
        np.testing.assert_allclose(made[j], slow.w[-1], atol=1e-7)


def test_logistic_coverage():
    problem, data, decay = logistic(clients=4, samples=150, dim=2)
    e = ft.Experiment(problem, ft.Power(8.0, 0.76, 200), 600, 5, batch_size=20)
    x = [np.column_stack([a, np.ones(len(a))]) for a, _ in data]
    w = last_models(e, x, [b for _, b in data], np.arange(300), decay)
    found = fluctuation(e, 3000.0)
    inside = np.abs(w - found.target - found.lag) < 1.96 * np.sqrt(np.diag(found.covariance))
    assert np.all(np.abs(inside.mean(axis=0) - 0.95) < 0.05)


@pytest.mark.parametrize("keeps", ["round", "run"])
def test_momentum(keeps):
    """The covariance of momentum, over seeds."""
    e = small(ft.Power(0.01, 0.76, 30), local=ft.Momentum(0.8, reset=keeps == "round"))
    e = replace(e, rounds=800)
    w = ft.run(e, seeds=range(300), progress=False, thin=100).w[:, -1]
    found = fluctuation(e, 3200.0)
    ratio = w.std(axis=0) / np.sqrt(np.diag(found.covariance))
    assert np.all(np.abs(ratio - 1) < 0.15)  # over three standard errors
    off = (w.mean(axis=0) - found.target - found.lag) / w.std(axis=0)
    assert np.all(np.abs(off) < 0.25)


@pytest.mark.parametrize(
    ("rule", "c"),
    [
        (ft.Sgd(), 0.1),
        (ft.Momentum(0.9), 0.01),
        (ft.Momentum(0.9, nesterov=True), 0.01),
        (ft.Momentum(0.9, reset=True), 0.02),
        (ft.Momentum(0.9, nesterov=True, reset=True), 0.02),
        (ft.Proximal(20.0), 0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("scales", [(1, 1, 1), (1, 0.2, 0.5)], ids=str)
def test_the_lag_is_that_of_the_rule_s_own_steps(rule, c, scales):
    """Without noise: every client's updates by definition, long after the start."""
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=300, seed=1)
    schedules = [ft.Power(c * scale, 0.8, 100) for scale in scales]
    e = ft.Experiment(problem, schedules, 200, (30, 30, 20), local=rule)
    a, b, _ = problem.moments
    w, steps = problem.initial(0), e.step_sizes(0, e.rounds)
    memories = [rule.init(w) for _ in range(3)]
    for k in range(e.rounds):
        moves = []
        for i in range(3):
            memory = memories[i] if rule.keeps == "run" else rule.init(w)
            own = w
            for step in range(e.steps[i]):
                gradient = a[i] @ own - b[i]
                own, memory = rule.step(own, gradient, w, steps[k, step, i], memory)
            memories[i] = memory
            moves.append(own - w)
        w = w + np.mean(moves, axis=0)
    n = float(e.rounds * e.period)
    found = fluctuation(e, n)
    off = np.linalg.norm(w - found.target)
    assert np.linalg.norm(found.target + found.lag - w) < 0.15 * off
    assert np.linalg.norm(ft.forecast(e, n).w - w) < 0.15 * off


def test_a_stream_is_its_population():
    problem = ft.RegressionStream(num_clients=2, dim=2, feature_spread=1.0)
    e = ft.Experiment(problem, ft.Power(2.0, 0.76, 30), 80, 4, batch_size=20)
    run = ft.run(e, progress=False)
    found = ft.intervals(run)
    assert "population" in found.target
    assert found.model.covers(problem.equilibrium([1, 1])).all()
    walk = replace(e, problem=ft.RegressionStream(num_clients=2, dim=2, rho=0.9))
    with pytest.raises(ft.FedtaperError, match="depend on those before"):
        ft.intervals(walk)


def test_an_experiment_s_own_prediction():
    e = small()
    found = ft.intervals(e)
    run = ft.run(e, seeds=range(200), progress=False)
    where = run.w[:, -1]
    inside = (found.model.low < where) & (where < found.model.high)
    assert abs(inside.mean() - 0.95) < 0.045
    far = ft.intervals(e, n=1e12)
    assert np.all(far.covariance.diagonal() < 1e-4 * found.covariance.diagonal())


def test_a_start_that_is_not_forgotten_is_noticed():
    early = ft.intervals(small(ft.Power(0.001, 0.76), rounds=20))
    assert any("still has an effect" in note for note in early.notes)
    assert not ft.intervals(small()).notes


def test_random_scaling_by_its_definition():
    rng = np.random.default_rng(0)
    path = rng.normal(size=(2, 200, 3)).cumsum(axis=1)
    rounds = np.arange(1, 201)
    mean, scale, times = average(path, rounds)
    tail = path[1, 20:, 2]
    count = np.arange(1, 181)
    running = np.cumsum(tail) / count
    by_hand = np.sqrt(np.sum(count**2 * (running - running[-1]) ** 2) / 180**3)
    np.testing.assert_allclose(mean[1, 2], tail.mean())
    x = min(0.15, 1 / times[1, 2])
    np.testing.assert_allclose(scale[1, 2], by_hand * np.sqrt((1 - x) / (1 - 5 * x)))


def test_memory_times_of_a_known_path():
    rng = np.random.default_rng(2)
    path = np.zeros((40, 4000, 1))
    for k in range(1, 4000):
        path[:, k] = 0.95 * path[:, k - 1] + rng.normal(size=(40, 1))
    mean, scale, times = average(path, np.arange(1, 4001))
    assert abs(np.mean(times) / (3600 * -np.log(0.95)) - 1) < 0.1
    assert np.mean(np.abs(mean) < 6.747 * scale) > 0.85


def test_critical_values_by_simulation():
    rng = np.random.default_rng(1)
    paths = rng.normal(size=(20_000, 400)).cumsum(axis=1) / 20
    bridge = paths - paths[:, -1:] * np.arange(1, 401) / 400
    ratio = np.abs(paths[:, -1]) / np.sqrt((bridge**2).mean(axis=1))
    for level, value in CRITICAL.items():
        assert abs(np.quantile(ratio, level) / value - 1) < 0.03


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"level": 2}, "level"),
        ({"method": "guess"}, "method"),
        ({"of": "all"}, "of must be"),
        ({"method": "scaling", "level": 0.93}, "0.95"),
        ({"method": "scaling", "of": "population"}, "plug-in"),
    ],
)
def test_mistakes(how, says):
    run = ft.run(small(rounds=80), progress=False)
    with pytest.raises(ft.FedtaperError, match=says):
        ft.intervals(run, **how)


def test_what_cannot_be_plugged_in_is_refused():
    with pytest.raises(ft.FedtaperError, match="needs a run"):
        ft.intervals(small(), method="scaling")
    with pytest.raises(ft.FedtaperError, match="changes every step"):
        ft.intervals(small(server=ft.Adam()))
    with pytest.raises(ft.FedtaperError, match="at least"):
        ft.intervals(ft.run(small(rounds=20), progress=False), method="scaling")
    e = ft.Experiment(small().problem, ft.Power(0.05, 0.76, 30), 5, local_epochs=1, batch_size=20)
    with pytest.raises(ft.FedtaperError, match="with replacement"):
        ft.intervals(e)


def test_command_and_picture(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(ft.to_toml(small(rounds=100)), encoding="utf-8")
    ft.run(small(rounds=100), out="run", progress=False)
    for words in (["e.toml"], ["run", "--plot", "i.png"], ["run", "--method", "scaling"]):
        done = CliRunner().invoke(app, ["intervals", *words])
        assert done.exit_code == 0, done.output
        assert "intervals for" in done.output
    assert (tmp_path / "i.png").is_file()
    assert CliRunner().invoke(app, ["intervals", "run", "--level", "3"]).exit_code == 2
