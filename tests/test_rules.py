import numpy as np
import pytest

import fedtaper as ft

SAMPLES = np.array([10.0, 30.0])
STEPS = np.array([4.0, 8.0])
SUMS = np.array([[0.4, 0.2], [0.3, 0.1]])


def test_local_rules_by_hand():
    gradient, w, anchor = np.array([1.0, -2.0]), np.array([3.0, 0.0]), np.array([1.0, 1.0])
    np.testing.assert_array_equal(ft.Sgd().direction(gradient, w, anchor), gradient)
    np.testing.assert_array_equal(ft.Proximal(0.5).direction(gradient, w, anchor), [2.0, -2.5])


def test_average_weights():
    np.testing.assert_allclose(ft.Average().weights(SAMPLES, STEPS, SUMS), [[0.5, 0.5]] * 2)
    by_samples = ft.Average(by="samples").weights(SAMPLES, STEPS, SUMS)
    np.testing.assert_allclose(by_samples, [[0.25, 0.75]] * 2)


def test_fednova_divides_by_own_steps_and_multiplies_by_the_mean():
    found = ft.Normalised().weights(SAMPLES, STEPS, SUMS)
    np.testing.assert_allclose(found, [[0.5 / 4 * 6, 0.5 / 8 * 6]] * 2)
    equal = ft.Normalised().weights(SAMPLES, np.array([5.0, 5.0]), SUMS)
    np.testing.assert_allclose(equal, [[0.5, 0.5]] * 2)  # FedAvg exactly
    erased = ft.Normalised(over="step_sums").weights(SAMPLES, STEPS, SUMS) * SUMS
    np.testing.assert_allclose(erased[:, 0], erased[:, 1])  # influence is gone


def reddi(rule, updates, eta, b1, b2, tau):
    """The FedOpt family from its paper, one number at a time."""
    w, m, v = 0.0, 0.0, tau**2
    for d in updates:
        m = b1 * m + (1 - b1) * d
        if rule == "adagrad":
            v = v + d**2
        elif rule == "adam":
            v = b2 * v + (1 - b2) * d**2
        else:
            v = v - (1 - b2) * d**2 * np.sign(v - d**2)
        w = w + eta * m / (np.sqrt(v) + tau)
    return w


@pytest.mark.parametrize(
    ("name", "rule"), [("adagrad", ft.Adagrad), ("adam", ft.Adam), ("yogi", ft.Yogi)]
)
def test_optimisers_follow_their_paper(name, rule):
    updates = [0.5, -0.2, 0.1, 0.0, -1.0]
    made = rule(eta=0.3, b1=0.8, b2=0.95, tau=0.01)
    w = np.zeros(1)
    state = made.init(w)
    for d in updates:
        w, state = made.step(w, np.array([d]), state)
    assert w[0] == pytest.approx(reddi(name, updates, 0.3, 0.8, 0.95, 0.01))


@pytest.mark.parametrize(
    "rule", [ft.Average(), ft.Normalised(), ft.Adagrad(), ft.Adam(), ft.Yogi()]
)
def test_contract_of_every_server_rule(rule):
    w = np.array([1.0, -1.0])
    state = rule.init(w)
    moved, after = rule.step(w, np.array([0.1, 0.0]), state)
    assert moved.shape == w.shape and len(after) == len(state)
    assert moved[0] > w[0]  # toward the update
    assert moved[1] == w[1]  # and nowhere else
    np.testing.assert_array_equal(w, [1.0, -1.0])  # its input is left alone
    weights = rule.weights(SAMPLES, STEPS, SUMS)
    assert weights.shape == SUMS.shape and np.all(weights > 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ft.Proximal(-1), lambda: ft.Proximal(float("nan")), lambda: ft.Average("size"),
        lambda: ft.Normalised(over="x"), lambda: ft.Adam(eta=0), lambda: ft.Adam(b1=1),
        lambda: ft.Yogi(b2=-0.1), lambda: ft.Adagrad(tau=0), lambda: ft.Adam(eta=float("nan")),
    ],
)  # fmt: skip
def test_bad_constants_are_refused(make):
    with pytest.raises(ft.FedtaperError):
        make()


def test_presets_are_combinations():
    assert set(ft.PRESETS) == {
        "fedsgd", "fedavg", "fedprox", "fednova", "fedadagrad", "fedadam", "fedyogi",
        "momentum", "nesterov", "adamw", "scaffold", "feddyn", "fedavgm",
    }  # fmt: skip
    assert ft.PRESETS["fedsgd"]["local_steps"] == 1
