"""Rules with memory, each against an independent loop written from its paper."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import t as t_distribution

import fedtaper as ft
from fedtaper.core import draws

ROUNDS, BATCH = 12, 7
PROBLEM = ft.LinearRegression(num_clients=3, dim=3, samples=(40, 60, 50), feature_spread=1.0)
STEPS = {"constant": ft.Constant(0.05), "taper": ft.Power(0.2, 0.8)}
UNEQUAL = {
    "constant": [ft.Constant(0.05), ft.Constant(0.02), ft.Constant(0.08)],
    "taper": [ft.Power(0.2, 0.8), ft.Power(0.1, 0.8), ft.Power(0.2, 0.9)],
}
CASES = [
    (schedules, steps)
    for schedules, steps in product([*STEPS.values(), *UNEQUAL.values()], [4, (2, 5, 3)])
]


def experiment(schedules, steps, **rules):
    return ft.Experiment(
        PROBLEM, schedules, rounds=ROUNDS, local_steps=steps, batch_size=BATCH, seed=3, **rules
    )


class Loop:
    """Federated averaging by hand: batches, gradients and step sizes, and nothing else."""

    def __init__(self, schedules, steps, present=None):
        self.schedules = schedules if isinstance(schedules, list) else [schedules] * 3
        self.steps = (steps,) * 3 if isinstance(steps, int) else steps
        self.w = PROBLEM.initial(3)
        self.period = max(self.steps)

    def gradient(self, client, w, k, step):
        size = len(PROBLEM.y[client])
        index = draws.batch(3, client, k, step, BATCH, size)
        x, y = PROBLEM.x[client][index], PROBLEM.y[client][index]
        return x.T @ (x @ w - y) / BATCH

    def sizes(self, client, k):
        return [self.schedules[client](k * self.period + m + 1) for m in range(self.steps[client])]


def torch_optimiser(make, schedules, steps, reset):
    """Torch's own optimiser at each client, kept or made anew, and a plain mean."""
    import torch

    loop = Loop(schedules, steps)
    models = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    tools = [make([m]) for m in models]
    out = []
    for k in range(ROUNDS):
        for i, model in enumerate(models):
            if reset:
                tools[i] = make([model])
            model.data = torch.tensor(loop.w)
            for step, a in enumerate(loop.sizes(i, k)):
                tools[i].param_groups[0]["lr"] = a
                model.grad = torch.tensor(loop.gradient(i, model.detach().numpy(), k, step))
                tools[i].step()
        loop.w = np.mean([m.detach().numpy() for m in models], axis=0)
        out.append(loop.w)
    return np.array(out)


@pytest.mark.parametrize(("schedules", "steps"), CASES)
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_torch_s(schedules, steps, reset, nesterov):
    torch = pytest.importorskip("torch")

    def make(params):
        return torch.optim.SGD(params, lr=1.0, momentum=0.7, nesterov=nesterov)

    rule = ft.Momentum(0.7, nesterov=nesterov, reset=reset)
    run = ft.run(experiment(schedules, steps, local=rule), engine="reference")
    assert np.allclose(run.w, torch_optimiser(make, schedules, steps, reset), rtol=1e-10)


@pytest.mark.parametrize(("schedules", "steps"), CASES)
@pytest.mark.parametrize("reset", [False, True])
def test_adamw_is_torch_s(schedules, steps, reset):
    torch = pytest.importorskip("torch")

    def make(params):
        return torch.optim.AdamW(params, lr=1.0, betas=(0.8, 0.95), weight_decay=0.1)

    rule = ft.AdamW(b1=0.8, b2=0.95, decay=0.1, reset=reset)
    run = ft.run(experiment(schedules, steps, local=rule), engine="reference")
    assert np.allclose(run.w, torch_optimiser(make, schedules, steps, reset), rtol=1e-8)


def scaffold(schedules, steps):
    """Algorithm 1 of Karimireddy et al. (2020), option II; means weighted by influence."""
    loop = Loop(schedules, steps)
    c, own = np.zeros(3), np.zeros((3, 3))
    out = []
    for k in range(ROUNDS):
        models, new = np.zeros((3, 3)), np.zeros((3, 3))
        sums = np.array([sum(loop.sizes(i, k)) for i in range(3)])
        for i in range(3):
            y = loop.w.copy()
            for step, a in enumerate(loop.sizes(i, k)):
                y = y - a * (loop.gradient(i, y, k, step) - own[i] + c)
            new[i] = own[i] - c + (loop.w - y) / sums[i]
            models[i] = y
        c = c + (sums / sums.sum()) @ (new - own)
        own = new
        loop.w = models.mean(axis=0)
        out.append(loop.w)
    return np.array(out)


def feddyn(schedules, steps, alpha=0.3):
    """Algorithm 1 of Acar et al. (2021) with gradient steps for the clients' problems."""
    loop = Loop(schedules, steps)
    h, gradients = np.zeros(3), np.zeros((3, 3))
    out = []
    for k in range(ROUNDS):
        models = np.zeros((3, 3))
        sums = np.array([sum(loop.sizes(i, k)) for i in range(3)])
        weights = sums / sums.sum()
        for i in range(3):
            theta = loop.w.copy()
            for step, a in enumerate(loop.sizes(i, k)):
                pull = alpha * (theta - loop.w)
                theta = theta - a * (loop.gradient(i, theta, k, step) - gradients[i] + pull)
            gradients[i] = gradients[i] - alpha * (theta - loop.w)
            models[i] = theta
        h = h - alpha * (weights @ (models - loop.w))
        loop.w = weights @ models - h / alpha
        out.append(loop.w)
    return np.array(out)


def fedavgm(schedules, steps, beta=0.6):
    """Hsu et al. (2019): v <- beta v + D, w <- w + v."""
    loop = Loop(schedules, steps)
    v, out = np.zeros(3), []
    for k in range(ROUNDS):
        models = []
        for i in range(3):
            y = loop.w.copy()
            for step, a in enumerate(loop.sizes(i, k)):
                y = y - a * loop.gradient(i, y, k, step)
            models.append(y)
        v = beta * v + np.mean(models, axis=0) - loop.w
        loop.w = loop.w + v
        out.append(loop.w)
    return np.array(out)


METHODS = [
    (scaffold, {"local": ft.Scaffold(), "server": ft.Controlled()}),
    (feddyn, {"local": ft.Dynamic(0.3), "server": ft.DynamicServer(0.3)}),
    (fedavgm, {"server": ft.AverageMomentum(0.6)}),
]


@pytest.mark.parametrize(("schedules", "steps"), CASES)
@pytest.mark.parametrize(("by_hand", "rules"), METHODS, ids=lambda x: getattr(x, "__name__", ""))
def test_methods_are_their_papers(by_hand, rules, schedules, steps):
    run = ft.run(experiment(schedules, steps, **rules), engine="reference")
    assert np.allclose(run.w, by_hand(schedules, steps), rtol=1e-9, atol=1e-12)


def test_with_equal_steps_the_weights_are_the_papers():
    e = experiment(ft.Constant(0.05), 4, **METHODS[0][1])
    assert np.allclose(e.influence().effective, 1.0)


@pytest.mark.parametrize("rules", [
    {"local": ft.Momentum(0.7)},
    {"local": ft.Momentum(0.7, nesterov=True, reset=True)},
    {"local": ft.Momentum(0.7), "server": ft.AverageMomentum(0.5)},
    {"server": ft.AverageMomentum(0.5)},
])  # fmt: skip
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_compiled_agrees_with_the_reference(rules, participation):
    e = experiment(UNEQUAL["taper"], (2, 5, 3), participation=participation, **rules)
    quick, slow = ft.run(e), ft.run(e, engine="reference")
    assert quick.engine == "compiled"
    assert np.allclose(quick.w, slow.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rules", [
    {"local": ft.Momentum(0.7)}, {"local": ft.AdamW()}, METHODS[0][1], METHODS[1][1],
    {"server": ft.AverageMomentum()},
])  # fmt: skip
def test_stopped_and_gone_on_with_is_the_same_run(rules):
    from recorders import recorder

    from fedtaper import engines
    from fedtaper.core.protocols import Options
    from fedtaper.engines.gate import choose

    e = experiment(UNEQUAL["taper"], 4, participation=0.7, **rules)
    engine, saved = choose(e, None, Options()), None
    for rounds in (4, 3, 5):  # stopped twice
        state = engines.init(e, np.array([3]))
        record = recorder(e, state)
        record.restore(state, saved)
        first, before = state.round, state.w.copy()
        record.add(first, before, engine.open(e, state, Options()).advance(rounds))
        saved = record.checkpoint(state, 0.0)
    assert np.array_equal(record.w[0], ft.run(e).w)


def gains(beta, steps):
    """How much the gradients of a round of equal steps count with momentum that is reset."""
    return np.array([sum((1 - beta**m) / (1 - beta) for m in range(1, n + 1)) / n for n in steps])


LONG = {  # settings, the scale of the steps, and influences with the wrong factor
    "momentum, reset": (
        {"local": ft.Momentum(0.8, reset=True)},
        4.0,
        lambda p: p / gains(0.8, (2, 12)),
    ),
    "momentum, kept": ({"local": ft.Momentum(0.8)}, 1.0, lambda p: p * gains(0.8, (2, 12))),
    "nesterov, server momentum": (
        {"local": ft.Momentum(0.5, nesterov=True), "server": ft.AverageMomentum(0.5)},
        1.0,
        lambda p: p / (2, 12),
    ),
    "1 of 2": ({"participation": ft.Exactly(1)}, 4.0, lambda p: p / (2, 12)),
    "the mean over those present": (
        {"participation": (1.0, 0.4), "average_over": "present"},
        4.0,
        lambda p: p * (1, 0.4) / (0.8, 0.2) * 0.8,
    ),
}


@pytest.mark.parametrize("case", LONG)
def test_the_final_model_is_the_equilibrium_of_the_effective_influence(case):
    how, c, wrong = LONG[case]
    judged(how, c, wrong, seeds=200, rounds=2500, steps=(2, 12))


def test_a_forecast_knows_that_scaffold_corrects_the_drift():
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=300, seed=1)
    schedules = [ft.Power(0.1, 0.8, 100), ft.Power(0.02, 0.8, 100), ft.Power(0.05, 0.8, 100)]
    e = ft.Experiment(problem, schedules, 120, 30, batch_size=300)
    for how, drifts in (({}, True), (ft.PRESETS["scaffold"], False)):
        made = replace(e, **how)
        w = ft.run(made, seeds=range(30), progress=False).w[:, -1]
        far = ft.forecast(made, 3600.0)
        spread = np.linalg.norm(w.std(axis=0))
        assert np.linalg.norm(w.mean(axis=0) - far.w) < 0.8 * spread  # over four standard errors
        moved = np.linalg.norm(far.w - far.equilibrium)
        assert moved > 2 * spread if drifts else moved < 0.5 * spread


def test_scaffold_keeps_influence_whoever_takes_part():
    how = {"participation": (1.0, 0.4), **ft.PRESETS["scaffold"]}
    judged(how, 2.0, lambda p: p * (1, 0.4), seeds=10, rounds=1200, steps=(2, 3))


def judged(how, c, wrong, seeds, rounds, steps):
    problem = ft.LinearRegression(
        num_clients=2, samples=200, feature_spread=1.0, sigma_w=2.0, init_spread=1.0, seed=2
    )
    schedules = [ft.Power(c, 0.8, offset=20 * c), ft.Power(0.4 * c, 0.8, offset=20 * c)]
    e = ft.Experiment(problem, schedules, rounds=rounds, local_steps=steps, batch_size=20, **how)
    many = ft.run(e, seeds=range(seeds), thin=rounds)
    final = many.w[:, -1]
    error = final.std(axis=0, ddof=1) / math.sqrt(seeds)
    p = e.influence().effective

    def off(influence):
        return np.abs(final.mean(axis=0) - problem.equilibrium(influence)) / error

    three = t_distribution.ppf(0.99865, seeds - 1)  # three standard errors, with few seeds more
    assert np.all(off(p) < three), off(p)
    assert np.any(off(wrong(p)) > 10), off(wrong(p))


@pytest.mark.parametrize(
    "rules",
    [
        {"local": ft.Scaffold(), "server": ft.Controlled},
        {"local": ft.Dynamic(), "server": ft.DynamicServer},
        {"server": ft.AverageMomentum},
        {"server": ft.Adam},
    ],
    ids=lambda rules: rules["server"].__name__,
)
def test_a_mean_that_undoes_step_sizes_is_known_whatever_holds_it(rules):
    erasing = rules | {"server": rules["server"](mean=ft.Normalised(over="step_sums"))}
    problem = ft.LinearRegression(num_clients=3, samples=60)
    schedules = [ft.Power(c, 0.8) for c in (0.1, 0.01, 0.01)]
    e = ft.Experiment(problem, schedules, rounds=20, local_steps=2, **erasing)
    np.testing.assert_allclose(e.effective_influence(0, 20), 1.0)
    with pytest.raises(ft.FedtaperError, match="undoes the step sizes"):
        ft.plan([1, 0.1, 0.1], 20, 2, **erasing)
    with pytest.raises(ft.FedtaperError, match="nothing to steer"):
        replace(e, steering=ft.Steering("minmax"))
    kept = ft.plan([1, 0.1, 0.1], 20, 2, **(rules | {"server": rules["server"]()}))
    np.testing.assert_allclose(kept.effective, [1, 0.1, 0.1], rtol=1e-6)
