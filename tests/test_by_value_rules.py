"""Rules by value: one step of each by hand, defaults, and limits of what is accepted."""

import dataclasses
import math

import numpy as np
import pytest

import fedtaper as ft

W, ANCHOR, GRADIENT = np.array([2.0, -1.0]), np.array([1.0, 1.0]), np.array([3.0, 0.5])
UPDATE = np.array([0.5, -0.25])
SAMPLES, STEPS = np.array([10.0, 30.0, 60.0]), np.array([4.0, 8.0, 2.0])
SUMS = np.array([[0.4, 0.2, 0.1], [0.3, 0.1, 0.2]])
RULES = [ft.Sgd, ft.Proximal, ft.Momentum, ft.AdamW, ft.Scaffold, ft.Dynamic, ft.Average,
         ft.Normalised, ft.Adagrad, ft.Adam, ft.Yogi, ft.AverageMomentum, ft.Controlled,
         ft.DynamicServer]  # fmt: skip


def fields(rule):
    return {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_cannot_be_changed(rule):
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule().other = 1
    assert hash(rule()) == hash(rule())


def test_defaults():
    assert fields(ft.Proximal()) == {"mu": 0.1}
    assert fields(ft.Momentum()) == {"beta": 0.9, "nesterov": False, "reset": False}
    assert fields(ft.AdamW()) == {"b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "decay": 0.01,
                                  "reset": False}  # fmt: skip
    assert fields(ft.Dynamic()) == {"alpha": 0.1}
    mean = ft.Average("uniform")
    assert fields(ft.DynamicServer()) == {"alpha": 0.1, "mean": mean}
    assert fields(ft.AverageMomentum()) == {"beta": 0.9, "mean": mean}
    assert fields(ft.Adam()) == {"eta": 0.1, "b1": 0.9, "b2": 0.99, "tau": 1e-3, "mean": mean}
    assert fields(ft.Yogi()) == fields(ft.Adam())
    assert fields(ft.Adagrad()) == fields(ft.Adam()) | {"b1": 0.0}
    assert fields(ft.Normalised()) == {"by": "uniform", "over": "steps"}


@pytest.mark.parametrize(
    "make",
    [ft.Momentum, lambda x: ft.AdamW(b1=x), lambda x: ft.AdamW(b2=x),
     ft.AverageMomentum, lambda x: ft.Adam(b1=x), lambda x: ft.Yogi(b2=x)],
)  # fmt: skip
def test_what_is_at_least_0_and_below_1(make):
    for value in (0.0, 0.05, 0.999):
        make(value)
    for value in (-0.01, 1.0, 1.3, math.nan):
        with pytest.raises(ft.FedtaperError):
            make(value)


@pytest.mark.parametrize(
    "make, zero",
    [(ft.Proximal, True), (lambda x: ft.AdamW(epsilon=x), True),
     (lambda x: ft.AdamW(decay=x), True), (ft.Dynamic, False), (ft.DynamicServer, False),
     (lambda x: ft.Adam(eta=x), False), (lambda x: ft.Adam(tau=x), False)],
)  # fmt: skip
def test_what_is_above_0_or_at_least_0(make, zero):
    make(0.05)
    for value in (-0.01, math.nan) if zero else (-0.01, 0.0, math.nan):
        with pytest.raises(ft.FedtaperError):
            make(value)
    if zero:
        make(0.0)


def test_what_rules_are():
    traits = ("rescales", "receives")
    assert [getattr(ft.AdamW, name) for name in traits] == [True, 0]
    assert [getattr(ft.Scaffold, name) for name in traits] == [False, 1]
    assert [getattr(ft.Momentum, name) for name in traits] == [False, 0]
    assert ft.Controlled.travels == 1 and ft.Average.travels == ft.DynamicServer.travels == 0
    assert ft.Adam.rescales and not ft.AverageMomentum.rescales
    erasing = ft.Normalised(over="step_sums")
    assert erasing.erases_influence and not ft.Normalised().erases_influence
    for make in (ft.Adam, ft.AverageMomentum):
        assert make(mean=erasing).erases_influence and not make().erases_influence
    assert (ft.Momentum(0.5).gain, ft.AverageMomentum(0.75).gain) == (2.0, 4.0)
    assert (ft.Momentum().keeps, ft.Momentum(reset=True).keeps) == ("run", "round")
    assert (ft.AdamW().keeps, ft.AdamW(reset=True).keeps) == ("run", "round")
    assert ft.Dynamic(0.3).added_curvature == 0.3 and ft.Proximal(0.4).added_curvature == 0.4


# ------------------------------------------------------------------ clients


def test_the_proximal_step():
    near(ft.Proximal(0.5).direction(GRADIENT, W, ANCHOR), [3.5, -0.5])


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_steps(nesterov):
    rule = ft.Momentum(0.5, nesterov=nesterov)
    near(rule.init(W), [[0.0, 0.0]])
    w, (v,) = rule.step(W, GRADIENT, ANCHOR, 0.1, (np.array([4.0, 2.0]),))
    near(v, [5.0, 1.5])
    near(w, [2 - 0.1 * (3 + 2.5), -1 - 0.1 * (0.5 + 0.75)] if nesterov else [1.5, -1.15])


def test_what_gradients_count_with_momentum():
    a = np.array([[[0.4, 0.2], [0.2, 0.1], [0.1, 0.0]]])
    near(ft.Momentum(0.5).counts(a), 2 * a)
    later = np.array([[[0.525, 0.25], [0.25, 0.1], [0.1, 0.0]]])
    near(ft.Momentum(0.5, reset=True).counts(a), later)
    near(ft.Momentum(0.5, nesterov=True, reset=True).counts(a), a + later / 2)
    near(ft.Momentum(0.5, reset=True).counts(a[:, :1]), a[:, :1])


def test_two_steps_of_adamw():
    rule = ft.AdamW(b1=0.5, b2=0.75, epsilon=0.1, decay=0.2)
    memory = rule.init(W)
    assert [part.tolist() for part in memory] == [[0, 0], [0, 0], [0]]
    first, memory = rule.step(W, GRADIENT, ANCHOR, 0.1, memory)
    near(first, 0.98 * W - 0.1 * GRADIENT / (abs(GRADIENT) + 0.1))
    near(memory[0], GRADIENT / 2)
    near(memory[1], GRADIENT**2 / 4)
    again = np.array([1.0, -2.0])
    found, memory = rule.step(first, again, ANCHOR, 0.1, memory)
    mean = (GRADIENT / 4 + again / 2) / 0.75
    square = (GRADIENT**2 * 3 / 16 + again**2 / 4) / (7 / 16)
    near(found, 0.98 * first - 0.1 * mean / (np.sqrt(square) + 0.1))
    assert memory[2].tolist() == [2.0]


def test_scaffold_s_client():
    rule, own, shared = ft.Scaffold(), np.array([0.3, 0.1]), np.array([1.0, 2.0])
    near(rule.init(W), [[0, 0]])
    memory = rule.begin((own,), (shared, "not for it"))
    assert memory[0] is own and memory[1] is shared
    w, kept = rule.step(W, GRADIENT, ANCHOR, 0.1, memory)
    near(w, [2 - 0.1 * (3 - 0.3 + 1), -1 - 0.1 * (0.5 - 0.1 + 2)])
    assert kept is memory
    near(rule.finish(W, ANCHOR, 0.25, memory)[0], [0.3 - 1 - 4, 0.1 - 2 + 8])


def test_feddyn_s_client():
    rule, own = ft.Dynamic(0.5), np.array([0.3, 0.1])
    near(rule.init(W), [[0, 0]])
    w, kept = rule.step(W, GRADIENT, ANCHOR, 0.1, (own,))
    near(w, [2 - 0.1 * (3 - 0.3 + 0.5), -1 - 0.1 * (0.5 - 0.1 - 1)])
    assert kept[0] is own
    near(rule.finish(W, ANCHOR, 0.25, (own,))[0], [0.3 - 0.5, 0.1 + 1])


def test_influence_with_corrections_whatever_the_weights_add_up_to():
    weight = np.array([[0.5, 1.0, 0.25], [1.0, 1.0, 2.0]])
    rate = np.array([1.0, 0.5, 0.2])
    for found, kept in ((ft.Scaffold().influence(weight, rate, SUMS), weight * SUMS),
                        (ft.Dynamic().influence(weight, rate, SUMS), weight)):  # fmt: skip
        for k in range(2):
            usual = weight[k] * SUMS[k]  # the weighted sum of the steps of those present is kept
            near(found[k], kept[k] / kept[k].sum() * (usual * rate).sum())
    near(ft.Sgd().influence(weight, rate, SUMS), weight * rate * SUMS)


# ------------------------------------------------------------------ the server


def test_weights():
    near(ft.Average().weights(SAMPLES, STEPS, SUMS), np.full((2, 3), 1 / 3))
    share = np.array([0.1, 0.3, 0.6])
    near(ft.Average("samples").weights(SAMPLES, STEPS, SUMS), [share, share])
    near(ft.Normalised().weights(SAMPLES, STEPS, SUMS), np.array([[14 / 36, 14 / 72, 14 / 18]] * 2))
    found = ft.Normalised("samples", "step_sums").weights(SAMPLES, STEPS, SUMS)
    near(found, share * np.array([[0.16], [0.18]]) / SUMS)
    found = ft.DynamicServer(mean=ft.Average("samples")).weights(SAMPLES, STEPS, SUMS)
    near(found, share * SUMS / np.array([[0.16], [0.18]]))
    for rule in (ft.Adam(mean=ft.Average("samples")), ft.Controlled(ft.Average("samples")),
                 ft.AverageMomentum(mean=ft.Average("samples"))):  # fmt: skip
        near(rule.weights(SAMPLES, STEPS, SUMS), [share, share])


@pytest.mark.parametrize("make", [ft.Adagrad, ft.Adam, ft.Yogi])
def test_a_step_of_the_adaptive_servers(make):
    rule = make(eta=0.3, b1=0.5, b2=0.75, tau=0.1)
    near(rule.init(W), [[0, 0], [0.01, 0.01]])
    m, v = np.array([0.2, 0.4]), np.array([0.09, 0.16])
    w, memory = rule.step(W, UPDATE, (m, v))
    square = UPDATE**2  # the first is above v, the second below
    second = {ft.Adagrad: v + square, ft.Adam: 0.75 * v + square / 4,
              ft.Yogi: v + np.array([1, -1]) * square / 4}[make]  # fmt: skip
    near(memory, [[0.35, 0.075], second])
    near(w, W + 0.3 * np.array([0.35, 0.075]) / (np.sqrt(second) + 0.1))


def test_steps_of_the_other_servers():
    near(ft.AverageMomentum(0.5).init(W), [[0, 0]])
    w, (v,) = ft.AverageMomentum(0.5).step(W, UPDATE, (np.array([1.0, 2.0]),))
    near(v, [1.0, 0.75])
    near(w, [3.0, -0.25])
    near(ft.Controlled().init(W), [[0, 0]])
    c = (np.array([1.0, 2.0]),)
    near(ft.Controlled().step(W, UPDATE, c)[0], W + UPDATE)
    near(ft.Controlled().learn(UPDATE, 0.2, 0.25, c)[0], [0.75 - 0.625, 1.5 + 0.3125])
    assert ft.Controlled().learn(UPDATE, 0.0, 0.0, c) is c
    near(ft.DynamicServer(0.5).init(W), [[0, 0]])
    w, (h,) = ft.DynamicServer(0.5).step(W, UPDATE, c)
    near(h, [0.75, 2.125])
    near(w, [2 + 0.5 - 1.5, -1 - 0.25 - 4.25])
