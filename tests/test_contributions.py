"""Shapley values by brute force and by their axioms; prices by finite differences."""

import itertools

import numpy as np
import pytest
from test_fair import logistic

import fedtaper as ft
from fedtaper.theory.equilibria import equilibrium

torch = pytest.importorskip("torch")


def brute_force(worth, count):
    """The mean over all orders of joining, one order at a time."""
    out = np.zeros(count)
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        inside = frozenset()
        for client in order:
            out[client] += worth(inside | {client}) - worth(inside)
            inside |= {client}
    return out / len(orders)


def regression_worth(problem, p, weights):
    def worth(inside):
        share = np.array([p[i] if i in inside else 0.0 for i in range(len(p))])
        w = problem.equilibrium(share) if inside else np.zeros(problem.dim)
        return -float(weights @ problem.losses(w))

    return worth


def test_exact_values_are_those_of_brute_force():
    problem = ft.LinearRegression(num_clients=5, samples=100, seed=2)
    p, weights = np.array([1, 0.5, 2, 1, 0.2]), np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    found = ft.contributions(problem, p, weights=weights)
    worth = regression_worth(problem, p, weights)
    np.testing.assert_allclose(found.shapley, brute_force(worth, 5), rtol=1e-10, atol=1e-8)
    full = frozenset(range(5))
    for i in range(5):
        expected = worth(full) - worth(full - {i})
        np.testing.assert_allclose(found.leave_one_out[i], expected, rtol=1e-8)
    np.testing.assert_allclose(found.for_whom @ weights, found.shapley)
    assert found.coalitions == 32 and found.exact


def test_axioms():
    """Efficiency, symmetry, null players, additivity."""
    base = ft.LinearRegression(num_clients=4, samples=80, seed=5)
    x, y = [*base.x, base.x[1], base.x[0]], [*base.y, base.y[1], base.y[0]]
    problem = ft.LinearRegression.from_arrays(x, y)  # 4 is 1 again
    p = [1, 1, 1, 1, 1, 0]  # 5 does not count
    found = ft.contributions(problem, p)
    size = np.abs(found.shapley).max()
    assert abs(found.shapley.sum() - found.worth) < 1e-10 * size
    assert abs(found.shapley[1] - found.shapley[4]) < 1e-10 * size
    assert abs(found.shapley[5]) < 1e-10 * size
    rng = np.random.default_rng(0)
    one, two = rng.random((2, 6))
    parts = [ft.contributions(problem, p, weights=v).shapley * v.sum() for v in (one, two)]
    both = ft.contributions(problem, p, weights=one + two).shapley * (one + two).sum()
    np.testing.assert_allclose(both, parts[0] + parts[1], atol=1e-10 * size)


def test_logistic_values():
    problem, data, decay = logistic(clients=3, samples=30, dim=2)
    found = ft.contributions(problem)

    def worth(inside):
        from test_fair import logistic_losses

        share = [1.0 if i in inside else 0.0 for i in range(3)]
        w = equilibrium(problem, share) if inside else np.zeros(3)
        return -float(np.mean(logistic_losses(w, data, decay)))

    np.testing.assert_allclose(found.shapley, brute_force(worth, 3), atol=1e-8)


def test_sampled_values_lie_in_their_intervals():
    problem = ft.LinearRegression(num_clients=8, samples=60, seed=1)
    exact = ft.contributions(problem)
    hits = []
    for seed in range(40):
        found = ft.contributions(problem, method="sampled", permutations=40, seed=seed)
        hits.append((found.low <= exact.shapley) & (exact.shapley <= found.high))
        assert abs(found.shapley.sum() - found.worth) < 1e-8 * exact.worth
    assert 0.9 < np.mean(hits) < 0.985
    many = ft.contributions(ft.LinearRegression(num_clients=30, samples=40), permutations=20)
    assert not many.exact and abs(many.shapley.sum() - many.worth) < 1e-8 * abs(many.worth)


def test_held_out_losses_and_clients_with_too_few_samples():
    problem = ft.LinearRegression(num_clients=3, samples=2, true_w=(1.0, 2.0, 3.0), seed=1)
    other = ft.LinearRegression(num_clients=3, samples=200, true_w=(1.0, 2.0, 3.0), seed=2)
    found = ft.contributions(problem, held_out=other)
    assert np.all(np.isfinite(found.shapley))
    assert found.worth > 0


def test_one_round_of_updates_by_hand():
    e = ft.Experiment(ft.LinearRegression(num_clients=2, samples=60), ft.Power(0.01, 0.76), 1, 3)
    run = ft.run(e, updates=True, progress=False)
    found = ft.contributions(run)
    loss = lambda w: float(e.problem.losses(w).mean())  # noqa: E731
    first, second = run.updates[0] / 2
    alone = [loss(run.w0) - loss(run.w0 + u) for u in (first, second)]
    both = loss(run.w0) - loss(run.w0 + first + second)
    by_hand = [(alone[0] + both - alone[1]) / 2, (alone[1] + both - alone[0]) / 2]
    np.testing.assert_allclose(found.shapley, by_hand, rtol=1e-9)
    np.testing.assert_allclose(found.worth, both, rtol=1e-9)
    np.testing.assert_allclose(run.w0 + first + second, run.w[0], atol=1e-12)


def test_updates_add_up_over_the_rounds_that_matter():
    e = ft.Experiment(
        ft.LinearRegression(num_clients=4, samples=60), ft.Power(0.02, 0.76, 20), 60, 3
    )
    run = ft.run(e, updates=True, progress=False)
    found = ft.contributions(run)
    total = float(e.problem.losses(run.w0).mean() - e.problem.losses(run.w[-1]).mean())
    assert abs(found.worth / total - 1) < 0.05  # the rounds that were left out
    assert abs(found.shapley.sum() - found.worth) < 1e-9 * found.worth


SMALL = ft.LinearRegression(num_clients=3, samples=60, dim=2, feature_spread=1.0, seed=4)


def small(**how):
    return ft.Experiment(SMALL, ft.Power(0.1, 0.8, 30), 40, 3, batch_size=20, **how)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"participation": 0.5},
        {"participation": 0.5, "average_over": "present"},
        {"participation": ft.Exactly(1), "average_over": "present"},
        {"server": ft.Normalised("samples")},
        {"local": ft.Momentum(0.5)},
        ft.PRESETS["scaffold"],
        {"behaviours": {2: ft.Idle()}},
        {"server": ft.Clipped(norm=1e9)},
    ],
    ids=str,
)
def test_a_run_s_contributions_add_up_to_what_it_gained(how, monkeypatch):
    """Every round counts here, so nothing is left out."""
    monkeypatch.setattr("fedtaper.outcomes.recorded_rounds.TRUNCATE", 0.0)
    run = ft.run(small(**how), updates=True, progress=False)
    gained = SMALL.losses(run.w0).mean() - SMALL.losses(run.w[-1]).mean()
    np.testing.assert_allclose(ft.contributions(run).shapley.sum(), gained, rtol=1e-9)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"server": ft.AverageMomentum(0.5)}, "did not move by the weighted sum"),
        ({"server": ft.Adam()}, "did not move by the weighted sum"),
        ({"server": ft.Clipped(norm=0.01)}, "did not move by the weighted sum"),
        (ft.PRESETS["feddyn"], "did not move by the weighted sum"),
        ({"delays": (0, 5, 10)}, "not all made from its own model"),
        ({"asynchronous": ft.Asynchronous(buffer=2)}, "not all made from its own model"),
        ({"participation": 0.5, "own_clock": True}, "not all made from its own model"),
    ],
    ids=str,
)
def test_rounds_that_are_not_the_sum_of_their_updates_are_refused(how, says):
    run = ft.run(small(**how), updates=True, progress=False)
    with pytest.raises(ft.FedtaperError, match=says):
        ft.contributions(run)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"server": ft.Clipped(norm=0.05)}, "not a weighted mean"),
        ({"server": ft.Clipped()}, "not a weighted mean"),
        ({"server": ft.Median()}, "not a weighted mean"),
        ({"local": ft.AdamW()}, "scales each coordinate"),
        ({"behaviours": {2: ft.Idle()}}, r"behaviours are set \(client 2\)"),
    ],
    ids=str,
)
def test_experiments_that_do_not_go_to_their_optimum_have_no_exact_answers(how, says):
    e = small(**how)
    run = ft.run(e, progress=False)
    for ask in (
        lambda: ft.intervals(run),
        lambda: ft.intervals(run, method="scaling"),
        lambda: ft.intervals(e),
        lambda: ft.contributions(e),
        lambda: ft.price(e),
    ):
        with pytest.raises(ft.FedtaperError, match=says):
            ask()
    page = ft.board(run)
    assert page.intervals is None and page.contributions is None


@pytest.mark.parametrize("which", ["regression", "logistic"])
def test_prices_are_those_of_full_solves(which):
    if which == "regression":
        problem = ft.LinearRegression(num_clients=5, samples=100)
        losses = problem.losses
    else:
        from test_fair import logistic_losses

        problem, data, decay = logistic(clients=5)
        losses = lambda w: logistic_losses(w, data, decay)  # noqa: E731
    p = np.array([1, 0.5, 0.2, 2, 1])
    found = ft.price(problem, p)
    before = losses(equilibrium(problem, p))
    for i in range(5):
        up, down = (p * (1 + s * 0.005 * np.eye(5)[i]) for s in (1, -1))
        change = losses(equilibrium(problem, up)) - losses(equilibrium(problem, down))
        np.testing.assert_allclose(found.loss[i], change, rtol=0.01, atol=1e-7 * before.max())
    np.testing.assert_allclose(found.losses, before, rtol=1e-9)
    assert (found.accuracy is None) == (which == "regression")


def test_prices_of_an_experiment_are_at_its_effective_influence():
    problem = ft.LinearRegression(num_clients=3, samples=100)
    e = ft.Experiment(problem, ft.Power(0.1, 0.76, 50), 20, (5, 10, 5), participation=(1, 1, 0.5))
    found = ft.price(e)
    np.testing.assert_allclose(found.share, e.influence().share)
    np.testing.assert_allclose(found.loss, ft.price(problem, e.influence().raw).loss)
    assert np.abs(found.share @ found.loss.T).max() < 1e-8  # the weighted loss is at its least


def test_prices_by_paired_runs_agree_with_the_exact_ones():
    problem, _, _ = logistic(clients=3, samples=60, dim=2)
    e = ft.Experiment(problem, ft.Power(2.0, 0.76, 50), 60, 5, batch_size=30)
    exact = ft.price(e)
    found = ft.price(e, method="runs", seeds=range(3), clients=[0], change=0.5)
    assert found.loss.shape == (1, 3) and found.method == "runs"
    assert np.all(np.sign(found.loss[0]) == np.sign(exact.loss[0]))
    np.testing.assert_allclose(found.loss[0], exact.loss[0], rtol=0.5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p, e: ft.contributions(p, method="guess"), "auto"),
        (lambda p, e: ft.contributions(p, [1, 2]), "one per client"),
        (lambda p, e: ft.contributions(p, method="sampled", permutations=3), "at least 20"),
        (lambda p, e: ft.contributions(ft.run(e, progress=False)), "updates=True"),
        (
            lambda p, e: ft.contributions(ft.LinearRegression(num_clients=20), method="exact"),
            "2\\^20 coalitions",
        ),
        (lambda p, e: ft.price(p, method="guess"), "auto"),
        (lambda p, e: ft.price(p, method="runs"), "need an experiment"),
        (lambda p, e: ft.price(e, method="runs", seeds=[1]), "at least 2 seeds"),
    ],
)
def test_mistakes(call, says):
    problem = ft.LinearRegression(num_clients=3, samples=60)
    e = ft.Experiment(problem, ft.Power(0.02, 0.76, 20), 5, 3)
    with pytest.raises(ft.FedtaperError, match=says):
        call(problem, e)


def test_commands_and_pictures(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    monkeypatch.chdir(tmp_path)
    problem = ft.LinearRegression(num_clients=3, samples=60)
    e = ft.Experiment(problem, ft.Power(0.02, 0.76, 20), 30, 3)
    (tmp_path / "e.toml").write_text(ft.to_toml(e), encoding="utf-8")
    ft.run(e, out="run", updates=True, progress=False)
    for words in (
        ["price", "e.toml", "--plot", "p.png"],
        ["contributions", "e.toml", "--plot", "c.png"],
        ["contributions", "e.toml", "--method", "sampled"],
        ["contributions", "run"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "p.png").is_file() and (tmp_path / "c.png").is_file()


def test_claims_are_in_the_ledger():
    from fedtaper.paper import LEDGER, pick
    from fedtaper.paper.coverage import measure, scenarios

    assert [claim.id for claim in pick(LEDGER, ["O"])] == ["O1", "O2", "O3", "O4"]
    e, make = scenarios(3_000_000)["momentum 0.8"]
    found = measure(e, make, 40, first=0)
    assert found.model.shape == (40, 3) and found.losses.shape == (40, 10)
    assert 0.8 < found.model.mean() <= 1


def test_networks_are_shared_out_from_their_updates():
    """A hidden layer and dropout: no equilibrium to solve, but rounds to share out."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(30, 4)).astype(np.float32), rng.integers(2, size=30)) for _ in "abc"]

    def init():
        first, last = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)
        return torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Dropout(0.2), last)

    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y)

    problem = ft.Custom(loss, init, data)
    e = ft.Experiment(problem, ft.Power(0.5, 0.76, 10), 12, 2, batch_size=10)
    run = ft.run(e, updates=True, progress=False)
    found = ft.contributions(run)
    assert found.exact and found.coalitions == 8
    np.testing.assert_allclose(found.shapley.sum(), found.worth, rtol=1e-9)
    np.testing.assert_array_equal(found.shapley, ft.contributions(run).shapley)  # no dropout
    whole = ft.run(e, engine="reference", updates=True, progress=False)  # keeps every number
    np.testing.assert_allclose(found.shapley, ft.contributions(whole).shapley, atol=1e-4)
    with pytest.raises(ft.FedtaperError, match="random numbers"):
        ft.contributions(problem)
