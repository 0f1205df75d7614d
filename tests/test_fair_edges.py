"""Fair by choice where losses are negative, or 0 for every client."""

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.outcomes.limits import limits_of, worse

torch = pytest.importorskip("torch")


def poisson():
    """Counts at three clients: torch's usual loss leaves out log(y!), and is negative here."""
    rng = np.random.default_rng(3)
    data = []
    for size, mean in ((80, 2.0), (50, 2.5), (30, 1.8)):
        x = rng.normal(size=(size, 3))
        data.append((x, rng.poisson(np.exp(mean + x @ [0.3, -0.2, 0.1])).astype(float)))

    def loss(model, x, y):
        decay = 1e-3 * sum((p**2).sum() for p in model.parameters())
        return torch.nn.functional.poisson_nll_loss(model(x).squeeze(1), y) + decay

    return ft.Custom(loss, lambda: torch.nn.Linear(3, 1), data)


def regression(sizes, dim):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, dim)) for n in sizes]
    return ft.LinearRegression.from_arrays(x, [rng.normal(size=n) for n in sizes])


def test_worse_is_larger_by_a_share_of_the_size():
    np.testing.assert_allclose(worse(np.array([20.0, -20.0, 0.0]), 0.05), [21, -19, 0])
    before = np.array([-8.0, -21.0, 4.0])
    found = limits_of(["client 0's loss below -5", "the rest at most 20% worse"], before, None)
    np.testing.assert_allclose(found.losses, [-5, -16.8, 4.8])
    found = limits_of("no client more than 10% worse than alone", before, lambda: before - 1)
    np.testing.assert_allclose(found.losses, [-8.1, -19.8, 3.3])


@pytest.mark.parametrize(
    ("words", "share"),
    [("nobody more than 5% worse", 0.05), ("the rest at most 20% worse", 0.2)],
)
def test_limits_of_negative_losses_are_kept(words, share):
    found = ft.fair(poisson(), "minmax", constraints=words)
    assert np.all(found.before < 0), "what this test is about"
    limited = np.isfinite(found.limits)
    bound = found.before + share * np.abs(found.before)
    np.testing.assert_allclose(found.limits[limited], bound[limited])
    assert limited.sum() == (3 if share == 0.05 else 2)
    assert np.all(found.after <= found.limits + 1e-9) and found.gap < 1e-9
    assert found.after.max() < found.before.max()


def test_changes_of_negative_losses_have_the_right_sign():
    found = ft.fair(poisson(), "minmax", constraints="client 1's loss below -5")
    for old, new, row in zip(found.before, found.after, found.rows()[1:], strict=True):
        assert row[4] == f"{(new - old) / -old:+.1%}"
        assert (row[4][0] == "+") == (new > old)
    assert [note for note in found.notes if "worse off" in note] == [
        "More than 10 % worse off than before: client 1."
    ]
    assert found.limits[1] == -5


def test_proportional_has_a_baseline_above_negative_losses():
    found = ft.fair(poisson(), "proportional")
    assert found.gap < 1e-9 and np.all(found.after < 0)
    weights = 1 / (0 - found.after)  # the baseline is the worst loss plus its size: 0
    np.testing.assert_allclose(found.p, weights / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("goal", ["minmax", "tilt", "proportional"])
@pytest.mark.parametrize("size", [3, 5])
def test_one_model_that_fits_all_samples_serves_every_goal(goal, size):
    found = ft.fair(regression([size] * 3, dim=20), goal, before=[1, 2, 1])
    np.testing.assert_allclose(found.after, 0, atol=1e-12)
    np.testing.assert_allclose(found.p, [0.25, 0.5, 0.25])
    assert found.gap < 1e-12 and "best for every client" in found.notes[0]


@pytest.mark.parametrize("goal", ["minmax", "tilt", "proportional"])
def test_data_without_noise(goal):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(30, 2)) for _ in range(3)]
    found = ft.fair(ft.LinearRegression.from_arrays(x, [v @ [1.0, 2.0] for v in x]), goal)
    np.testing.assert_allclose(found.w, [1, 2], atol=1e-12)
    assert found.gap < 1e-12
    with pytest.raises(ft.FedtaperError, match="no model keeps every limit"):
        ft.fair(found.problem, goal, constraints="client 0's loss below -1")


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("goal", ["minmax", "tilt", "proportional"])
def test_data_with_little_noise(goal, noise):
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(30, 2)) for _ in range(3)]
    y = [v @ [1.0, 2.0] + noise * rng.normal(size=30) for v in x]
    found = ft.fair(ft.LinearRegression.from_arrays(x, y), goal)
    np.testing.assert_allclose(found.w, [1, 2], atol=2 * noise)
    if goal == "minmax":
        assert found.after.max() <= found.before.max() + 1e-15
