"""The controller inside a run: recorded, resumed, replayed, audited, on every CPU engine."""

from dataclasses import replace

import interrupted
import numpy as np
import pytest
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.core.scaled import Scaled
from fedtaper.simulation import drive


def experiment(rounds=60, goal="minmax", **changes):
    problem = ft.LinearRegression(num_clients=4, dim=3, samples=120, feature_spread=1.0, seed=7)
    plan = ft.Steering(goal, every=7, rate=3.0)
    how = {"local_steps": 3, "batch_size": 8, "steering": plan} | changes
    schedules = how.pop("schedules", ft.Power(0.2, 0.8, 5))
    return ft.Experiment(problem, schedules, rounds, **how)


def same(a, b):
    np.testing.assert_array_equal(a.final, b.final)
    np.testing.assert_array_equal(a.update_norms, b.update_norms)
    for name in ("round", "losses", "share", "factor"):
        np.testing.assert_array_equal(vars(a.looks)[name], vars(b.looks)[name])
    assert a.experiment == b.experiment


def test_scaled_is_the_schedule_times_a_factor():
    base = ft.Power(0.1, 0.76, 3)
    made = Scaled(base, ((1, 1.0), (11, 0.5), (31, 4.0)))
    n = np.array([1.0, 10, 11, 30, 31, 1000])
    np.testing.assert_array_equal(made(n), base(n) * np.array([1, 1, 0.5, 0.5, 4, 4]))
    assert made(10) == base(10) and (made.c, made.delta, made.offset) == (0.4, 0.76, 3)
    assert made.limit == ft.Power(0.4, 0.76, 3) and made.settles == 31
    assert Scaled(ft.Constant(0.1), ((1, 2.0),)).limit == ft.Constant(0.2)
    for wrong in ((), ((2, 1.0),), ((1, 1.0), (1, 2.0)), ((1, 0.0),), ((1, np.nan),)):
        with pytest.raises(ft.FedtaperError, match="factors"):
            Scaled(base, wrong)


def test_what_was_recorded_replays_to_the_same_bits():
    """The experiment that a steered run hands back declares the very steps that were made."""
    steered = ft.run(experiment(), progress=False)
    again = ft.run(replace(steered.experiment, steering=None), progress=False)
    np.testing.assert_array_equal(again.w, steered.w)
    np.testing.assert_array_equal(again.metrics["error"], steered.metrics["error"])
    assert steered.scales.shape == (60, 4)
    np.testing.assert_array_equal(steered.scales[:7], 1.0)
    np.testing.assert_array_equal(steered.scales[7:14], np.tile(steered.looks.factor[1], (7, 1)))
    np.testing.assert_allclose(steered.scales.mean(axis=1), 1.0)
    last = steered.experiment.influence(56).share
    np.testing.assert_allclose(steered.looks.share[-1], last)
    assert np.abs(last - 0.25).max() > 0.01  # it did move
    assert ft.run(experiment(steering=None), progress=False).looks is None


def test_losses_are_those_of_the_clients():
    run = ft.run(experiment(), progress=False)
    for k, f in zip(run.looks.round, run.looks.losses, strict=True):
        np.testing.assert_allclose(f, run.experiment.problem.losses(run.w[k - 1]), rtol=1e-12)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"participation": 0.5},
        {"local": ft.Momentum(0.5)},
        {"server": ft.Adam()},
        {"server": ft.Normalised()},
        {"delays": ft.RandomDelay(1.0, most=2), "schedules": ft.Power(0.05, 0.8, 20)},
        {"asynchronous": ft.Asynchronous(buffer=2)},
        {"local_steps": (1, 2, 3, 4)},
    ],
    ids=lambda how: next(iter(how), "plain"),
)
def test_fast_engines_steer_as_the_reference_does(how):
    e = experiment(30, **how)
    fast = ft.run(e, progress=False)
    slow = ft.run(e, engine="reference", progress=False)
    assert fast.engine in ("compiled", "events")
    np.testing.assert_allclose(fast.w, slow.w, rtol=1e-9)
    np.testing.assert_allclose(fast.looks.factor, slow.looks.factor, rtol=1e-9)


def stopped(e, out, monkeypatch, after):
    """A run that is stopped after so many checkpoints, one for every block of a few rounds."""
    with monkeypatch.context() as patch:
        patch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr("fedtaper.engines.BLOCK_SAMPLES", 480)
        interrupted.stopped(e, out, patch, after, progress=False)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, after):
    e = experiment(goal="tilt")
    whole = ft.run(e, progress=False)
    stopped(e, tmp_path / "run", monkeypatch, after)
    same(ft.run(e, out=tmp_path / "run", resume=True, progress=False), whole)
    loaded = ft.load(tmp_path / "run")
    same(loaded, whole)
    assert ft.audit(loaded).clients
    text = (tmp_path / "run" / "steering.csv").read_text()
    assert text.startswith("round,loss_0,") and len(text.splitlines()) == 1 + len(whole.looks.round)
    same(ft.run(e, out=tmp_path / "run", resume=True, progress=False), whole)


def test_more_rounds_are_added_as_if_it_had_never_ended(tmp_path):
    ft.run(experiment(25), out=tmp_path / "run", progress=False)
    longer = ft.run(experiment(60), out=tmp_path / "run", resume=True, progress=False)
    same(longer, ft.run(experiment(60), progress=False))
    with pytest.raises(ft.FedtaperError, match="steering"):
        ft.run(experiment(60, goal="q"), out=tmp_path / "run", resume=True, progress=False)


def test_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    e = experiment(goal="proportional")
    e = replace(e, steering=replace(e.steering, baseline=(900.0, 900.0, 900.0, 1000.0)))
    text = ft.to_toml(e)
    assert "[steering]" in text and ft.from_toml(text) == e
    made = ft.run(e, progress=False)
    plain = replace(made.experiment, steering=None)
    assert ft.from_toml(ft.to_toml(plain)) == plain
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["run", "e.toml", "--out", "run"])
    assert done.exit_code == 0, done.output
    same(ft.load("run"), made)
    with pytest.raises(ft.FedtaperError, match="unknown key 'evry' in \\[steering\\]"):
        ft.from_toml(text.replace("every", "evry"))


def test_the_audit_knows_the_moving_scales():
    """What is declared is the schedule times the scale: honest clients are not accused."""
    problem = ft.LinearRegression(num_clients=6, samples=400, seed=3)
    plan = ft.Steering("minmax", every=10, rate=2.0)
    e = ft.Experiment(problem, ft.Power(0.02, 0.8, 20), 300, 5, steering=plan)
    run = ft.run(e, updates=True, progress=False)
    assert run.scales[-1].max() / run.scales[-1].min() > 3
    assert not any(c.accused for c in ft.audit(run).clients)
    declared = replace(e, steering=None).step_sums(0, 300) * run.scales
    np.testing.assert_allclose(run.experiment.step_sums(0, 300), declared, rtol=1e-12)
    cheat = {2: ft.OtherSchedule(ft.Power(0.02, 1.0, 20))}
    asked = replace(e, behaviours=cheat, challenges=ft.Challenges())
    verdicts = [c.verdict for c in ft.audit(ft.run(asked, updates=True, progress=False)).clients]
    assert verdicts == ["as declared"] * 2 + ["fading"] + ["as declared"] * 3


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"own_clock": True}, "one clock for all"),
        ({"server": ft.Normalised(over="step_sums")}, "nothing to steer"),
        ({"steering": "minmax"}, "steering needs a Steering"),
    ],
)
def test_refused(how, says):
    with pytest.raises(ft.FedtaperError, match=says):
        experiment(**how)


def test_refused_by_the_gate_and_the_controller():
    with pytest.raises(ft.FedtaperError, match="one at a time"):
        ft.run(experiment(), seeds=[1, 2])
    with pytest.raises(ft.FedtaperError, match="judge= is for steered runs"):
        ft.run(experiment(steering=None), judge=lambda w: np.ones(4))
    with pytest.raises(ft.FedtaperError, match="one finite loss for each of 4"):
        ft.run(experiment(), judge=lambda w: [1.0, np.nan, 1.0, 1.0], progress=False)


def test_networks_are_resumed_and_agree_with_the_reference(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(40, 5)) + i, rng.integers(3, size=40)) for i in range(3)]

    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y)

    def init():
        drop = torch.nn.Dropout(0.2)
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), drop,
                                   torch.nn.Linear(8, 3))  # fmt: skip

    problem = ft.Custom(loss, init, data)
    plan = ft.Steering("minmax", every=4, rate=2.0)
    e = ft.Experiment(problem, ft.Power(0.5, 0.76, 10), 20, 3, batch_size=10, steering=plan)
    whole = ft.run(e, progress=False)
    slow = ft.run(e, engine="reference", progress=False)
    assert whole.engine == "cpu"
    np.testing.assert_allclose(whole.looks.factor, slow.looks.factor, rtol=1e-4)
    np.testing.assert_allclose(whole.final, slow.final, atol=1e-4)
    stopped(e, tmp_path / "run", monkeypatch, 7)
    same(ft.run(e, out=tmp_path / "run", resume=True, progress=False), whole)
    late = replace(e, delays=2)
    fast, slow = (ft.run(late, engine=name, progress=False) for name in ("cpu", "reference"))
    np.testing.assert_allclose(fast.looks.factor, slow.looks.factor, rtol=1e-4)
