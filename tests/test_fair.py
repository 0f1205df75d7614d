"""Fair by choice: against SciPy's direct minimisation, hand numbers and weak duality."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import fedtaper as ft
from fedtaper.rules.goals import GOALS, Proportional, QFair, Tilt
from fedtaper.theory.equilibria import equilibrium, minimiser, sensitivity
from fedtaper.theory.losses import losses_of

torch = pytest.importorskip("torch")


def logistic(clients=6, samples=40, dim=3, seed=0, decay=0.01, uneven=False):
    from torch.nn.functional import binary_cross_entropy_with_logits

    rng = np.random.default_rng(seed)
    shared, data = rng.normal(size=dim), []
    for i in range(clients):
        size = samples + (3 * (i % 3) if uneven else 0)
        x = rng.normal(size=(size, dim)).astype(np.float32).astype(np.float64)  # as torch keeps it
        chance = 1 / (1 + np.exp(-x @ (shared + rng.normal(size=dim))))
        data.append((x, (rng.random(size) < chance).astype(float)))

    def loss(model, x, y):
        score = model(x)[:, 0]
        size = sum((p * p).sum() for p in model.parameters())
        right = ((score.detach() > 0) == (y > 0.5)).double().mean()
        return binary_cross_entropy_with_logits(score, y) + decay / 2 * size, right

    return ft.Custom(loss, lambda: torch.nn.Linear(dim, 1), data), data, decay


def logistic_losses(w, data, decay):
    """By hand: mean log(1 + exp(-s)) of signed scores, and the decay."""
    out = []
    for x, y in data:
        score = (x @ w[:-1] + w[-1]) * (2 * y - 1)
        out.append(np.mean(np.logaddexp(0, -score)) + decay / 2 * w @ w)
    return np.array(out)


def half_squares(problem):
    """The clients' losses from the raw samples."""
    return lambda w: np.array(
        [np.mean((x @ w - y) ** 2) / 2 for x, y in zip(problem.x, problem.y, strict=True)]
    )


def direct(value, start):
    """SciPy's own minimum, without any derivative of ours, to its last digits."""
    found = minimize(value, start, method="BFGS", options={"gtol": 1e-9})
    return minimize(value, found.x, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})


def test_losses_by_hand_and_finite_differences():
    problem, data, decay = logistic(uneven=True)
    losses = losses_of(problem)
    rng = np.random.default_rng(1)
    w, p = rng.normal(size=4), rng.random(6)
    np.testing.assert_allclose(losses.values(w), logistic_losses(w, data, decay), rtol=1e-12)
    h = 1e-5
    for j in range(4):
        step = h * np.eye(4)[j]
        slope = (losses.values(w + step) - losses.values(w - step)) / (2 * h)
        np.testing.assert_allclose(losses.gradients(w)[:, j], slope, atol=1e-9)
        bend = (losses.gradients(w + step) - losses.gradients(w - step)) / (2 * h)
        np.testing.assert_allclose(losses.hessian(w, p)[j], p @ bend, atol=1e-8)
        np.testing.assert_allclose(losses.hessians(w)[:, j], bend, atol=1e-8)
    spread = np.diag([0.3, 0.1, 0.2, 0.4])
    third = [
        np.trace(spread @ (losses.hessian(w + h * e, p) - losses.hessian(w - h * e, p))) / (2 * h)
        for e in np.eye(4)
    ]
    np.testing.assert_allclose(losses.third(w, p, spread), third, atol=1e-7)


def test_noise_is_the_covariance_of_single_samples():
    problem, data, decay = logistic(clients=2)
    w = np.array([0.3, -0.2, 0.5, 0.1])
    x, y = data[1]
    rows = np.column_stack([x, np.ones(len(y))])
    chance = 1 / (1 + np.exp(-rows @ w))
    by_hand = rows * (chance - y)[:, None] + decay * w
    expected = np.cov(by_hand.T, bias=True)
    np.testing.assert_allclose(losses_of(problem).noise(w)[1], expected, atol=1e-12)


def test_a_loss_that_cannot_be_stacked_gives_the_same():
    problem, _, _ = logistic(clients=3, dim=2)

    def stubborn(model, x, y):
        loss, right = problem.loss(model, x, y)
        return loss + 0.0 * loss.detach().item(), right

    other = losses_of(ft.Custom(stubborn, problem.init, problem.client_data))
    same = losses_of(problem)
    w, p = np.array([0.5, -1.0, 0.2]), np.array([0.2, 0.3, 0.5])
    assert same._stacks and not other._stacks
    np.testing.assert_allclose(other.gradients(w), same.gradients(w), atol=1e-12)
    np.testing.assert_allclose(other.hessian(w, p), same.hessian(w, p), atol=1e-12)
    np.testing.assert_allclose(other.noise(w), same.noise(w), atol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda p: sum(p) > 0.01))
@settings(max_examples=25, deadline=None)
def test_equilibrium_is_the_closed_form(p):
    problem = ft.LinearRegression(num_clients=4, samples=60)
    expected = problem.equilibrium(p)
    np.testing.assert_allclose(equilibrium(problem, p), expected, rtol=1e-8, atol=1e-8)


def test_sensitivity_against_full_solves():
    problem, _, _ = logistic()
    losses = losses_of(problem)
    p = np.array([0.3, 0.1, 0.2, 0.15, 0.05, 0.2])
    w = minimiser(losses, p)
    h = 1e-5
    for i in range(6):
        step = h * np.eye(6)[i]
        moved = (minimiser(losses, p + step, w) - minimiser(losses, p - step, w)) / (2 * h)
        np.testing.assert_allclose(sensitivity(losses, w, p)[:, i], moved, rtol=1e-5, atol=1e-7)


def test_minmax_of_the_papers_problem_is_the_first_trial():
    problem = ft.LinearRegression()
    found = ft.fair(problem, "minmax")
    assert found.gap < 1e-6
    assert np.isclose(found.before.max(), 1249.35, atol=0.01)
    assert np.isclose(found.after.max(), 1149.23, atol=0.01)
    assert int(np.sum(found.p < 1e-6)) == 7
    assert any("7 of 10 clients have share 0" in note for note in found.notes)
    np.testing.assert_allclose(half_squares(problem)(found.w), found.after, rtol=1e-10)
    # no model does better: a thousand others, near and far
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 1.0, 10.0):
        others = found.w + size * rng.normal(size=(250, 3))
        assert problem.losses(others).max(axis=1).min() >= found.after.max() - found.gap


def test_minmax_by_hand():
    """f_1 = (w - 1)^2 / 2 + 1, f_2 = (w + 1)^2 / 2: equal at w = 1/2, so p = (3/4, 1/4)."""
    x = [np.array([[1.0], [1.0]])] * 2
    y = [np.array([1.0 + 2**0.5, 1.0 - 2**0.5]), np.array([-1.0, -1.0])]
    found = ft.fair(ft.LinearRegression.from_arrays(x, y), "minmax")
    np.testing.assert_allclose(found.w, [0.5], atol=1e-9)
    np.testing.assert_allclose(found.p, [0.75, 0.25], atol=1e-9)
    np.testing.assert_allclose(found.after, [1.125, 1.125], atol=1e-9)


@pytest.mark.parametrize("goal", [QFair(1.0), QFair(3.0), Tilt(0.002), "proportional"])
def test_smooth_goals_agree_with_direct_minimisation(goal):
    problem = ft.LinearRegression(num_clients=6, samples=200, seed=3)
    losses = half_squares(problem)
    name, how = ("proportional", {}) if goal == "proportional" else (goal.name, vars(goal))
    found = ft.fair(problem, name, **how)
    if goal == "proportional":
        goal = Proportional(np.full(6, 2 * found.before.max()))
    expected = direct(lambda w: goal.value(losses(w)), np.zeros(3) + 0.1)
    reached = goal.value(losses(found.w))
    assert reached <= expected.fun + 1e-12 * abs(expected.fun)
    np.testing.assert_allclose(found.w, expected.x, atol=1e-5)
    assert found.gap < 1e-6
    slopes = goal.slopes(found.after)
    np.testing.assert_allclose(found.p, slopes / slopes.sum(), atol=1e-9)


@pytest.mark.parametrize("goal", GOALS)
def test_logistic_goals(goal):
    problem, data, decay = logistic(uneven=True)
    found = ft.fair(problem, goal, q=2.0, t=3.0)
    np.testing.assert_allclose(found.after, logistic_losses(found.w, data, decay), rtol=1e-10)
    assert found.gap < 1e-9
    if goal == "minmax":
        assert found.after.max() < found.before.max()
        best = direct(lambda w: logistic_losses(w, data, decay).max(), found.w + 0.01)
        assert best.fun >= found.after.max() - 1e-9


def test_limits_hold_and_cost():
    problem = ft.LinearRegression()
    free = ft.fair(problem, "minmax")
    held = ft.fair(problem, "minmax", constraints="nobody more than 5% worse")
    assert np.all(held.after <= 1.05 * held.before + 1e-6)
    assert free.after.max() < held.after.max() < held.before.max()
    assert held.gap < 1e-6 and held.excess < 1e-6
    # a multiplier is what one unit more of a limit is worth
    tight = int(np.argmax(held.multipliers))
    looser = ft.fair(
        problem,
        "minmax",
        constraints=[
            *(
                f"client {i}'s loss below {1.05 * f + (i == tight):.10f}"
                for i, f in enumerate(held.before)
            )
        ],
    )
    gain = held.after.max() - looser.after.max()
    assert np.isclose(gain, held.multipliers[tight], rtol=0.02)


def test_named_client_and_the_rest():
    problem = ft.LinearRegression()
    words = ["client 3's loss below 700", "the rest at most 20% worse"]
    found = ft.fair(problem, "q", constraints=words)
    assert found.after[3] <= 700 + 1e-6
    others = np.arange(10) != 3
    assert np.all(found.after[others] <= 1.2 * found.before[others] + 1e-6)
    assert any("Client 3 is at its limit" in note for note in found.notes)


def test_q_is_never_sold_as_worst_case():
    found = ft.fair(ft.LinearRegression(), "q")
    assert np.isclose(found.after.max(), 1269.22, atol=0.01)
    assert any("worst client worse off" in note for note in found.notes)


def test_held_out_no_client_worse_off_than_alone():
    settings_ = {"num_clients": 5, "true_w": (1.0, 2.0, 3.0), "snr_db": 0.0}
    problem = ft.LinearRegression(samples=6, seed=3, **settings_)
    other = ft.LinearRegression(samples=400, seed=4, **settings_)
    words = "no client worse off than alone"
    found = ft.fair(problem, "minmax", held_out=other, constraints=words)
    for i in range(5):
        own = problem.equilibrium(np.eye(5)[i])
        assert found.after[i] <= other.losses(own)[i] * (1 + 1e-6)
    assert found.after.max() <= found.before.max() + 1e-9
    assert np.isnan(found.gap) and "No certificate" in found.certificate


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"goal": "minimax"}, "did you mean 'minmax'"),
        ({"goal": "q", "q": -1}, "q must be"),
        ({"goal": "tilt", "t": 0}, "t must be"),
        ({"constraints": "be nice"}, "cannot read the constraint"),
        ({"constraints": "client 30's loss below 4"}, "the clients are 0 to"),
        ({"constraints": "client 3's loss below 1"}, "no model keeps every limit"),
        ({"constraints": "no client worse off than alone"}, "held_out="),
        ({"before": [1, 2]}, "2 values for 10 clients"),
        ({"held_out": ft.LinearRegression(num_clients=3)}, "held_out has 3 clients"),
    ],
)
def test_mistakes(how, says):
    with pytest.raises(ft.FedtaperError, match=says):
        ft.fair(ft.LinearRegression(), **({"goal": "minmax"} | how))


def test_losses_without_a_minimum_or_not_convex_are_refused():
    from torch.nn.functional import binary_cross_entropy_with_logits

    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]])
    data = [(x, (x[:, 0] > 0).float())] * 2
    separable = ft.Custom(
        lambda m, x, y: binary_cross_entropy_with_logits(m(x)[:, 0], y),
        lambda: torch.nn.Linear(1, 1),
        data,
    )
    with pytest.raises(ft.FedtaperError, match=r"weight decay|no minimiser"):
        ft.fair(separable)
    bent = ft.Custom(
        lambda m, x, y: torch.cos(m(x)).mean(),
        lambda: torch.nn.Linear(1, 1),
        data,
    )
    with pytest.raises(ft.FedtaperError, match="not convex"):
        ft.fair(bent)


def test_plan_and_picture(tmp_path):
    found = ft.fair(ft.LinearRegression(num_clients=4, samples=100))
    plan = found.plan(rounds=50, local_steps=5, batch_size=20)
    share = plan.experiment.influence().effective
    expected = np.maximum(found.p / found.p.max(), 1e-3)
    np.testing.assert_allclose(share, expected / expected[plan.experiment.reference], rtol=1e-6)
    assert found.plot(tmp_path / "fair.png").stat().st_size > 5000
    assert "duality gap" in str(found)


def test_command(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    monkeypatch.chdir(tmp_path)
    e = ft.Experiment(
        ft.LinearRegression(num_clients=3, samples=80), ft.Power(0.1, 0.76, 50), 20, 5, batch_size=9
    )
    (tmp_path / "e.toml").write_text(ft.to_toml(e), encoding="utf-8")
    words = ["fair", "e.toml", "--out", "fair.toml", "--plot", "fair.png"]
    done = CliRunner().invoke(app, [*words, "--constraint", "nobody more than 50% worse"])
    assert done.exit_code == 0, done.output
    assert "duality gap" in done.output and (tmp_path / "fair.png").is_file()
    assert ft.read_toml(tmp_path / "fair.toml").batch_size == 9
    assert CliRunner().invoke(app, ["fair", "e.toml", "--goal", "best"]).exit_code == 2


def wine(decay, init=None):
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))

    def loss(model, inputs, labels):
        size = sum((p * p).sum() for p in model.parameters())
        return torch.nn.functional.cross_entropy(model(inputs), labels) + decay / 2 * size

    data = [(x[part], y[part]) for part in np.array_split(order, 3)]
    return ft.Custom(loss, init or (lambda: torch.nn.Linear(13, 3)), data)


def hidden():
    return torch.nn.Sequential(torch.nn.Linear(13, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))


def dropping():
    return torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(13, 3))


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (lambda: wine(0.01, dropping), "draws random numbers"),
        (lambda: wine(0.01, hidden), "not convex"),
        (lambda: wine(0.0), "no minimiser.*weight decay"),
    ],
    ids=["dropout", "hidden layer", "separable"],
)
def test_what_cannot_be_solved_is_refused_by_every_tool(problem, says):
    made = problem()
    e = ft.Experiment(made, ft.Power(0.5, 0.76, 50), 10, 2, batch_size=20)
    for tool in (ft.fair, ft.price, ft.contributions):
        with pytest.raises(ft.FedtaperError, match=says):
            tool(made)
    with pytest.raises(ft.FedtaperError, match=says):
        ft.intervals(e)
    with pytest.raises(ft.FedtaperError, match='method="runs"'):
        ft.price(e)


def test_a_strangers_softmax_regression_is_solved():
    problem = wine(0.01)
    found = ft.fair(problem, "minmax")
    assert found.gap < 1e-8 and found.after.max() < found.before.max()
    prices = ft.price(problem)
    assert np.all(prices.loss.diagonal() < 0)
    plan = found.plan(rounds=50, local_steps=2, delta=0.76, c=0.5, offset=None)
    head, *rows = plan.rows()
    assert head[-3:] == ["share", "own loss", "mean loss"]
    np.testing.assert_allclose(
        [float(row[-2]) for row in rows], plan.prices.loss.diagonal(), rtol=1e-3
    )
    assert ft.plan([1, 2, 3], rounds=5, local_steps=2).prices is None  # made-up data


@pytest.mark.parametrize("stubborn", [False, True], ids=["stacked", "one by one"])
def test_samples_in_dictionaries_are_samples_all_the_same(stubborn):
    plain, data, _ = logistic(clients=3, uneven=True)

    def loss(model, batch):
        found, _ = plain.loss(model, batch["x"], batch["y"])
        if stubborn:
            found.item()  # which no stack of clients can do
        return found

    words = ft.Custom(loss, plain.init, [{"x": x, "y": y} for x, y in data])
    one, two = losses_of(plain), losses_of(words)
    w = np.linspace(-1, 1, plain.dim)
    assert np.allclose(one.values(w), two.values(w), rtol=1e-12)
    assert np.allclose(one.noise(w), two.noise(w), rtol=1e-10)
    assert np.allclose(one.hessians(w), two.hessians(w), rtol=1e-10)
    assert np.allclose(ft.fair(words).p, ft.fair(plain).p, atol=1e-6)
