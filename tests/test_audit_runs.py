"""Challenges in runs: recorded on every engine, kept, resumed, and never part of a round."""

from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.engines.reference import local_model
from fedtaper.rules.challenges import Challenges
from fedtaper.storage import config

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from test_audit_models import federation  # noqa: E402

SLOW, FAST = ft.Power(0.02, 0.76), ft.Power(0.02, 1.0)
PLAN = Challenges(every=6, base=3)


def regression(tiny, **how):
    settings = {"rounds": 30, "local_steps": 3, "batch_size": 8, "challenges": PLAN} | how
    return ft.Experiment(tiny, SLOW, **settings)


def same(one, two):
    """All that a run says of the shared model, to the bit."""
    assert np.array_equal(one.w, two.w)
    assert np.array_equal(one.update_norms, two.update_norms)
    assert set(one.metrics) == set(two.metrics)
    for name, values in one.metrics.items():
        if name != "seconds":
            assert np.array_equal(values, two.metrics[name]), name


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_the_shared_model_is_the_same_to_the_bit_with_and_without(tiny, engine):
    lively = {"participation": 0.8, "behaviours": {0: ft.Copies(), 2: ft.OtherSchedule(FAST)}}
    e = regression(tiny, **lively)
    one, two = ft.run(e, engine=engine), ft.run(replace(e, challenges=None), engine=engine)
    same(one, two)
    assert two.challenges is None
    assert one.challenges.round.tolist() == [4, 5, 9, 15, 21, 27]
    asked = e.present(0, 30, 0)[one.challenges.round - 1]
    assert np.array_equal(np.isfinite(one.challenges.size), asked)


def test_networks_too():
    e = federation("wine", 8, rounds=12, challenges=PLAN)
    one = ft.run(e, progress=False)
    same(one, ft.run(replace(e, challenges=None), progress=False))
    exact = ft.run(e, engine="reference", progress=False)
    assert np.allclose(one.challenges.product, exact.challenges.product, rtol=1e-3)
    half = ft.run(replace(e, challenges=Challenges(every=6, base=3, share=0.5)), progress=False)
    assert np.all(half.challenges.size < one.challenges.size)


def test_an_answer_is_local_training_from_the_base_model(tiny):
    """By hand: the base model moved a little, the clock and the batches of the round asked in."""
    e = regression(tiny, behaviours={1: ft.OtherSchedule(FAST)})
    run = ft.run(e, engine="compiled")
    base, after = run.w[1], run.w[2]
    k, i = 20, 1  # asked in round 21
    model = PLAN.model(base, after, 0, k)
    n = np.arange(3 * k + 1, 3 * k + 4, dtype=float)
    answer = local_model(e, (0, i, k), model, FAST(n), (), ())[0] - model
    sent = local_model(e, (0, i, 2), base, FAST(np.array([7.0, 8.0, 9.0])), (), ())[0] - base
    row = run.challenges.round.tolist().index(21)
    assert run.challenges.product[row, i] == pytest.approx(float(answer @ sent), rel=1e-9)
    assert run.challenges.size[row, i] == pytest.approx(float(np.linalg.norm(answer)))
    assert run.challenges.base_size[i] == pytest.approx(float(np.linalg.norm(sent)))


def test_seeds_and_engines_agree(tiny):
    e = regression(tiny, behaviours={0: ft.Idle(), 1: ft.Noise()})
    many = ft.run(e, seeds=[0, 5])
    alone = ft.run(replace(e, seed=5), engine="reference")
    assert np.allclose(many.challenges.of_seed(1).product, alone.challenges.product)
    assert np.all(many.challenges.size[:, :, 0] == 0)


def test_stored_loaded_and_resumed(tiny, tmp_path, monkeypatch):
    from fedtaper.simulation import challenger

    e = regression(tiny, rounds=40)
    whole = ft.run(e, engine="reference", out=tmp_path / "whole")
    again = ft.load(tmp_path / "whole")
    assert np.array_equal(again.challenges.product, whole.challenges.product)
    assert again.experiment.challenges == PLAN
    calls = []
    ask = challenger.Challenger._ask

    def stops(self, *how):
        calls.append(how)
        if len(calls) == 4:
            raise KeyboardInterrupt
        ask(self, *how)

    monkeypatch.setattr("fedtaper.simulation.drive.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("fedtaper.engines.reference.quick_rounds", lambda *_: 1)
    monkeypatch.setattr(challenger.Challenger, "_ask", stops)
    with pytest.raises(KeyboardInterrupt):
        ft.run(e, engine="reference", out=tmp_path / "stopped")
    monkeypatch.setattr(challenger.Challenger, "_ask", ask)
    resumed = ft.run(e, engine="reference", out=tmp_path / "stopped", resume=True)
    same(resumed, whole)
    assert np.array_equal(resumed.challenges.product, whole.challenges.product)


def test_as_a_table_of_a_file(tiny):
    text = config.to_toml(regression(tiny, challenges=Challenges(every=7, clients=[0, 2])))
    assert "[challenges]" in text
    assert config.from_toml(text).challenges == Challenges(every=7, clients=[0, 2])
    with pytest.raises(ft.FedtaperError, match="challenges"):
        config.from_toml(text.replace("every = 7", "evry = 7"))
    with pytest.raises(ft.FedtaperError, match="from 0 to 2"):
        regression(tiny, challenges=Challenges(clients=[3]))
    with pytest.raises(ft.FedtaperError, match="must be Challenges"):
        regression(tiny, challenges={"every": 7})


@pytest.fixture(scope="module")
def faded():
    """Wine, logistic regression: one site fades, one recognises what it has seen."""
    cheats = {0: ft.OtherSchedule(ft.Power(0.1, 1.0)), 1: ft.Recognises(ft.Power(0.1, 1.0))}
    return federation("wine", 0, behaviours=cheats, challenges=Challenges(every=8))


def test_who_fades_is_found_whatever_the_model(faded):
    found = ft.audit(ft.run(faded, progress=False))
    assert found.witness == "challenges"
    assert [c.verdict for c in found.clients] == ["fading"] * 2 + ["as declared"] * 2
    assert found.clients[0].delta_low < 1.0 < found.clients[0].delta_high
    assert found.clients[0].since <= 60
    assert "challenges" in found.title


def test_without_jitter_a_site_that_keeps_hashes_passes(faded):
    plain = replace(faded, challenges=Challenges(every=8, jitter=0.0))
    verdicts = [c.verdict for c in ft.audit(ft.run(plain, progress=False)).clients]
    assert verdicts == ["fading", *["as declared"] * 3]


def test_engines_without_challenges_refuse():
    from types import SimpleNamespace

    from fedtaper.core.protocols import Options
    from fedtaper.engines import registry
    from fedtaper.engines.gate import objections

    e = federation("wine", 0, challenges=PLAN)
    cpu = registry.get("cpu")
    assert not any("challenges" in line for line in objections(e, cpu, Options()))
    other = SimpleNamespace(name="theirs", capabilities=replace(cpu.capabilities, challenges=False))
    assert any("sends no challenges" in line for line in objections(e, other, Options()))


def test_over_flower_as_in_simulation(tiny):
    """One more message of the same form; one of three sites keeps another schedule."""
    pytest.importorskip("flwr")
    from test_flower import over_loop

    e = regression(tiny, rounds=12)
    theirs, mine = over_loop(e), ft.run(e, engine="reference")
    assert np.allclose(theirs.w, mine.w, atol=1e-12)
    assert np.allclose(theirs.challenges.product, mine.challenges.product, rtol=1e-9)
    with pytest.raises(ft.FedtaperError, match="share = 1"):
        over_loop(replace(e, challenges=Challenges(share=0.5)))
