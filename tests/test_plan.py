"""plan(): what is asked for is what a run's step sums give."""

import math
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.core.errors import AssumptionWarning

SERVERS = (
    ft.Average(),
    ft.Average("samples"),
    ft.Normalised(),
    ft.Normalised("samples"),
    ft.Adam(mean=ft.Average("samples")),
)


def measured(e, round_):
    """Server weight x participation x sum of step sizes, by loops and from scratch."""
    samples = [int(s) for s in e.problem.sizes]
    count = len(samples)
    rule = getattr(e.server, "mean", e.server)
    share = [s / sum(samples) if rule.by == "samples" else 1 / count for s in samples]
    batches = [math.ceil(s / e.batch_size) for s in samples]
    steps = [
        e.local_epochs * batches[i]
        if e.local_epochs
        else (e.local_steps[i] if isinstance(e.local_steps, tuple) else e.local_steps)
        for i in range(count)
    ]
    raw = []
    for i, s in enumerate(e.schedules):
        period = {"round": 1, "epoch": e.local_epochs, "update": max(steps)}[e.clock]
        total = 0.0
        for m in range(steps[i]):
            tick = {"round": 0, "update": m, "epoch": m // batches[i]}[e.clock]
            total += s.c / ((round_ - 1) * period + 1 + tick + s.offset) ** s.delta
        weight = share[i]
        if isinstance(rule, ft.Normalised):
            weight *= sum(q * n for q, n in zip(share, steps, strict=True)) / steps[i]
        rate = e.participation[i] if isinstance(e.participation, tuple) else e.participation
        raw.append(weight * rate * total)
    return np.array(raw)


@st.composite
def plans(draw):
    count = draw(st.integers(2, 6))
    many = {"min_size": count, "max_size": count}
    clock = draw(st.sampled_from(["update", "round", "epoch"]))
    by_epoch = clock == "epoch" or draw(st.booleans())
    effort = (
        {"local_epochs": draw(st.integers(1, 3))}
        if by_epoch
        else {"local_steps": draw(st.lists(st.integers(1, 9), **many))}
    )
    return {
        "target": draw(st.lists(st.floats(0.001, 1000), **many)),
        "sizes": draw(st.lists(st.integers(20, 900), **many)),
        "participation": tuple(draw(st.lists(st.floats(0.05, 1.0), **many))),
        "server": draw(st.sampled_from(SERVERS)),
        "rounds": draw(st.integers(1, 500)),
        "delta": draw(st.floats(0.76, 1.0)),
        "offset": draw(st.floats(0, 20)),
        "clock": clock,
        "batch_size": 20,
        **effort,
    }


@settings(max_examples=150, deadline=None)
@given(plans())
def test_round_trip(asked):
    """Random feasible targets: measured effective influence within 1 % (here: 1e-9)."""
    target = np.array(asked["target"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        found = ft.plan(**asked)
    got = measured(found.experiment, asked["rounds"])
    assert np.allclose(got / got.max(), target / target.max(), rtol=1e-9)
    assert np.allclose(found.effective, target, rtol=1e-9)
    assert max(s.c for s in found.schedules) == pytest.approx(0.1)
    first = np.log(measured(found.experiment, 1) / target)
    off = np.abs(first - first[int(np.argmax(target))]).max()
    assert len(found.warnings) == (off > np.log(1.1)) or off == pytest.approx(np.log(1.1))


def test_a_run_moves_as_planned():
    """Alike clients (no noise, one feature): updates come out in the ratio that was planned."""
    x = np.ones((40, 1))
    problem = ft.LinearRegression.from_arrays([x] * 3, [10 * np.ones(40)] * 3, init_spread=0.0)
    found = ft.plan([1, 0.1, 0.02], 3, 5, problem=problem, c=1e-4, batch_size=10)
    run = ft.run(found.experiment, updates=True)
    moves = np.abs(run.updates[-1, :, 0])
    assert np.allclose(moves / moves[0], [1, 0.1, 0.02], rtol=1e-2)


def test_equal_in_spite_of_unequal_data():
    e = ft.plan(
        "equal effective influence in spite of unequal data",
        rounds=50,
        local_epochs=2,
        sizes=[100, 200, 700],
        server=ft.Average("samples"),
    ).experiment
    raw = measured(e, 50)
    assert np.allclose(raw, raw[0])
    assert e.schedules[2].c < e.schedules[0].c / 40  # 7 times the weight, 7 times the steps


def test_fading_by_delta():
    e = ft.plan(
        "fade client 3 to 40% by round 80", rounds=100, local_steps=5, num_clients=5
    ).experiment
    early, late = measured(e, 1), measured(e, 80)
    assert early[3] / early[0] == pytest.approx(1.0)
    assert late[3] / late[0] == pytest.approx(0.4)
    assert 0.76 < e.schedules[3].delta < 1


def test_fading_from_a_start_and_with_an_offset():
    rules = ["client 0 counts 4x", "fade client 1 from 20% to 15% by round 30"]
    found = ft.plan(rules, rounds=60, local_steps=3, num_clients=3, offset=10.0)
    for round_, wanted in ((1, 0.2), (30, 0.15)):
        raw = measured(found.experiment, round_)
        assert raw[1] / raw[2] == pytest.approx(wanted)
        assert raw[0] / raw[2] == pytest.approx(4)


def test_fading_too_fast_gives_the_nearest_inside_a2():
    with pytest.warns(AssumptionWarning, match="cannot fade to 0.01 by round 80 inside A2"):
        found = ft.plan("fade client 3 to 1% by round 80", rounds=100, local_steps=5, num_clients=5)
    assert found.schedules[3].delta == 1.0
    has = measured(found.experiment, 80)
    text = found.warnings[0]
    assert f"it has {has[3] / has[0]:.3g} then" in text
    start = float(text.rsplit(" ", 1)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rule = f"fade client 3 from {100 * start:.4f}% to 1% by round 80"
        again = ft.plan(rule, rounds=100, local_steps=5, num_clients=5)
    has = measured(again.experiment, 80)
    assert has[3] / has[0] == pytest.approx(0.01, rel=0.01)


def test_vanishing_says_what_is_left():
    with pytest.warns(AssumptionWarning, match="client 1 cannot vanish by round 5000"):
        found = ft.plan([1, 0], rounds=5000, local_steps=5)
    assert found.schedules[1] == ft.Power(0.1, 1.0)
    assert found.effective[1] == pytest.approx(0.088, abs=0.001)  # the paper's case 3
    assert "2e+08" in found.warnings[0]


def test_rare_client_by_name(monkeypatch):
    module = sys.modules["fedtaper.theory.stability"]
    monkeypatch.setattr(module, "MEASURABLE", 0)  # ten power iterations are not quick
    pytest.importorskip("torch", reason="images need torch")
    problem = ft.ImageClassification("digits", split=ft.RareClass(3, client=2), model="cnn")
    found = ft.plan(
        "rare client counts 10x", 100, problem=problem, local_epochs=1, batch_size=32, clock="epoch"
    )
    assert np.allclose(found.effective, [1, 1, 10, *[1] * 7])
    assert "not judged" in found.advice


def test_the_offset_that_avoids_the_climb():
    problem = ft.LinearRegression(num_clients=2)
    found = ft.plan([1, 1], rounds=10, local_steps=5, offset=None, problem=problem)
    assert found.schedules[0].offset > 0
    assert ft.stability(found.experiment).stable
    plain = ft.plan([1, 1], rounds=10, local_steps=5, problem=problem)
    assert not ft.stability(plain.experiment).stable and "overshoot" in plain.advice


def test_without_a_problem_nothing_is_judged_and_epochs_are_counted():
    found = ft.plan([1, 0.1], rounds=10, local_epochs=3, sizes=[500, 1000])
    assert found.experiment.clock == "epoch" and found.experiment.period == 3
    assert "not judged" in found.advice and "curvature" not in str(found)
    with pytest.warns(ft.FedtaperWarning, match="not in earlier ones"):
        updates = ft.plan([1, 0.1], rounds=10, local_epochs=3, sizes=[500, 1000], clock="update")
    assert updates.experiment.period == 60
    with pytest.raises(ft.FedtaperError, match=r"problem= \(--file\)"):
        ft.plan([1, 1], rounds=10, local_steps=5, offset=None)


def test_power_iteration_agrees_with_the_closed_form():
    from fedtaper.theory.stability import largest_curvature

    problem = ft.LinearRegression(num_clients=2, dim=5, samples=60, seed=3)
    for i in range(2):
        found = largest_curvature(
            lambda w, i=i: problem.gradient(i, w, slice(None)), np.zeros(5), iterations=300
        )
        assert found == pytest.approx(problem.curvature[i], rel=1e-3)


def test_toml_and_figure(tmp_path):
    found = ft.plan([1, 0.1, 0.1], rounds=100, local_steps=5, sizes=[500, 600, 700])
    again = ft.read_toml(found.save(tmp_path / "plan.toml"))
    assert again == found.experiment
    assert found.plot(tmp_path / "plan.png").stat().st_size > 5000
    assert "0.01/n^0.76" in str(found)


@pytest.mark.parametrize(
    ("target", "how", "text"),
    [
        ([1, -1], {}, "at least 0"),
        ([0, 0], {}, "not all 0"),
        ([1, 2, 3], {"num_clients": 2}, "3 values for 2 clients"),
        ({5: 2.0}, {"num_clients": 3}, "names client 5"),
        ("client 1 is important", {"num_clients": 3}, "cannot read the rule"),
        ("rare client counts 10x", {"num_clients": 3}, "no rare client"),
        ("client 0 counts 2x", {}, "how many clients"),
        ("fade client 0 to 200% by round 9", {"num_clients": 3}, "must fall"),
        ([1, 1], {"server": ft.Normalised(over="step_sums")}, "undoes the step sizes"),
        ([1, 1], {"participation": (1.0, 0.0)}, "never takes part"),
    ],
)
@pytest.mark.filterwarnings("ignore:client 1 never takes part")  # the experiment says so too
def test_mistakes(target, how, text):
    with pytest.raises(ft.FedtaperError, match=text):
        ft.plan(target, rounds=10, local_steps=2, **how)
