"""The evidence picture: what it is drawn from, its words, and the command."""

import numpy as np
import pytest
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.auditing.history import histories
from fedtaper.cli.main import app
from fedtaper.show.evidence import draw

SLOW, FAST = ft.Power(0.005, 0.76), ft.Power(0.005, 1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    e = ft.Experiment(
        ft.LinearRegression(num_clients=4, seed=1),
        SLOW,
        rounds=60,
        local_steps=5,
        behaviours={0: ft.OtherSchedule(FAST), 1: ft.Idle()},
        challenges=ft.Challenges(every=5),
    )
    out = tmp_path_factory.mktemp("evidence") / "run"
    return ft.run(e, engine="reference", out=out, progress=False)


def test_histories_end_where_the_audit_does(run):
    found = ft.audit(run).clients
    for history, client in zip(histories(run), found, strict=True):
        assert history.said.verdict == client.verdict
        assert history.round.tolist() == run.challenges.round.tolist()
        last = [history.delta[-1], history.low[-1], history.high[-1]]
        said = [client.delta, client.delta_low, client.delta_high]
        assert np.allclose(last, said, equal_nan=True)
    assert found[0].verdict == "fading"


def test_words_for_a_director(run):
    words = [history.sentence for history in histories(run)]
    assert "withdraws faster than it said" in words[0] and "since round" in words[0]
    assert "has sent nothing" in words[1]
    assert all("0.76" in text for text in words)


def test_without_challenges_too(run, tmp_path):
    from dataclasses import replace

    plain = replace(run.experiment, challenges=None)
    made = ft.run(plain, engine="reference", updates=True, progress=False)
    evidence = histories(made)
    assert len(evidence[0].round) > 4 and not len(evidence[0].asked)
    assert draw(evidence, tmp_path / "plain.png").stat().st_size > 5_000


def test_the_command_draws(run, tmp_path):
    picture = tmp_path / "evidence.png"
    done = CliRunner().invoke(app, ["audit", str(run.path), "--figure", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 5_000
    assert "withdraws faster" in done.output
