"""Claim A3: its federations, its rows, its checks; the whole is ``fedtaper reproduce A3``."""

import json

import pytest

from fedtaper.paper import LEDGER
from fedtaper.paper import audit_challenges as study
from fedtaper.paper.challenge_federations import FRESH, KINDS, PAIRS, federation

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def row(kind, accused, excess, pair="MLP, wine"):
    return {
        "pair": pair, "seed": 1, "client": 0, "kind": kind, "verdict": "", "accused": accused,
        "excess": excess, "work": 0.1,
    }  # fmt: skip


def test_federations_are_reproducible_mixed_and_within_the_work_allowed():
    seen = set()
    for name in PAIRS:
        for seed in range(3):
            e, kinds = federation(name, seed)
            assert federation(name, seed)[1] == kinds
            assert e.challenges.extra_work(e.rounds) <= 0.1
            seen |= set(kinds)
    assert seen <= {"honest", *KINDS}
    assert len(seen) > 4
    sizes = federation("logistic, breast cancer", 0)[0].problem.sizes
    assert sizes.max() > 1.5 * sizes.min()


def test_checks_on_made_up_rows():
    good = [row("honest", 0, [0.0, -0.05, 0.05])] * 95 + [row("honest", 0, [0.1, 0.05, 0.2])] * 5
    good += [row("delta 1", 40, [0.24, 0.2, 0.3])] * 20
    found = {check.name: check for check in study.checks(good)}
    assert found["honest clients ever accused"].value == 0
    assert found["delta 1 found by round 60"].passed
    assert found["coverage of 95 % intervals"].value == pytest.approx(115 / 120)
    bad = {c.name: c for c in study.checks([*good, *[row("honest", 80, [0.3, 0.2, 0.4])] * 5])}
    assert not bad["honest clients ever accused"].passed
    late = {c.name: c for c in study.checks([*good, *[row("delta 1", 82, [0.2, 0.1, 0.3])] * 5])}
    assert not late["delta 1 found by round 60"].passed


def test_pieces_are_not_run_twice(tmp_path, monkeypatch):
    calls = []

    def look(name, seed, device=None):
        calls.append((name, seed))
        return [row("honest", 0, [0.0, -0.1, 0.1], name) | {"seed": seed}]

    monkeypatch.setattr(study, "look", look)
    counts = dict.fromkeys(PAIRS, 1)
    study.gather(tmp_path, counts)
    assert len(calls) == len(PAIRS)
    rows = study.gather(tmp_path, counts | {"MLP, wine": 2})
    assert len(calls) == len(PAIRS) + 1
    assert calls[-1] == ("MLP, wine", FRESH + 2001)
    parts = study.order({"MLP, wine": 4, "MLP, digits": 2})
    assert [name for _, name, _ in parts].index("MLP, digits") < 3
    lines = (tmp_path / study.ROWS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert "A3" in LEDGER
