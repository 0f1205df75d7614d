"""The audit's judge by value: what follows from a fit, and since when, with the fits given."""

import importlib
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import stdtrit

from fedtaper.auditing.challenges import Asked
from fedtaper.auditing.judge import Finding, Trace, judge, since
from fedtaper.auditing.records import SATURATED, TURNED
from fedtaper.auditing.replay import HeldOut
from fedtaper.auditing.taper import Declared, Fit

room = importlib.import_module("fedtaper.auditing.judge")  # the function hides it by its name


def declared(clients, rounds):
    n = np.tile(np.arange(1.0, rounds + 1), (clients, 1))
    return Declared(0.1 / n, 0.01 / n**2, np.log(n), 0.1 / n)


def trace(clients=3, rounds=12, **how):
    agreed = declared(clients, rounds)
    return Trace(2.0 * agreed.sums, agreed, **how)


def fit(excess, error, log_curvature=None, explained=None):
    count = len(excess)
    curvature = np.zeros(count) if log_curvature is None else np.array(log_curvature)
    known = np.ones(count) if explained is None else np.array(explained)
    return Fit(np.array(excess), np.array(error), curvature, np.ones(count), known, np.zeros(4))


def judged(monkeypatch, made, witness, **how):
    monkeypatch.setattr(room, "_fit", lambda trace, plain: (made, witness))
    return judge(trace(len(made.excess), **how))


def test_peers_are_accused_beyond_five_standard_errors(monkeypatch):
    made = fit([0.26, 0.24, 0.0], [0.05] * 3, log_curvature=[0.0, 1.0, 2.0])
    found = judged(monkeypatch, made, "peers")
    assert found.verdicts == ("fading", "cannot tell yet", "cannot tell yet")
    np.testing.assert_allclose(found.curvature, np.exp([-1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(found.excess, made.excess)
    assert found.witness == "peers" and not found.found.any() and np.isinf(found.freedom).all()


def test_as_declared_needs_a_model_that_explains_half(monkeypatch):
    made = fit([0.0, 0.0, 0.0], [0.05] * 3, explained=[0.5, 0.49, 1.0])
    found = judged(monkeypatch, made, "norms")
    assert found.verdicts == ("as declared", "cannot tell yet", "as declared")


def test_replays_have_a_line_of_their_own(monkeypatch):
    held = HeldOut(np.ones((2, 12, 3)), np.eye(3), line=2.5)
    made = fit([0.13, 0.12, 0.0], [0.05] * 3)
    found = judged(monkeypatch, made, "held-out", held_out=held, quadratic=False)
    assert found.verdicts == ("fading", "cannot tell yet", "as declared")


def test_a_misfit_tells_nothing_and_twelve_rounds_are_needed(monkeypatch):
    made = fit([0.9, 0.0, 0.0], [0.05] * 3)
    found = judged(monkeypatch, made, "misfit")
    assert found.verdicts == ("cannot tell",) * 3 and np.isnan(found.excess).all()
    assert judged(monkeypatch, made, "norms", rounds=12).verdicts[0] == "fading"
    early = judged(monkeypatch, made, "norms", rounds=11)
    assert early.verdicts == ("cannot tell yet",) * 3 and early.witness == "norms"
    uneven = judged(monkeypatch, made, "norms", even=False)
    assert uneven.verdicts == ("cannot tell",) * 3 and uneven.witness == "misfit"
    other = judged(monkeypatch, made, "norms", quadratic=False)
    assert other.verdicts == ("cannot tell",) * 3 and other.witness == "none"
    assert other.curvature.tolist() == [1, 1, 1], "unknown, so all alike"


def test_idle_copying_and_noise_come_before_tapers(monkeypatch):
    made = fit([0.9, 0.9], [0.05] * 2)
    seen = {}

    def fitted(given, plain):
        seen["plain"] = plain.copy()
        return made, "norms"

    monkeypatch.setattr(room, "_fit", fitted)
    flags = SimpleNamespace(
        copying=lambda updates: np.array([True, True, False, False, False]),
        noise=lambda updates, sums: np.array([False, True, True, False, False]),
    )
    monkeypatch.setattr(room, "directions", flags)
    given = trace(5, updates=np.ones((5, 12, 2)), w=np.ones((12, 2)))
    given.norms[0, -3:] = 0.0
    found = judge(given)
    assert found.verdicts == ("idle", "copying", "noise", "fading", "fading")
    assert seen["plain"].tolist() == [False, False, False, True, True]
    assert np.isnan(found.excess[:3]).all() and (found.excess[3:] == 0.9).all()


@pytest.mark.parametrize(
    "last, idle",
    [
        ([0, 0, 0], True),
        ([1e-9, 1e-9, 1e-9], True),  # times the usual size, at most
        ([1.01e-9, 0, 0], False),
        ([0, 0, 1], False),
        ([np.nan, 0, 0], False),  # the round before counts instead, and it is not nothing
    ],
)
def test_who_is_idle(last, idle):
    given = trace(3)
    given.norms[2, -3:] = np.array(last) * 2.0 * given.declared.sums[2, -3:]
    assert room._idle(given).tolist() == [False, False, idle]


def test_the_usual_size_is_the_median_of_all_that_is_not_nothing():
    """Here 0.5: what was sent at most 5e-10 times the step sizes is negligible."""
    for size, idle in ((4e-10, True), (8e-10, False)):
        given = trace(3)
        given.norms[:] = 0.5 * given.declared.sums
        given.norms[0, 4] = np.nan
        given.norms[2, -3:] = size * given.declared.sums[2, -3:]
        assert room._idle(given).tolist() == [False, False, idle]
    given = trace(3)
    given.norms[1], given.norms[2] = 0.0, 1e-12 * given.declared.sums[2]
    assert room._idle(given).tolist() == [False, True, True]


def test_two_rounds_are_too_few_to_be_idle_and_a_dead_federation_is():
    for rounds, all_idle in ((2, False), (3, True)):
        given = trace(2, rounds)
        given.norms[:] = 0.0
        assert room._idle(given).all() == all_idle


def test_challenges_are_judged_by_their_own_test(monkeypatch):
    said = SimpleNamespace(
        excess=np.array([0.0, 0.5, 0.0]),
        error=np.array([0.01, 0.01, np.inf]),
        freedom=np.array([9.0, 9.0, 9.0]),
        found=np.array([0, 7, 0]),
        unexplained=np.array([False, False, True]),
        turned=np.array([True, False, False]),
    )
    monkeypatch.setattr(room, "examine", lambda asked: said)
    asked = Asked(np.arange(1, 4), *[np.ones((3, 3))] * 3)
    found = judge(trace(asked=asked, quadratic=False))
    assert found.verdicts == ("as declared", "fading", "cannot tell yet")
    assert found.witness == "challenges" and found.found.tolist() == [0, 7, 0]
    assert found.unexplained.tolist() == [False, False, True]
    assert found.turned.tolist() == [True, False, False]
    np.testing.assert_array_equal(found.freedom, said.freedom)


def test_challenges_say_nothing_about_who_is_idle(monkeypatch):
    none = np.zeros(3)
    said = SimpleNamespace(
        excess=none, error=none + 0.01, freedom=none + 9, found=np.arange(3) + 5, unexplained=none,
        turned=none,
    )  # fmt: skip
    monkeypatch.setattr(room, "examine", lambda asked: said)
    given = trace(asked=Asked(np.arange(1, 4), *[np.ones((3, 3))] * 3), quadratic=False)
    given.norms[1, -3:] = 0.0
    found = judge(given)
    assert found.verdicts == ("fading", "idle", "fading") and found.found.tolist() == [5, 0, 7]


def test_why_there_is_no_estimate_is_said_once(monkeypatch):
    never = np.zeros(4, dtype=bool)
    both = replace(finding(["cannot tell yet"] * 3 + ["fading"]), witness="challenges")
    slow, bent = never.copy(), never.copy()
    slow[[0, 1, 3]], bent[[1, 2, 3]] = True, True
    found = replace(both, unexplained=slow, turned=bent)
    given = trace(4, asked=Asked(np.arange(1, 4), *[np.ones((4, 3))] * 3), quadratic=False)
    said = [room.notes(v, found, i, given) for i, v in enumerate(found.verdicts)]
    assert said == [(SATURATED,), (TURNED,), (TURNED,), ()]


def test_exactly_on_a_line_nobody_is_accused_or_cleared(monkeypatch):
    """Powers of two, so that nothing is rounded: the line is 2 standard errors of 1/16."""
    monkeypatch.setattr(room, "threshold", lambda error, witness, line: 2.0)
    error = 1 / 16
    for score, verdict in ((2, "cannot tell yet"), (-2, "cannot tell yet"),
                           (-5, "cannot tell yet"), (-6, "rising"), (3, "fading")):  # fmt: skip
        assert room._taper_verdict(score * error, error, "norms", 0.0) == verdict
    seen = []
    monkeypatch.setattr(room.own_check, "holds", lambda p, plain: seen.append(plain) or True)
    monkeypatch.setattr(room, "threshold", lambda error, witness: 2.0)
    room._believed(fit([2 * error, 0.0, -2 * error], [error] * 3), np.ones(3))
    assert seen[0].tolist() == [False, True, False]
    monkeypatch.setattr(room, "threshold", lambda error, witness, line: 2.0)
    monkeypatch.setattr(room, "RULED_OUT", 1.96 * error)
    assert room._taper_verdict(0.0, error, "norms", 0.0) == "cannot tell yet"
    assert room._taper_verdict(-1e-9, error, "norms", 0.0) == "as declared"
    quantile = 2.2621571627409915  # Student's with 9 degrees of freedom
    assert float(stdtrit(9.0, 0.975)) == pytest.approx(quantile, rel=1e-9)
    monkeypatch.setattr(room, "RULED_OUT", float(stdtrit(9.0, 0.975)) * error)
    assert room._challenge_verdict(0.0, error, 9.0, 0) == "cannot tell yet"
    assert room._challenge_verdict(-1e-9, error, 9.0, 0) == "as declared"


def test_lines_are_above_0_unless_a_replay_gives_one():
    assert room.threshold(0.1, "held-out") == 0.0
    assert room.threshold(0.1, "peers") == room.threshold(0.1, "norms") > 3


# ------------------------------------------------------------------ since when


def finding(verdicts, found=None):
    none = np.zeros(len(verdicts))
    rounds = np.zeros(len(verdicts), dtype=int) if found is None else np.array(found)
    never = none > 0
    return Finding(tuple(verdicts), none, none, none, "norms", none, rounds, never, never)


def fading_from(monkeypatch, first):
    """Judge that calls a client fading where at least so many rounds are there, by its sum."""
    looked = []

    def fake(given):
        looked.append((given.norms.shape, given.asked))
        rounds = given.norms.shape[1]
        verdicts = ["fading" if rounds >= first else "as declared"] * len(given.norms)
        return finding(verdicts)

    monkeypatch.setattr(room, "judge", fake)
    return looked


def test_an_accusation_is_dated_by_the_looks(monkeypatch):
    looked = fading_from(monkeypatch, 50)
    final = finding(["fading", "as declared", "fading"], found=[0, 0, 33])
    got = since(trace(3, 100), final)
    looks = sorted({round(12 * (100 / 12) ** (k / 11)) for k in range(12)} - {100})
    assert got == [min(x for x in looks if x >= 50), None, 33]
    earlier = [x for x in looks if x >= max(y for y in looks if y < 50)]
    assert [shape[1] for shape, _ in looked] == sorted(earlier, reverse=True)
    fading_from(monkeypatch, 1)
    assert since(trace(3, 100), final)[0] == 12
    fading_from(monkeypatch, 100)
    assert since(trace(3, 100), final) == [100, None, 33], "at none of the earlier looks"
    assert since(trace(1, 5), finding(["fading"]))[0] == 5, "fewer rounds than a look needs"


def test_the_past_is_judged_among_the_accused_and_a_hundred_others(monkeypatch):
    monkeypatch.setattr(room, "PEERS", 2)
    looked = fading_from(monkeypatch, 1)
    verdicts = ["as declared"] * 3 + ["fading"] + ["as declared"]
    since(trace(5, 40), finding(verdicts))
    assert {shape[0] for shape, _ in looked} == {3}, "two others and the one that is accused"
    monkeypatch.undo()
    looked = fading_from(monkeypatch, 1)
    since(trace(120, 40), finding(["as declared"] * 119 + ["fading"]))
    assert {shape[0] for shape, _ in looked} == {101}


def test_with_challenges_the_past_shows_idle_noise_and_copies_alone(monkeypatch):
    asked = Asked(np.arange(1, 4), *[np.ones((2, 3))] * 3)
    looked = fading_from(monkeypatch, 1)
    since(trace(2, 40, asked=asked), finding(["fading", "as declared"]))
    assert looked and all(asked is None for _, asked in looked)


# ------------------------------------------------------------------ which model is believed


def test_updates_are_believed_where_the_unsuspected_follow_them(monkeypatch):
    seen = []

    def holds(answer, p, plain):
        seen.append(plain)
        return answer

    for answer, witness in ((True, "updates"), (False, "misfit")):
        monkeypatch.setattr(room.own_check, "holds", partial(holds, answer))
        line = room.threshold(0.05, "updates")
        made = fit([0.05 * line - 1e-6, 0.05 * line + 1e-6, -0.05 * line - 1e-6], [0.05] * 3)
        assert room._believed(made, np.ones(3)) == (made, witness)
        assert seen[-1].tolist() == [True, False, False]


@pytest.mark.parametrize("explained, used", [(0.81, "updates"), (0.8, "norms")])
def test_updates_must_explain_four_fifths(monkeypatch, explained, used):
    made = fit([0.0] * 3, [0.05] * 3, explained=[explained] * 3)
    sizes = fit([0.1] * 3, [0.05] * 3)
    seen = {}

    def by_updates(u, w, agreed, each):
        seen["each"] = each
        return made

    monkeypatch.setattr(room.taper, "fit_updates", by_updates)
    monkeypatch.setattr(room.own_check, "p_values", lambda *known: np.ones(3))
    monkeypatch.setattr(
        room.sizes, "fit_sizes", lambda norms, *known: seen.update(norms=norms) or sizes
    )
    monkeypatch.setattr(room.sizes, "plausible", lambda found: True)
    given = trace(4, updates=np.ones((4, 12, 2)), w=np.ones((12, 2)))
    given.norms[1, 5] = np.nan
    plain = np.array([True, True, False, True])
    found, witness = room._fit(given, plain)
    assert (found, witness) == ((made, "updates") if used == "updates" else (sizes, "norms"))
    expected = np.ones((3, 12))
    expected[1, 5] = 0
    np.testing.assert_array_equal(seen["each"], expected)
    if used == "norms":
        np.testing.assert_allclose(seen["norms"], given.norms[plain])
        monkeypatch.setattr(room.sizes, "plausible", lambda found: False)
        monkeypatch.setattr(room.taper, "fit_peers", lambda *known: made)
        assert room._fit(given, plain) == (made, "peers")


def test_sizes_of_a_single_client_with_a_round_of_nothing(monkeypatch):
    seen, made = {}, fit([0.1], [0.05])
    monkeypatch.setattr(room.sizes, "plausible", lambda found: True)
    monkeypatch.setattr(room.taper, "fit_updates", lambda *known: pytest.fail("w is unknown"))

    def by_sizes(norms, agreed, each):
        seen.update(norms=norms, sums=agreed.sums, each=each)
        return made

    monkeypatch.setattr(room.sizes, "fit_sizes", by_sizes)
    given = trace(3, updates=np.ones((3, 12, 2)))
    given.norms[2, 4], given.norms[2, 7] = 0.0, np.nan
    with np.errstate(all="raise"):
        assert room._fit(given, np.array([False, False, True])) == (made, "norms")
    wanted = 0.2 / np.arange(1.0, 13)
    wanted[[4, 7]] = np.nan
    np.testing.assert_allclose(seen["norms"], [wanted], rtol=1e-12)
    np.testing.assert_allclose(seen["sums"], [0.1 / np.arange(1.0, 13)], rtol=1e-12)
    assert seen["each"].tolist() == [[1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1]]


def test_long_traces_are_averaged_over_stretches(monkeypatch):
    """300 rounds: sizes by their geometric mean, step sums by their mean, rounds counted."""
    seen, made = {}, fit([0.1] * 2, [0.05] * 2)
    monkeypatch.setattr(room.sizes, "plausible", lambda found: True)
    monkeypatch.setattr(
        room.sizes, "fit_sizes", lambda *known: seen.update(zip("nde", known, strict=True)) or made
    )
    given = trace(2, 300)
    room._fit(given, np.array([True, True]))
    stretch = room.robust.bins(np.arange(300.0))
    last = stretch == stretch[-1]
    assert 1 < last.sum() == seen["e"][0, -1] and seen["e"].sum() == 600
    assert seen["n"][1, -1] == pytest.approx(np.exp(np.log(given.norms[1, last]).mean()))
    assert seen["d"].sums[1, -1] == pytest.approx(given.declared.sums[1, last].mean())


def test_some_clients_and_the_first_rounds_of_a_trace():
    asked = Asked(np.array([3, 9]), *[np.arange(6.0).reshape(3, 2)] * 4)
    held = HeldOut(np.ones((2, 12, 3)), np.eye(3))
    given = trace(updates=np.ones((3, 12, 2)), w=np.ones((12, 2)), asked=asked, held_out=held,
                  quadratic=False, even=False)  # fmt: skip
    some = given.among(np.array([2, 0]))
    assert some.norms.shape == (2, 12) and some.updates.shape == (2, 12, 2)
    assert some.asked.q.tolist() == [[4, 5], [0, 1]] and some.held_out.alike.shape == (2, 2)
    assert some.asked.length.tolist() == [[4, 5], [0, 1]]
    assert (some.quadratic, some.even) == (False, False)
    early = given.until(5)
    assert early.norms.shape == (3, 5) and early.updates.shape == (3, 5, 2)
    assert early.w.shape == (5, 2) and early.declared.sums.shape == (3, 5)
    assert early.asked.round.tolist() == [3] and (early.quadratic, early.even) == (False, False)
    assert early.asked.length.tolist() == [[0], [2], [4]] and asked.until(2).round.size == 0
    unknown = replace(asked, length=None)
    assert unknown.until(5).length is None and unknown.among(np.array([1])).length is None
    bare = given.without_tapers()
    assert bare.held_out is None and bare.asked is None and not bare.quadratic
    with pytest.raises(AttributeError):
        given.quadratic = True
    with pytest.raises(AttributeError):
        finding(["idle"]).witness = "peers"
