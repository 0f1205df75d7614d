"""Steering towards the certified answer, and the board's page."""

import numpy as np
import pytest
from test_fair import logistic

import fedtaper as ft

torch = pytest.importorskip("torch")


def regression(rounds=1500):
    problem = ft.LinearRegression(num_clients=6, samples=300, seed=4)
    return ft.Experiment(problem, ft.Power(0.05, 0.76, 50), rounds, 5)


def test_steering_comes_close_to_the_certified_min_max():
    e = regression()
    best = ft.fair(e.problem, "minmax")
    found = ft.steer(e, "minmax", every=10, rate=2.0)
    gain = best.before.max() - best.after.max()
    assert best.before.max() - found.losses[-1].max() > 0.8 * gain
    assert found.share.min() >= found.share.max() / 100 / 10
    assert len(found.rows()) == len(found.round) + 1 == 151


@pytest.mark.parametrize("goal", ["q", "tilt", "proportional"])
def test_steering_reaches_the_smooth_goals(goal):
    e = regression(800)
    how = {"q": {"q": 2.0}, "tilt": {"t": 0.002}, "proportional": {"baseline": 3000.0}}[goal]
    best = ft.fair(e.problem, goal, **how)
    found = ft.steer(e, goal, **how)
    np.testing.assert_allclose(found.share[-1], best.p, atol=0.01)
    np.testing.assert_allclose(found.losses[-1], best.after, rtol=0.05)


def test_a_goal_that_asks_for_nothing_changes_nothing():
    """q = 0 is the mean loss: equal influence, and so the very run that ft.run makes."""
    e = regression(60)
    found = ft.steer(e, "q", q=0.0, every=20)
    np.testing.assert_allclose(found.w, ft.run(e, progress=False).w[-1], rtol=1e-9)
    np.testing.assert_allclose(found.share, 1 / 6, atol=1e-12)


def test_influence_is_bounded_and_held_out_losses_can_steer():
    e = regression(200)
    found = ft.steer(e, "minmax", rate=50.0, bound=5.0)
    assert np.all(found.share.max(axis=1) / found.share.min(axis=1) < 5.0 + 1e-9)
    other = ft.LinearRegression(num_clients=6, samples=300, seed=4, snr_db=5)
    seen = ft.steer(e, judge=other)
    np.testing.assert_allclose(seen.losses[-1], other.losses(seen.w))
    mine = ft.steer(e, judge=lambda w: np.arange(6.0) + 1)
    assert np.argmax(mine.share[-1]) == 5


def test_networks_are_steered_too():
    problem, _, _ = logistic(clients=3, samples=60, dim=2)
    e = ft.Experiment(problem, ft.Power(2.0, 0.76, 50), 60, 5, batch_size=20)
    found = ft.steer(e, "minmax", every=6)
    equal = ft.run(e, progress=False)
    from fedtaper.theory.losses import losses_of

    assert found.losses[-1].max() < losses_of(problem).values(equal.w[-1]).max()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"goal": "best"}, "goal must be"),
        ({"rate": 0}, "rate"),
        ({"bound": 1}, "bound"),
        ({"every": 0}, "every"),
        ({"judge": ft.LinearRegression(num_clients=3)}, "3 clients and 3 parameters; it must have"),
    ],
)
def test_mistakes(how, says):
    with pytest.raises(ft.FedtaperError, match=says):
        ft.steer(regression(20), **how)


def test_board_has_what_can_be_had():
    found = ft.fair(regression().problem)
    plan = found.plan(rounds=300, local_steps=5, offset=50)
    page = ft.board(ft.run(plan.experiment, updates=True, progress=False), found)
    head, *rows = page.rows()
    assert head == ["client", "asked", "given", "audit", "loss", "95% interval", "brought"]
    assert len(rows) == 6 and not page.missing
    np.testing.assert_allclose(page.asked, found.p)
    text = str(page)
    assert "Asked: goal minmax" in text and "Certified: no influences" in text
    many = ft.run(plan.experiment, seeds=[3, 5], progress=False)
    second = ft.board(many, seed=5)
    alone = ft.intervals(many).losses.value[1]
    np.testing.assert_allclose(second.intervals.losses.value, alone, rtol=1e-9)
    assert any("kept no updates" in text for text in second.missing)
    with pytest.raises(ft.FedtaperError, match="no seed 4"):
        ft.board(many, seed=4)


def test_board_says_what_is_missing():
    e = ft.Experiment(
        regression().problem, ft.Power(0.05, 0.76, 50), 20, 5, server=ft.Adam(), batch_size=20
    )
    page = ft.board(ft.run(e, progress=False), [1, 1, 1, 1, 1, 2])
    assert page.intervals is None
    assert any(text.startswith("Intervals: missing") for text in page.missing)
    np.testing.assert_allclose(page.asked.sum(), 1)


def test_board_counts_what_the_audit_cannot_tell():
    """Short runs show nothing: that is neither kept nor broken."""
    e = ft.Experiment(regression().problem, ft.Power(0.05, 0.76, 50), 3, 5)
    page = ft.board(ft.run(e, updates=True, progress=False))
    verdicts = [c.verdict for c in page.audit.clients]
    assert all(v.startswith("cannot tell") for v in verdicts)
    assert "Audited: this run cannot tell for 6 of 6." in page.sentences()
    cheat = ft.Experiment(
        regression().problem, ft.Power(0.05, 0.76, 50), 300, 5, behaviours={2: ft.Idle()}
    )
    told = ft.board(ft.run(cheat, updates=True, progress=False)).sentences()
    assert any("1 did not (2)" in text or "1 did not (client 2)" in text for text in told)


def test_board_of_a_steered_run_is_certified_and_in_the_report(tmp_path):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    e = regression(200)
    run = ft.steer(e, "minmax", out=tmp_path / "run", updates=True).run
    page = ft.board(run)
    np.testing.assert_allclose(page.asked, ft.fair(e.problem, "minmax").p)
    np.testing.assert_allclose(page.given, run.experiment.influence().share)
    assert page.gap < 1e-6
    text = ft.report(run, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Asked, given, certified" in text and "The controller's factors" in text
    done = CliRunner().invoke(app, ["board", str(tmp_path / "run")])
    assert done.exit_code == 0 and "Certified" in done.output, done.output
    done = CliRunner().invoke(app, ["board", str(tmp_path / "run"), "--goal", "q"])
    assert done.exit_code == 0 and "goal q" in done.output, done.output
