"""What plans say of earlier and later rounds, worked out by hand or from the definition.

Where a client's sum of step sizes in a round is short, it is written out: with ``clock="update"``
and at most m updates a round, round k begins at the clock value m (k - 1) + 1.
"""

import warnings

import numpy as np
import pytest
from scipy.optimize import brentq

import fedtaper as ft
from fedtaper.planning.over_time import DRIFT

CURE = 'clock="round" avoids this, and an offset of many rounds makes it small'


def planned(target, rounds=20, local_steps=1, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ft.FedtaperWarning)
        return ft.plan(target, rounds, local_steps, **({"num_clients": 2} | how))


def one_to_four(delta, rounds=12):
    """Influence of a client with four updates a round against one with one, 1 in round 1."""
    begin = 1.0 + 4 * np.arange(rounds)
    found = sum((begin + k) ** -delta for k in range(4)) / begin**-0.76
    return found / found[0]


@pytest.mark.parametrize(("end", "told"), [(0.95, True), (0.85, False)])
def test_a_rise_before_a_fade_is_told_from_a_tenth_on(end, told):
    delta = brentq(lambda d: one_to_four(d)[-1] - end, 0.76, 1.0, xtol=1e-14)
    highest = one_to_four(delta).max()
    assert (1.1 < highest < 1.15) == told and one_to_four(delta).argmax() == 1
    found = planned(f"fade client 1 to {100 * end:g}% by round 12", local_steps=(1, 4))
    assert found.schedules[1].delta == pytest.approx(delta, rel=1e-9)
    text = f"client 1 rises from 1 to {highest:.3g} in round 2 before it fades. {CURE}"
    assert found.warnings == ((text,) if told else ())


def test_a_fade_that_is_slightly_too_slow():
    """With delta = 1, updates of (2, 1) give client 1 a share 2k / (4k - 1) in round k.

    That is 2/3 in round 1 and 10/19 in round 5, a fall to 15/19 = 0.789 of it.
    """
    found = planned("fade client 1 to 82% by round 5", local_steps=(2, 1), delta=1.0)
    assert found.schedules[1].delta == 1.0
    assert found.warnings == (
        "client 1 cannot fade as slowly as to 0.82 by round 5: with the delta of the others it "
        "has 0.789 then, because in round 1 it has more influence than later. "
        f"{CURE}; or let it start at 1.04",  # 0.82 * 19/15
    )


def test_a_fade_that_happens_by_itself():
    """2k / (4k - 1) falls from 2/3 in round 1 to 8/15 in round 4: to 80 % of it."""
    found = planned("fade client 1 to 80% by round 4", local_steps=(2, 1), delta=1.0)
    assert found.warnings == ()
    kept, faded = found.schedules
    assert (kept.delta, faded.delta) == (1.0, pytest.approx(1.0, abs=1e-12))
    assert faded.c / kept.c == pytest.approx(3 / 2), "1 + 1/2 against 1 in round 1"


@pytest.mark.parametrize(
    ("end", "offset", "delta", "needs"),
    [
        ("34%", 100.0, 0.76, "delta = 110"),
        ("31%", 100.0, 0.76, "a delta far above it"),
        ("0.01%", 20.0, 0.76, "a delta far above it"),
        ("31%", 100.0, 0.5625, "a delta far above it"),
    ],
)
def test_up_to_which_delta_a_fade_is_looked_for(end, offset, delta, needs):
    """Up to the first (delta + 1) 2^k that is at least 100: 112.64 from 0.76, 100 from 0.5625.

    One update a round, with an offset T, falls to ((1 + T) / (2 + T))^(new - delta) by round 2.
    """
    wanted = float(end[:-1]) / 100
    new = delta + np.log(wanted) / np.log((1 + offset) / (2 + offset))
    limit = {0.76: 112.64, 0.5625: 100.0}[delta]
    assert needs == (f"delta = {new:.3g}" if new < limit else "a delta far above it")
    found = planned(f"fade client 1 to {end} by round 2", offset=offset, delta=delta)
    reached = ((1 + offset) / (2 + offset)) ** (1 - delta)
    assert found.warnings == (
        f"client 1 cannot fade to {wanted:.3g} by round 2 inside A2: that needs {needs}. With "
        f"delta = 1, the fastest, it has {reached:.3g} then; to reach {wanted:.3g} by then, let "
        f"it start at {wanted / reached:.3g}",
    )


def test_when_a_client_is_at_a_hundredth():
    """With delta 7/8 against 1, it has 0.025 (n + 1000)^-(1/8): 0.01 at 2.5^8 - 1000 = 526."""
    (text,) = planned([0.025, 0], rounds=100, delta=0.875, offset=1000.0).warnings
    assert "it has 0.0104 then, and 0.01 at n of about 5e+02. For less" in text


def test_a_client_that_has_a_hundredth_already():
    """At n = 1 all step sizes are equal, whatever their delta."""
    (text,) = planned([0.01, 0], rounds=1).warnings
    assert "by round 1: with delta = 1, the fastest inside A2, it has 0.01 then. For less" in text


@pytest.mark.parametrize(("rounds", "tenth"), [(9, None), (15, None), (20, 2), (29, 2), (30, 3)])
def test_a_drift_is_told_in_round_1_and_after_a_tenth(rounds, tenth):
    """Updates of (1, 2) with offset 1: 1 + (2k / (2k + 1))^0.76 in round k, the last as asked."""
    has = {k: 1 + (2 * k / (2 * k + 1)) ** 0.76 for k in (1, 2, 3, rounds)}
    early = has[1] / has[rounds]
    assert 1.1 < 1 / early < 1.2
    more = f" and {has[tenth] / has[rounds]:.3g} in round {tenth}" if tenth else ""
    assert planned([1, 1], rounds, (1, 2), offset=1.0).warnings == (
        f"{DRIFT}: client 1 has {early:.3g} in round 1{more}, where 1 was asked. {CURE}",
    )


def test_a_drift_of_less_than_a_tenth_is_not_told():
    """Offset 3: from 1 + (4/5)^0.76 to 1 + (32/33)^0.76 in round 15, so 0.93 in round 1."""
    assert 1 / 1.1 < (1 + 0.8**0.76) / (1 + (32 / 33) ** 0.76) < 0.95
    assert planned([1, 1], 15, (1, 2), offset=3.0).warnings == ()


@pytest.mark.parametrize(("percent", "told"), [(57.5, False), (57.3, False), (57.0, True)])
def test_a_fade_that_delta_1_reaches_to_three_digits_is_not_called_impossible(percent, told):
    """1 / n against 1 / n^0.76 has 10^-0.24 = 57.54 % of its first influence in round 10."""
    asked = f"fade client 1 to {percent}% by round 10"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = ft.plan(asked, 20, 1, num_clients=2)
    assert any("cannot fade" in str(one.message) for one in said) is told
    assert made.schedules[1].delta == pytest.approx(1.0, abs=1e-12)
