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


def test_a_note_that_says_why_there_is_no_estimate_is_referred_to(run):
    from dataclasses import replace

    history = histories(run)[2]
    unknown = replace(history.said, verdict="cannot tell yet", delta=np.nan)
    noted = replace(unknown, notes=("its answers fall more slowly than it declared",))
    assert replace(history, said=unknown).sentence.endswith("no evidence for or against it yet.")
    assert replace(history, said=noted).sentence.endswith(
        "There is no estimate: see the note above."
    )


def test_the_caveat_says_that_secure_aggregation_hides_everything(run):
    text = ft.audit(run).caveat
    assert "does not show" not in text and "Under secure aggregation it shows nothing" in text


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("seeds", [None, range(2)])
def test_a_diverged_run_accuses_nobody_and_invents_nothing(updates, seeds):
    schedules = [ft.Power(3.0, 0.5), *[ft.Power(3.0, 1.0)] * 3]
    e = ft.Experiment(ft.LinearRegression(num_clients=4), schedules, rounds=300, local_steps=5)
    made = ft.run(e, seeds=seeds, updates=updates, progress=False)
    seed = None if seeds is None else 1
    lost = next(d.round for d in made.diverged if seeds is None or d.seed == seed)
    found = ft.audit(made, seed=seed)
    assert found.rounds < lost and not found.accused
    assert all(row[3] == row[5] == "-" for row in found.rows()[1:])
    assert any(f"the run diverged in round {lost}" in text for text in found.remarks())
    for history in histories(made, seed):
        assert not np.isfinite(history.delta).any() and "nan" not in history.sentence


def test_the_command_draws(run, tmp_path):
    picture = tmp_path / "evidence.png"
    done = CliRunner().invoke(app, ["audit", str(run.path), "--figure", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 5_000
    assert "withdraws faster" in done.output


def test_many_challenges_are_looked_at_now_and_then(tiny):
    plan = ft.Challenges(every=1, share=0.5)
    e = ft.Experiment(tiny, ft.Power(0.05, 0.76), 60, 2, batch_size=10, challenges=plan)
    run = ft.run(e, progress=False)
    for history, client in zip(histories(run), ft.audit(run).clients, strict=True):
        assert 12 < len(history.round) <= 24
        assert history.round[0] == 3 and history.round[-1] == 60
        assert history.asked.tolist() == run.challenges.round.tolist()
        assert np.allclose(history.delta[-1], client.delta, equal_nan=True)
