"""Challenges over Flower: their form and their order do not tell, and they find who fades."""

import random

import numpy as np
import pytest
import torch
from flower_loop import LoopGrid, Source

import fedtaper as ft
from fedtaper.deploy.server import serve
from fedtaper.engines.flower import questions, wire

SITES = ("north", "south", "west")


def over_loop(e, spoil=None, out=None, **changes):
    made = ft.Federation(**({"sites": SITES, "deadline": 1.0} | changes))
    grid = LoopGrid(Source(e, made), spoil)
    return serve(grid, grid.source, out, progress=False), grid


def regression(problem, rounds, **changes):
    how = {"local_steps": 3, "batch_size": 10, "challenges": ft.Challenges(every=2, base=2)}
    return ft.Experiment(problem, ft.Power(0.1, 0.76), rounds, **(how | changes))


def hospitals(rounds=14):
    """Logistic regression on breast-cancer data at three sites; each update sees all of it."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    data = [(x[i:540:3], y[i:540:3].astype("float32")) for i in range(3)]
    problem = ft.Custom(
        lambda model, x, y: torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y),
        lambda: torch.nn.Linear(30, 1),
        data,
    )
    plan = ft.Challenges(every=2, base=2)
    return ft.Experiment(
        problem, ft.Power(0.3, 0.76), rounds, local_epochs=1, batch_size=180, challenges=plan
    )


def test_neither_form_nor_order_tells_a_challenge_from_a_round(tiny, monkeypatch):
    assert isinstance(questions.COIN, random.SystemRandom), "a seed that sites do not know"
    monkeypatch.setattr(questions, "COIN", random.Random(3))
    e = regression(tiny, rounds=61)
    run, grid = over_loop(e)
    assert np.array_equal(run.w, over_loop(regression(tiny, 61, challenges=None))[0].w)
    pairs = {}
    for site, round_, message in grid.sent:
        if round_ >= 0:
            pairs.setdefault((site, round_), []).append(message)
    models = np.vstack([run.w0, run.w])
    first = []
    for (_, round_), messages in pairs.items():
        asked = round_ + 1 in e.challenges.rounds(61)
        assert len(messages) == 1 + asked
        if not asked:
            continue
        one, other = messages
        assert dict(one.content["order"]) == dict(other.content["order"])
        assert one.metadata.message_type == other.metadata.message_type
        assert one.metadata.ttl == other.metadata.ttl
        assert list(one.content) == list(other.content)
        rounds = [np.array_equal(wire.joined(m.content["model"]), models[round_]) for m in messages]
        assert sorted(rounds) == [False, True]
        first.append(rounds[1])
    times = len(e.challenges.rounds(e.rounds))
    assert len(first) == 3 * times > 80
    assert abs(np.mean(first) - 0.5) < 4 * 0.5 / np.sqrt(len(first))
    by_round = np.array(first).reshape(times, 3)
    assert (by_round.any(axis=1) & ~by_round.all(axis=1)).any(), "each site has its own order"


def test_a_late_answer_beside_a_challenge_is_a_late_answer(tiny, tmp_path):
    e = regression(tiny, rounds=8)

    def spoil(site, round_, reply):
        return None if site == "south" and round_ == 3 else reply

    run, _ = over_loop(e, spoil, tmp_path / "run", deadline=0.2)
    assert np.isnan(run.update_norms).tolist() == [[False, k == 3, False] for k in range(8)]
    assert np.isfinite(run.w).all()
    assert np.isnan(run.challenges.product[run.challenges.round == 4, 1]).all()


def test_who_fades_is_found_and_the_honest_are_not_accused():
    e = hospitals()
    n = np.arange(1.0, e.rounds + 1)  # one update per round
    faster = n**0.76 / n  # delta 1 in place of 0.76

    def spoil(site, round_, reply):
        if site == "south":
            whole = wire.joined(reply.content["update"])
            reply.content["update"] = wire.packed(whole * np.float32(faster[round_]))
        return reply

    honest, _ = over_loop(e)
    assert [c.accused for c in ft.audit(honest).clients] == [False] * 3
    found, _ = over_loop(e, spoil)
    audit = ft.audit(found)
    assert [c.accused for c in audit.clients] == [False, True, False]
    assert audit.clients[1].delta == pytest.approx(1.0, abs=0.1)
