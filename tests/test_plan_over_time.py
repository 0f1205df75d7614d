"""Plans before their horizon: unequal updates, own clocks, and when a client has vanished."""

import warnings

import numpy as np
import pytest
from test_plan import measured

import fedtaper as ft


def planned(target, rounds=100, local_steps=5, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        return ft.plan(target, rounds, local_steps, **how)


EQUAL = "equal effective influence"


def test_equal_influence_with_unequal_updates_says_how_far_it_is_off():
    with pytest.warns(ft.FedtaperWarning, match="as asked in the last round, not in earlier ones"):
        found = ft.plan(EQUAL, 100, (5, 40, 5), num_clients=3)
    early, tenth = (measured(found.experiment, k) for k in (1, 10))
    (text,) = found.warnings
    assert f"client 1 has {early[1] / early[0]:.3g} in round 1" in text
    assert f"and {tenth[1] / tenth[0]:.3g} in round 10, where 1 was asked" in text
    assert 'clock="round" avoids this' in text
    assert text in str(found)


@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": (5, 40, 5), "clock": "round"},
        {"local_steps": (5, 40, 5), "offset": 1000.0},
        {"local_steps": None, "local_epochs": 2, "sizes": [50, 300, 900], "clock": "epoch"},
    ],
    ids=["clock of rounds", "offset", "clock of epochs"],
)
def test_what_avoids_the_drift(how):
    found = ft.plan([1, 0.5, 1], 100, **({"num_clients": 3} | how))  # a warning would be an error
    first = measured(found.experiment, 1)
    np.testing.assert_allclose(first / first[0], [1, 0.5, 1], rtol=0.03)


def test_what_is_said_names_what_avoids_it():
    how = {"num_clients": 2, "participation": (1.0, 0.2), "own_clock": True}
    assert "own_clock=False" in planned(EQUAL, **how).warnings[0]
    how = {"local_steps": None, "local_epochs": 2, "sizes": [50, 900], "clock": "update"}
    assert 'clock="epoch" avoids this' in planned(EQUAL, **how).warnings[0]


def test_fading_starts_and_ends_as_asked_with_unequal_updates():
    rule = "fade client 2 from 56% to 40.2% by round 80"
    found = planned(rule, local_steps=(5, 5, 40), num_clients=3)
    for round_, wanted in ((1, 0.56), (80, 0.402)):
        raw = measured(found.experiment, round_)
        assert raw[2] / raw[0] == pytest.approx(wanted, rel=1e-6)
    (text,) = found.warnings
    path = [measured(found.experiment, k) for k in range(1, 80)]
    highest = max(raw[2] / raw[0] for raw in path)
    assert f"rises from 0.56 to {highest:.3g} in round 2 before it fades" in text


def test_fading_more_than_a2_allows_with_unequal_updates():
    found = planned("fade client 2 to 40% by round 80", local_steps=(5, 5, 40), num_clients=3)
    first, then = (measured(found.experiment, k) for k in (1, 80))
    assert first[2] / first[0] == pytest.approx(1.0)
    assert found.schedules[2].delta == 1.0
    assert f"it has {then[2] / then[0]:.3g} then" in found.warnings[0]


def test_a_client_that_falls_by_itself():
    rule = "fade client 2 from {}% to 10% by round 80"
    found = planned(rule.format(20), local_steps=(40, 40, 5), num_clients=3)
    first, then = (measured(found.experiment, k) for k in (1, 80))
    assert first[2] / first[0] == pytest.approx(0.2)
    assert found.schedules[2].delta == found.schedules[0].delta
    assert f"it has {then[2] / then[0]:.3g} then" in found.warnings[0]
    start = float(found.warnings[0].rsplit(" ", 1)[1])
    again = planned(rule.format(100 * start + 0.1), local_steps=(40, 40, 5), num_clients=3)
    first, then = (measured(again.experiment, k) for k in (1, 80))
    assert first[2] / first[0] == pytest.approx(start + 0.001)
    assert then[2] / then[0] == pytest.approx(0.1, rel=0.01)
    slow = planned(rule.format(40), local_steps=(40, 40, 5), num_clients=3)
    assert not slow.warnings


@pytest.mark.parametrize(("offset", "needs"), [(1e3, "delta = 14.6"), (1e9, "a delta far above")])
def test_what_a_fade_needs_with_a_large_offset(offset, needs):
    found = planned("fade client 1 to 1% by round 80", num_clients=3, offset=offset)
    assert f"inside A2: that needs {needs}" in found.warnings[0]


def test_fading_with_an_own_clock_starts_and_ends_as_asked():
    how = {"participation": (1.0, 1.0, 0.3), "own_clock": True, "num_clients": 3}
    e = planned("fade client 2 from 60% to 57% by round 80", **how).experiment
    for round_, wanted in ((1, 0.6), (80, 0.57)):
        assert e.influence(round_).effective[2] == pytest.approx(wanted, rel=1e-6)


def test_fading_is_against_the_mean_of_the_others():
    e = planned(
        "fade client 2 to 40% by round 80", local_steps=(5, 40, 5), num_clients=3
    ).experiment
    for round_, wanted in ((1, 1.0), (80, 0.4)):
        raw = measured(e, round_)
        assert raw[2] / raw[:2].mean() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1000.0, 5000.0])
def test_when_a_client_has_vanished_counts_the_offset(offset):
    found = planned([1, 0, 0.5], offset=offset)
    when = ft.forecast(found.experiment, 1e3).fades(0.01)[1]
    assert f"0.01 at n of about {when:.1g}." in found.warnings[0]


def test_the_command_prints_a_drift_once(capfd):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    words = ["plan", "1", "1", "--rounds", "50", "--local-epochs", "1", "--clock", "update"]
    done = CliRunner().invoke(app, [*words, "--samples", "100,900"])
    assert done.exit_code == 0, done.output
    assert " ".join(done.output.split()).count("not in earlier ones") == 1
    assert "not in earlier ones" not in capfd.readouterr().err
