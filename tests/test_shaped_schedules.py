"""Schedules of other shapes: their values, limits, influence, clock and forecasts."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import Steps

import fedtaper as ft
from fedtaper.testing import check_schedule
from fedtaper.theory.clock import OdeClock

SHAPES = [
    ft.Cosine(0.1, over=200, end=0.01),
    ft.WarmUp(ft.Power(0.1, 0.8), over=100),
    ft.Piecewise(((1, 0.05), (50, ft.Power(0.2, 0.9)))),
    ft.WarmUp(ft.Piecewise(((1, 0.1), (60, 0.02))), over=30),
    ft.Shaped(lambda n: 0.1 / (n + 5) ** 0.8, limit=ft.Power(0.1, 0.8, offset=5), after=1),
]
LINEAR = ft.LinearRegression(num_clients=2, samples=100, feature_spread=1.0)


def by_hand(schedule, n):
    """The definitions, written again as plain Python."""
    if isinstance(schedule, ft.Cosine):
        if n >= schedule.over:
            return schedule.end
        turn = math.pi * (n - 1) / (schedule.over - 1)
        return schedule.end + (schedule.a - schedule.end) * 0.5 * (1 + math.cos(turn))
    if isinstance(schedule, ft.WarmUp):
        return by_hand(schedule.schedule, n) * min(1.0, n / schedule.over)
    if isinstance(schedule, ft.Piecewise):
        return by_hand([what for start, what in schedule.pieces if start <= n][-1], n)
    if isinstance(schedule, ft.Constant):
        return schedule.a
    limit = schedule.limit
    return limit.c / (n + limit.offset) ** limit.delta


@pytest.mark.parametrize("schedule", SHAPES, ids=lambda s: type(s).__name__)
@given(n=st.integers(1, 5000))
@settings(max_examples=30, deadline=None)
def test_values_and_settling(schedule, n):
    assert schedule(n) == pytest.approx(by_hand(schedule, n), rel=1e-12)
    assert schedule([n, n])[1] == pytest.approx(schedule(n), rel=1e-14)
    if n >= schedule.settles:
        assert schedule(n) == pytest.approx(schedule.limit(n), rel=1e-12)
    assert hash(schedule) == hash(schedule) and schedule.formula


def test_influence_is_the_limit_s_and_at_finite_n_the_shape_s():
    warm, plain = ft.WarmUp(ft.Power(0.2, 0.8), over=100), ft.Power(0.1, 0.8)
    assert ft.influence([plain, warm]).tolist() == [0.5, 1.0]
    assert ft.influence([plain, warm], n=25)[0] == pytest.approx(0.1 / (0.2 * 0.25))
    e = ft.Experiment(LINEAR, [plain, warm], rounds=50, local_steps=1)
    assert e.limit_influence.tolist() == [0.5, 1.0]
    assert e.influence(25).effective[0] == pytest.approx(2.0)


@pytest.mark.parametrize("schedule", SHAPES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("steps", [1, 5])
def test_the_ode_s_clock_is_the_sum_of_the_step_sizes(schedule, steps):
    e = ft.Experiment(LINEAR, schedule, rounds=100, local_steps=steps)
    clock = OdeClock.of(e)
    for rounds in (1, 3, 30, 100, 400):
        n = rounds * steps
        by_sum = math.fsum(by_hand(schedule, m) for m in range(1, n + 1))
        assert clock.t(n) == pytest.approx(by_sum, rel=1e-9)
        assert clock.n(clock.t(n)) == pytest.approx(n, rel=1e-9)
    grid = np.linspace(1, 400 * steps, 300)
    steepness = (clock.t(grid + 1e-4) - clock.t(grid - 1e-4)) / 2e-4
    assert clock.slope(grid) == pytest.approx(steepness, rel=1e-3, abs=1e-6)
    assert clock.n(clock.t(grid)) == pytest.approx(grid, rel=1e-8)


def test_a_run_follows_its_forecast():
    schedule = ft.WarmUp(ft.Power(0.5, 0.8), over=200)
    e = ft.Experiment(LINEAR, [schedule, ft.Power(0.25, 0.8)], rounds=2000, local_steps=2)
    many = ft.run(e, seeds=range(40))
    for n in (400, 1000, 4000):
        far = ft.forecast(e, n=n, w=many.w0.mean(axis=0))
        now = many.w[:, n // 2 - 1]
        error = now.std(axis=0, ddof=1) / math.sqrt(40)
        assert np.all(np.abs(now.mean(axis=0) - far.w) < 4 * error + 2e-3), n


@pytest.mark.parametrize("schedule", SHAPES[:4], ids=lambda s: type(s).__name__)
def test_as_toml_and_back(schedule):
    e = ft.Experiment(LINEAR, schedule, rounds=5, local_steps=2)
    assert ft.from_toml(ft.to_toml(e)).schedules == e.schedules


def hyperbola(n):
    return 1.0 / n


def test_a_function_in_a_file_is_named_by_its_import_path():
    shaped = ft.Shaped(hyperbola, limit=ft.Power(1.0, 1.0), after=1)
    text = ft.to_toml(ft.Experiment(LINEAR, shaped, rounds=5, local_steps=1))
    assert f'shape = "{hyperbola.__module__}:hyperbola"' in text
    assert ft.from_toml(text).schedules[0] == shaped
    with pytest.raises(ft.FedtaperError, match="the shape"):
        ft.from_toml(text.replace("hyperbola", "parabola"))


def test_nested_tables_in_a_file():
    text = """
        [experiment]
        rounds = 5
        local_steps = 1
        [problem]
        kind = "linear"
        num_clients = 2
        [[schedules]]
        kind = "warm_up"
        over = 10
        schedule = { c = 0.1, delta = 0.8 }
        [[schedules]]
        kind = "piecewise"
        pieces = [[1, 0.1], [50, { c = 0.2, delta = 0.9 }]]
    """
    assert ft.from_toml(text).schedules == (
        ft.WarmUp(ft.Power(0.1, 0.8), over=10),
        ft.Piecewise(((1, 0.1), (50, ft.Power(0.2, 0.9)))),
    )
    with pytest.raises(ft.FedtaperError, match="unknown key 'ovr'"):
        ft.from_toml(text.replace("over", "ovr"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ft.Cosine(0.1, over=10, end=0.0), "would stop"),
        (lambda: ft.WarmUp(0.1, over=10), "must be a schedule"),
        (lambda: ft.Piecewise(((2, 0.1),)), "the first at 1"),
        (lambda: ft.Piecewise(((1, 0.1), (1, 0.2))), "increasing"),
        (lambda: ft.Shaped(0.1, ft.Constant(0.1)), "function of n"),
        (lambda: ft.Shaped(lambda n: n * 0.0, ft.Constant(0.1)), "a step size must be"),
        (lambda: ft.Shaped(lambda n: 0.1, ft.Constant(0.1))([1, 2]), "one step size per n"),
        (lambda: ft.Shaped(np.reciprocal, limit=0.1), "a Power or a Constant"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(ft.FedtaperError, match=says):
        make()


def test_a_limit_that_is_not_the_shape_s_is_warned_of():
    with pytest.warns(ft.FedtaperWarning, match="times its declared limit"):
        ft.Shaped(np.reciprocal, limit=ft.Power(0.5, 1.0))


def test_a_forecast_beyond_what_can_be_summed_is_refused():
    wave = ft.Shaped(lambda n: 0.1 / n * (1 + 1 / n), limit=ft.Power(0.1, 1.0))
    e = ft.Experiment(LINEAR, wave, rounds=5, local_steps=1)
    assert ft.run(e).t[-1] == pytest.approx(sum(wave(n) for n in range(1, 6)))
    with pytest.raises(ft.FedtaperError, match="after="):
        ft.forecast(e, n=1e6)


def test_a_schedule_that_inherits_nothing_is_one_everywhere(tmp_path):
    mine, usual = Steps(0.02, 31.0), ft.Constant(0.02)
    check_schedule(mine)
    e = ft.Experiment(LINEAR, [mine, usual], rounds=20, local_steps=3)
    assert e.limit_influence.tolist() == [0.5, 1.0]
    assert ft.influence([mine, usual], n=[1, 40]).tolist() == [[1, 1], [0.5, 1]]
    quick, slow = (ft.run(e, engine=name, progress=False) for name in ("compiled", "reference"))
    np.testing.assert_allclose(quick.w, slow.w, rtol=1e-12)
    as_pieces = ft.Piecewise(((1, 0.02), (31, 0.01)))
    same = ft.run(ft.Experiment(LINEAR, [as_pieces, usual], rounds=20, local_steps=3))
    assert np.array_equal(quick.w, same.w)
    text = ft.to_toml(e)
    assert 'kind = "strangers:Steps"' in text and ft.from_toml(text).schedules == e.schedules
    ft.run(e, out=tmp_path / "run", progress=False)
    again = ft.load(tmp_path / "run")
    assert again.experiment == e and np.array_equal(again.w, quick.w)
    far = {s: ft.forecast(ft.Experiment(LINEAR, s, 20, 3), n=600) for s in (mine, as_pieces)}
    np.testing.assert_allclose(far[mine].w, far[as_pieces].w, rtol=1e-12)
    nested = ft.WarmUp(mine, over=10)
    assert nested.limit == ft.Constant(0.01) and nested.settles == 31
    found = ft.Experiment(LINEAR, nested, rounds=5, local_steps=1)
    assert ft.from_toml(ft.to_toml(found)).schedules == found.schedules
    cheat = ft.Experiment(LINEAR, usual, 20, 3, behaviours={0: ft.OtherSchedule(mine)})
    np.testing.assert_allclose(ft.run(cheat).w, quick.w, rtol=1e-12)


def test_a_schedule_of_your_own_trains_networks():
    torch = pytest.importorskip("torch")
    data = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(2)]
    loss = torch.nn.functional.mse_loss
    problem = ft.Custom(lambda m, x, y: loss(m(x), y), lambda: torch.nn.Linear(3, 1), data)
    made = [
        ft.run(ft.Experiment(problem, s, 5, 3, batch_size=4), engine="cpu", progress=False).final
        for s in (Steps(0.02, 7.0), ft.Piecewise(((1, 0.02), (7, 0.01))))
    ]
    assert np.array_equal(*made)


def test_what_a_schedule_of_your_own_lacks_is_named():
    @dataclass(frozen=True)
    class Half:
        c, delta, formula = 0.1, 0.0, "half"

        def __call__(self, n):
            return 0.1 + 0 * np.asarray(n)

    class Unhashable(Steps):
        __hash__ = None

    for make in (ft.influence, lambda s: ft.Experiment(LINEAR, s, 5, 1)):
        with pytest.raises(ft.FedtaperError, match="has no offset, limit, settles; a schedule of"):
            make(Half())
        with pytest.raises(ft.FedtaperError, match=r"schedule 1 must be .* has no offset, limit"):
            make([ft.Constant(0.1), Half()])
        with pytest.raises(ft.FedtaperError, match="must be a schedule such as"):
            make(ft.Constant)
        with pytest.raises(ft.FedtaperError, match=r"any function of n is Shaped"):
            make(lambda n: 1 / n)
        with pytest.raises(ft.FedtaperError, match="has no hash; a schedule"):
            make(Unhashable(0.1, 5.0))


def test_a_cosine_that_starts_too_high_is_named():
    e = ft.Experiment(LINEAR, ft.Cosine(5.0, over=100), rounds=50, local_steps=1)
    found = ft.stability(e)
    assert not found.stable and found.safe_offset == 0
