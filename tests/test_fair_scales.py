"""Fair by choice at any size of losses and parameters, and what cannot be solved in float64."""

import numpy as np
import pytest

import fedtaper as ft


def regression(sizes, dim, scale=1.0, seed=0, freedom=3):
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(n, dim)) for n in sizes]
    return ft.LinearRegression.from_arrays(x, [scale * rng.standard_t(freedom, n) for n in sizes])


def tilted(f, t):
    return f.max() + np.log(np.mean(np.exp(t * (f - f.max())))) / t


@pytest.mark.parametrize("t", [1.0, 1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(3))
def test_a_strong_tilt_of_large_losses_is_nearly_minmax(seed, t):
    problem = regression([300, 20, 11, 9], dim=4, scale=1e4, seed=seed)
    found, worst = ft.fair(problem, "tilt", t=t), ft.fair(problem, "minmax")
    assert worst.gap < 1e-10 * worst.after.max()
    assert found.gap < 1e-9 * found.after.max()
    best = worst.after.max()
    assert best - np.log(4) / t - 1e-9 * best <= tilted(found.after, t) <= best * (1 + 1e-9)
    assert best <= found.after.max() * (1 + 1e-9)
    if t == 1e-6:  # the weights follow from the losses to all digits
        slopes = np.exp(t * (found.after - found.after.max()))
        np.testing.assert_allclose(found.p, slopes / slopes.sum(), atol=1e-8)


def test_an_answer_does_not_depend_on_the_units_of_data():
    plain = regression([300, 20, 11, 9], dim=4)
    scaled = ft.LinearRegression.from_arrays(
        [1e-3 * x for x in plain.x], [1e6 * y for y in plain.y]
    )
    for goal in ("minmax", "q"):
        a, b = ft.fair(plain, goal), ft.fair(scaled, goal)
        np.testing.assert_allclose(b.p, a.p, atol=1e-7)
        np.testing.assert_allclose(b.w, 1e9 * a.w, rtol=1e-6)


def test_losses_that_are_mostly_rounding_say_so():
    rng = np.random.default_rng(2)
    x = [rng.normal(size=(30, 15)) for _ in range(4)]
    y = [v @ np.arange(1, 16.0) + 1e-4 * rng.normal(size=30) for v in x]
    with pytest.raises(ft.FedtaperError, match="of those of the model 0: rounding hides"):
        ft.fair(ft.LinearRegression.from_arrays(x, y), "proportional")


def test_a_tilt_beyond_what_can_be_solved_says_so():
    problem = regression([300, 20, 11, 9], dim=4, scale=1e5, seed=1)
    words = "nobody more than 5% worse"
    with pytest.raises(ft.FedtaperError, match="t = 1 is too strong a tilt for losses of about"):
        for seed in range(8):  # not every one is as hard
            problem = regression([300, 20, 11, 9], dim=4, scale=1e5, seed=seed)
            ft.fair(problem, "tilt", constraints=words)
