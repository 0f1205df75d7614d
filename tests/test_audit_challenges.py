"""Challenges: the statistics of answers, against exact cases and an independent integration."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

import fedtaper as ft
from fedtaper.auditing import challenges
from fedtaper.auditing.challenges import Asked, estimate, evidence, examine, turned
from fedtaper.rules.challenges import Challenges

ROUNDS = Challenges().rounds(100).astype(float)
X = np.log(ROUNDS - 0.5)
SUMS = ROUNDS**-0.76
LINE = -np.log(challenges.CHANCE)


def answers(excess=0.0, saturation=0.0, deviation=0.0, rng=None, ramp=X):
    """q of an exact client: a step sum that shrinks, saturation with the real step sum."""
    taper = np.exp(-excess * (ramp - ramp[0]))
    reach = np.maximum(2 * saturation * SUMS / SUMS[0] * taper, 1e-12)
    clean = taper * (1 - np.exp(-reach)) / reach  # a loss of one curvature, with small steps
    return clean if rng is None else clean * (1 + deviation * rng.normal(size=len(X)))


def integrated(y, ramp, base, effect):
    """The same Bayes factor by brute force: slope and deviation on a grid."""
    rest = np.eye(len(y)) - base @ np.linalg.pinv(base)
    y, ramp = rest @ y, rest @ ramp
    freedom = len(y) - base.shape[1]
    log_deviation = np.linspace(np.log(np.std(y)) - 4, np.log(np.std(y)) + 6, 1200)
    slopes = np.linspace(0, 8 * effect, 2401)  # in deviations
    deviation = np.exp(log_deviation)[:, None]
    square = (
        (y @ y) + 2 * slopes * deviation * (y @ ramp) + (slopes * deviation) ** 2 * (ramp @ ramp)
    )
    # d(deviation) / deviation is the invariant prior; the grid is even in its log
    like = np.exp(-0.5 * square / deviation**2) * deviation**-freedom
    prior = np.exp(-0.5 * (slopes / effect) ** 2)
    weighed = np.trapezoid(like * prior, slopes, axis=1) / np.trapezoid(prior, slopes)
    return np.trapezoid(weighed, log_deviation) / np.trapezoid(like[:, 0], log_deviation)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("count", [4, 6])
def test_bayes_factor_is_that_of_a_brute_force_integration(monkeypatch, width, count):
    rng = np.random.default_rng(count)
    ramp = X[:count] - X[0]
    base = np.stack([np.ones(count), SUMS[:count] ** 2], axis=1)[:, :width]
    y = 1 - 0.1 * ramp + 0.05 * rng.normal(size=count)
    for effect in (0.7, 3.0):
        monkeypatch.setattr(challenges, "EFFECTS", (effect,))
        found = np.exp(challenges._one_sided(y, ramp, base)[-1])
        assert found == pytest.approx(integrated(y, ramp, base, effect), rel=0.01)


@pytest.mark.parametrize("deviation", [0.01, 0.2])
@pytest.mark.parametrize("saturation", [0.0, 0.3])
def test_an_honest_client_is_hardly_ever_accused(deviation, saturation):
    """Looked at after every answer: the chance of ever being accused is below 1 %."""
    rng = np.random.default_rng(7)
    ever = [
        evidence(answers(0, saturation, deviation, rng), X, SUMS).max() >= LINE for _ in range(300)
    ]
    assert np.mean(ever) <= 0.01


def test_who_fades_is_found_and_when():
    rng = np.random.default_rng(1)
    count = 40
    fades = [evidence(answers(0.24, 0.1, 0.02, rng), X, SUMS) for _ in range(count)]
    assert np.mean([path[ROUNDS <= 60].max() >= LINE for path in fades]) >= 0.95
    slowly = [evidence(answers(0.14, 0.1, 0.02, rng), X, SUMS) for _ in range(count)]
    assert np.mean([path.max() >= LINE for path in slowly]) >= 0.9
    ramp = np.maximum(X, np.log(30))
    late = [evidence(answers(0.24, 0.1, 0.01, rng, ramp), X, SUMS) for _ in range(count)]
    assert np.mean([path.max() >= LINE for path in late]) >= 0.9
    assert np.mean([path[ROUNDS <= 30].max() >= LINE for path in late]) == 0


@given(st.floats(-0.1, 0.4), st.floats(0.0, 3.0), st.floats(0.1, 100.0))
@settings(max_examples=30, deadline=None)
def test_exact_answers_give_the_exact_excess_in_any_unit(excess, saturation, unit):
    found = estimate(unit * answers(excess, saturation), X, SUMS, spread=max(saturation, 0.25))
    assert found.excess == pytest.approx(excess, abs=0.01)
    assert found.saturation == pytest.approx(saturation, abs=0.02)
    assert abs(found.excess - excess) < stdtrit(found.freedom, 0.975) * found.error


def test_saturation_goes_with_the_step_sum():
    """One site takes ten times the others' steps: it may saturate ten times as much."""
    rng = np.random.default_rng(4)
    saturation = np.array([2.5, 0.25, 0.25, 0.25])
    q = np.array([answers(0.0, s, 0.003, rng) for s in saturation])
    sums = SUMS * (saturation / 0.25)[:, None]
    found = examine(Asked(ROUNDS.astype(int), q, np.tile(X, (4, 1)), sums))
    assert np.all(np.abs(found.excess) < stdtrit(found.freedom, 0.975) * found.error)
    assert not found.unexplained.any() and not found.found.any()


def test_saturation_of_many_curvatures_is_not_taken_for_an_estimate():
    """An honest client is not said to be far below its declared delta."""
    reach = 40 * SUMS / SUMS[0] * np.geomspace(0.001, 1, 5)[:, None]
    q = ((1 - np.exp(-reach)) / reach).mean(axis=0)
    found = examine(Asked(ROUNDS.astype(int), q[None], X[None], SUMS[None]))
    assert found.unexplained.all() and np.isnan(found.excess).all() and not found.found.any()
    products = (q * SUMS)[:, None]
    auditor = ft.Auditor([ft.Power(0.1, 0.76)])
    asked = dict(zip(ROUNDS.astype(int).tolist(), products, strict=True))
    for k in range(1, 101):
        auditor.add(np.ones(1) / k, n=float(k))
        if k in asked:
            auditor.challenge(asked[k])
    (client,) = auditor.result().clients
    assert client.verdict == "cannot tell yet" and "large steps within a round" in client.notes[0]


def test_missing_answers_change_nothing():
    rng = np.random.default_rng(3)
    q = answers(0.14, 0, 0.02, rng)
    gaps = np.insert(q, [2, 5], np.nan)
    x, sums = np.insert(X, [2, 5], X[[2, 5]]), np.insert(SUMS, [2, 5], SUMS[[2, 5]])
    assert estimate(gaps, x, sums) == estimate(q, X, SUMS)
    path = evidence(gaps, x, sums)
    assert np.allclose(path[np.isfinite(gaps)], evidence(q, X, SUMS))
    assert path[2] == path[1]
    nothing = estimate(np.full(len(X), np.nan), X, SUMS)
    assert np.isnan(nothing.excess)


def test_a_direction_of_noise_alone_is_no_accusation():
    """Answers that point nowhere: no estimate, no verdict, whatever their size."""
    rng = np.random.default_rng(5)
    q = rng.normal(size=(200, len(X)))
    found = examine(Asked(ROUNDS.astype(int), q, np.tile(X, (200, 1)), np.tile(SUMS, (200, 1))))
    assert (found.found > 0).mean() <= 0.015


def test_online_with_products():
    """A server of one's own: rounds and challenges one after the other."""
    declared = [ft.Power(0.1, 0.76)] * 3
    auditor = ft.Auditor(declared)
    rng = np.random.default_rng(0)
    plan = Challenges(every=6)
    asked = set(plan.rounds(80).tolist())
    for k in range(1, 81):
        auditor.add(np.ones(3) / k, n=float(k))
        if k in asked:
            each = np.array([k**-0.76, k**-1.0, k**-0.76]) * (1 + 0.01 * rng.normal(size=3))
            auditor.challenge(np.where([True, True, k < 50], each, np.nan))
        if k == 7:
            assert not auditor.result().accused
    found = auditor.result()
    assert found.witness == "challenges"
    assert [c.verdict for c in found.clients] == ["as declared", "fading", "as declared"]
    second = found.clients[1]
    assert second.delta_low < 1.0 < second.delta_high
    assert second.since in asked and second.since < 60
    with pytest.raises(ft.FedtaperError, match="products has shape"):
        auditor.challenge(np.ones(2))
    with pytest.raises(ft.FedtaperError, match="add the round first"):
        ft.Auditor(declared).challenge(np.ones(3))


def test_when_to_ask():
    plan = Challenges(every=10, base=4, share=0.5)
    assert plan.rounds(30).tolist() == [5, 6, 14, 24]
    assert plan.rounds(4).tolist() == []
    assert plan.steps([1, 3, 10]).tolist() == [1, 2, 5]
    assert Challenges().extra_work(100) <= 0.1
    for wrong in ({"every": 0}, {"base": 0}, {"share": 0.0}, {"share": 1.5}, {"jitter": -0.1}):
        with pytest.raises(ft.FedtaperError, match="challenges"):
            Challenges(**wrong)
    base, after = np.zeros(3), np.ones(3)
    moved = [Challenges(jitter=0.1).model(base, after, 0, k)[0] for k in range(50)]
    assert len(set(moved)) == 50 and min(moved) >= 0 and max(moved) < 0.1


def test_the_confidence_sequence_holds_for_all_rounds_at_once():
    """A score that grows with every round: the chance of ever leaving is at most 2 * EVER."""
    from fedtaper.auditing.judge import EVER, threshold

    rng = np.random.default_rng(2)
    information = np.geomspace(50, 50_000, 400)  # of an excess, after each round
    steps = rng.normal(size=(4000, 400)) * np.sqrt(np.diff(information, prepend=0))
    score = np.cumsum(steps, axis=1) / np.sqrt(information)
    line = np.array([threshold(1 / np.sqrt(v), "updates") for v in information])
    assert (score > line).any(axis=1).mean() <= EVER
    assert (np.abs(score) > line).any(axis=1).mean() <= 2 * EVER
    assert 3 < line.min() < 4


def asked_of(q, length=None):
    """One client's answers."""
    rows = [part[None] for part in (q, X, SUMS)]
    return Asked(ROUNDS.astype(int), *rows, None if length is None else length[None])


def test_answers_that_turn_accuse_nobody():
    """Long ways end nearer to the base update: products fall, and lengths do not."""
    rng = np.random.default_rng(8)
    noise = 1 + 0.02 * rng.normal(size=len(X))
    q, length = noise * (0.35 + 0.45 * SUMS / SUMS[0]), noise * np.linspace(1.0, 1.6, len(X))
    assert examine(asked_of(q)).found[0] > 0  # taken by itself it looks like a taper
    found = examine(asked_of(q, length))
    assert not found.found.any() and found.turned.all() and np.isnan(found.excess).all()
    auditor = ft.Auditor([ft.Power(0.1, 0.76)])
    place = {int(k): i for i, k in enumerate(ROUNDS)}
    for k in range(1, 101):
        auditor.add(np.ones(1) / k, n=float(k))
        if k in place:
            i = place[k]
            auditor.challenge([q[i] * k**-0.76], sizes=[length[i] * k**-0.76])
    (client,) = auditor.result().clients
    assert client.verdict == "cannot tell yet" and "point elsewhere" in client.notes[0]


def test_a_taper_shows_in_lengths_and_products_alike():
    rng = np.random.default_rng(9)
    for excess, wanted in ((0.24, True), (0.0, False)):
        q = answers(excess, 0.1, 0.01, rng)
        length = 3 * answers(excess, 0.1, 0.01, rng)
        found = examine(asked_of(q, length))
        assert bool(found.found[0]) is wanted and not found.turned.any()
        assert abs(found.excess[0] - excess) < stdtrit(found.freedom[0], 0.975) * found.error[0]


def test_how_far_answers_turn_is_the_slope_of_a_straight_line():
    rng = np.random.default_rng(10)
    for _ in range(20):
        cosine = 0.8 - rng.uniform(0, 0.25) * (X - X[0]) + 0.05 * rng.normal(size=len(X))
        for count in range(4, len(X) + 1):
            x, y = X[:count] - X[0], cosine[:count]
            (slope, _), cov = np.polyfit(x, y, 1, cov=True)
            least = abs(slope) - 2 * np.sqrt(cov[0, 0])
            wanted = least * x[-1] > 0.35 * abs(y.mean())
            assert turned(cosine[:count], X[:count])[-1] == wanted
        assert not turned(cosine, X)[:3].any()


def test_sizes_belong_to_all_answers_or_none():
    auditor = ft.Auditor([ft.Power(0.1, 0.76)] * 2)
    auditor.add(np.ones(2), n=1.0)
    auditor.challenge([1.0, 2.0], sizes=[1.0, 2.0])
    with pytest.raises(ft.FedtaperError, match="sizes of all answers, or of none"):
        auditor.challenge([1.0, 2.0])
    with pytest.raises(ft.FedtaperError, match=r"sizes has shape \(3,\)"):
        auditor.challenge([1.0, 2.0], sizes=[1.0, 2.0, 3.0])


def test_a_challenge_of_one_update_is_exact_however_large_the_steps():
    """A loss with curvatures from 1 to 1,000: a few updates overshoot, one never bends."""
    curved = torch.logspace(0, 3, 6)

    def loss(model, x, y):
        return 0.5 * (curved * (model.weight[0] - 1) ** 2).sum() + 0 * (x.sum() + y.sum())

    data = [(np.zeros((8, 6)), np.zeros((8, 1)))] * 2
    problem = ft.Custom(loss, lambda: torch.nn.Linear(6, 1, bias=False), data)
    plan = Challenges(every=1, share=0.01, jitter=0.0)
    e = ft.Experiment(
        problem, ft.Power(0.001, 0.76), 30, 8, batch_size=8, challenges=plan,
        behaviours={1: ft.OtherSchedule(ft.Power(0.001, 1.0))},
    )  # fmt: skip
    run = ft.run(e, progress=False)
    honest, fading = ft.audit(run).clients
    assert honest.delta == pytest.approx(0.76, abs=0.005) and not honest.accused
    assert fading.delta == pytest.approx(1.0, abs=0.005) and fading.verdict == "fading"
    assert plan.extra_work(30, e.steps) == pytest.approx(28 / 30 / 8)
