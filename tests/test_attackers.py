"""Simulated clients that do not do what they declared."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core import draws
from fedtaper.core.scaled import Scaled
from fedtaper.rules import behaviours as attackers
from fedtaper.rules.behaviours import actual_step_sizes

SLOW, FAST = ft.Power(0.05, 0.76), ft.Power(0.05, 1.0)
ALL = {
    0: ft.Idle(),
    1: ft.OtherSchedule(FAST),
    2: ft.Noise(0.5),
    3: ft.Copies(),
    4: ft.After(3, ft.Copies(2.0)),
    5: ft.After(2, ft.OtherSchedule(FAST)),
}


def experiment(clients=ALL, dim=3, **how):
    problem = ft.LinearRegression(num_clients=7, dim=dim, samples=60, feature_spread=1.0, seed=2)
    settings = {"rounds": 8, "local_steps": 3, "batch_size": 10} | how
    return ft.Experiment(problem, SLOW, behaviours=clients, **settings)


@pytest.mark.parametrize("dim", [3, 20])
@pytest.mark.parametrize("server", [ft.Average(), ft.Adam()])
def test_engines_agree(dim, server):
    rates = (1.0, 1.0, 0.6, 1.0, 0.5, 1.0, 0.7)
    e = experiment(dim=dim, server=server, participation=rates)
    one = ft.run(e, seeds=[1, 2, 3], engine="reference", updates=True)
    two = ft.run(e, seeds=[1, 2, 3], engine="compiled", updates=True)
    assert np.allclose(one.updates, two.updates, atol=1e-12)
    assert np.allclose(one.w, two.w, atol=1e-12)
    assert np.allclose(np.linalg.norm(two.updates, axis=-1), two.update_norms)


def test_recording_updates_changes_nothing_and_they_add_up():
    e = experiment(clients={})
    plain, kept = ft.run(e), ft.run(e, updates=True)
    assert plain.updates is None
    assert np.array_equal(plain.w, kept.w)
    before = np.concatenate([kept.w0[None], kept.w[:-1]])
    assert np.allclose(before + kept.updates.mean(axis=1), kept.w)


def test_tapers_is_the_other_schedule():
    e = experiment({1: ft.OtherSchedule(FAST)})
    other = replace(e, schedules=(SLOW, FAST, *[SLOW] * 5), behaviours=())
    assert np.allclose(ft.run(e).w, ft.run(other).w)
    assert e.schedules[1] == SLOW  # declared


@dataclass(frozen=True)
class Eager:
    """A behaviour of the user's own: the declared steps, ten times as far along."""

    def plan(self, honest):
        return replace(honest, offset=10.0), 0, 1.0


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_behaviour_of_ones_own_uses_the_schedule_that_it_plans(engine):
    e = experiment({1: Eager(), 2: ft.After(2, Eager())})
    planned = replace(SLOW, offset=10.0)
    plain = replace(e, behaviours=())
    other = replace(plain, schedules=(SLOW, planned, planned, *[SLOW] * 4))
    sent, same = (ft.run(one, engine=engine, updates=True).updates for one in (e, other))
    assert np.array_equal(sent[0, 1], same[0, 1])
    a, honest, eager = (actual_step_sizes(one, 0, 4) for one in (e, plain, other))
    assert np.array_equal(a[:, :, 1], eager[:, :, 1])
    assert np.array_equal(a[:2, :, 2], honest[:2, :, 2])
    assert np.array_equal(a[2:, :, 2], eager[2:, :, 2])


def test_a_behaviour_of_ones_own_is_steered_as_the_others_are():
    e = experiment({1: Eager()})
    steered = replace(e, schedules=tuple(Scaled(one, ((1, 2.0),)) for one in e.schedules))
    assert np.array_equal(actual_step_sizes(steered, 0, 4), 2 * actual_step_sizes(e, 0, 4))


def test_idle_noise_and_copies():
    e = experiment()
    run = ft.run(e, updates=True)
    honest = ft.run(experiment({}, rounds=1), updates=True)
    assert np.all(run.updates[:, 0] == 0)
    assert run.update_norms[0, 2] == pytest.approx(0.5 * honest.update_norms[0, 2])
    direction = draws.normals(0, 2, 0, 3)
    assert np.allclose(
        run.updates[0, 2] / run.update_norms[0, 2], direction / np.linalg.norm(direction)
    )
    others = np.delete(run.updates, 3, axis=1)
    assert np.all(run.updates[0, 3] == 0)  # there is nothing to copy yet
    size = np.linalg.norm(others, axis=-1).mean(axis=1)[:-1]
    mean = others.mean(axis=1)[:-1]
    assert np.allclose(run.updates[1:, 3], mean * (size / np.linalg.norm(mean, axis=-1))[:, None])


def test_after_is_honest_first():
    e = experiment({4: ft.After(3, ft.Copies(2.0))})
    late, honest = ft.run(e, updates=True), ft.run(experiment({}), updates=True)
    assert np.array_equal(late.updates[:3], honest.updates[:3])
    mean = np.delete(late.updates, 4, axis=1).mean(axis=1)
    assert np.allclose(late.updates[3:, 4], 2 * mean[2:-1])


def test_normals_are_standard_and_apart_from_the_batches():
    x = np.concatenate([draws.normals(5, i, k, 40) for i in range(20) for k in range(20)])
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.03
    assert abs((x**4).mean() - 3) < 0.2


def test_toml_round_trip_and_store(tmp_path):
    e = experiment()
    assert ft.from_toml(ft.to_toml(e)) == e
    run = ft.run(e, updates=True, out=tmp_path / "run")
    again = ft.load(tmp_path / "run")
    assert again.experiment == e
    assert np.array_equal(again.updates, run.updates)


def test_a_stopped_run_goes_on_the_same(tmp_path, monkeypatch):
    e = experiment()
    whole = ft.run(e, updates=True)
    from fedtaper.engines import compiled
    from fedtaper.engines.compiled import Compiled

    monkeypatch.setattr(Compiled, "block_rounds", lambda *a: 2)
    advance, calls = compiled._advance, []

    def stop(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return advance(*args)

    monkeypatch.setattr(compiled, "_advance", stop)
    with pytest.raises(KeyboardInterrupt):
        ft.run(e, updates=True, out=tmp_path / "run")
    monkeypatch.setattr(compiled, "_advance", advance)
    made = ft.run(e, updates=True, out=tmp_path / "run", resume=True)
    assert np.array_equal(made.updates, whole.updates)


@pytest.mark.parametrize(
    ("clients", "text"),
    [
        ({9: ft.Idle()}, "the clients are 0 to 6"),
        ({0: "idle"}, "needs a behaviour"),
        ({-1: ft.Idle()}, "whole number"),
    ],
)
def test_mistakes(clients, text):
    with pytest.raises(ft.FedtaperError, match=text):
        experiment(clients)


def test_bad_behaviours():
    for make in (
        lambda: ft.Noise(0),
        lambda: ft.Copies(-1.0),
        lambda: ft.OtherSchedule(0.1),
        lambda: ft.After(1, ft.After(2, ft.Idle())),
    ):
        with pytest.raises(ft.FedtaperError):
            make()
    text = ft.to_toml(experiment()).replace('kind = "idle"', 'kind = "idel"')
    with pytest.raises(ft.FedtaperError, match="did you mean 'idle'"):
        ft.from_toml(text)


def test_networks_know_behaviours_too():
    pytest.importorskip("torch", reason="images need torch")
    problem = ft.ImageClassification("digits", split=ft.Iid(), model="cnn", num_clients=4)
    clients = {0: ft.Idle(), 1: ft.Copies(), 2: ft.Noise()}
    e = ft.Experiment(
        problem, SLOW, rounds=3, local_steps=1, batch_size=8, behaviours=clients, seed=1
    )
    run = ft.run(e, updates=True, progress=False)
    honest = ft.run(replace(e, behaviours=(), rounds=1), updates=True, progress=False)
    assert run.updates.shape == (3, 4, 16)
    assert np.all(run.updates[:, 0] == 0)
    assert run.update_norms[0, 2] == pytest.approx(honest.update_norms[0, 2], rel=1e-4)
    mean = np.delete(run.updates, 1, axis=1).mean(axis=1)[:-1]
    cosine = (run.updates[1:, 1] * mean).sum(axis=-1) / np.linalg.norm(mean, axis=-1)
    assert np.allclose(cosine, np.linalg.norm(run.updates[1:, 1], axis=-1), rtol=1e-3)
    assert attackers.needs_last(e)
