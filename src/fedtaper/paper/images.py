"""Claims I1 to I6: everything in the paper that is about images.

Numbers are averages over the last ten rounds ("late"), since single rounds swing. A check's
value is the mean over seeds, its interval the seeds' range; with one seed the two are one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.paper import image_figures as figures
from fedtaper.paper.claim import Check, Claim, Outcome, Study, Verdict
from fedtaper.paper.image_runs import (
    BASELINES,
    BATCH,
    CLIENTS,
    Case,
    baseline_runs,
    data_set,
    over_seeds,
    rare_runs,
    setup,
)
from fedtaper.results import Run

Array = NDArray[np.float64]
LATE = 10  # rounds
FALLING = -0.5  # slope of log change against log round; tapering predicts -0.76 or less
DELTAS, EPOCHS, SHARES = (0.76, 0.88, 1.0), (1, 3, 6), (0.3, 0.7, 0.95)


def late(run: Run, name: str) -> float:
    """Mean over the last rounds."""
    return float(np.mean(run.metrics[name][-LATE:]))


def early(run: Run, name: str) -> float:
    """Mean over the first rounds."""
    return float(np.mean(run.metrics[name][:LATE]))


def slope(run: Run) -> float:
    """The slope of log change against log round, over the second half: below 0 if it falls."""
    half = len(run.round) // 2
    k, change = run.round[half:], run.metrics["change"][half:]
    return float(np.polyfit(np.log(k), np.log(np.maximum(change, 1e-30)), 1)[0])


def swing(run: Run, name: str) -> float:
    """How a metric oscillates late: mean size of its second differences, last 20 rounds."""
    return float(np.mean(np.abs(np.diff(run.metrics[name][-2 * LATE :], 2))))


def check(name: str, values: Any, limit: float, above: bool) -> Check:
    """The mean over seeds against a limit; the interval is the seeds' range."""
    found = np.asarray(values, dtype=np.float64)
    mean = float(found.mean())
    word = "above" if above else "below"
    passed = mean > limit if above else mean < limit
    text = f"mean over {found.size} seed{'s' * (found.size > 1)} {word} {limit:g}"
    return Check(name, mean, float(found.min()), float(found.max()), text, bool(passed))


def judge_i1(study: Study) -> Outcome:
    """Equal steps."""
    runs = over_seeds(study, Case())
    gain = [late(r, "test_accuracy") - early(r, "test_accuracy") for r in runs]
    checks = (
        check("slope of log ||change|| in log round", [slope(r) for r in runs], FALLING, False),
        check(
            "late / early ||change||",
            [late(r, "change") / early(r, "change") for r in runs], 0.3, False,
        ),
        check("late training loss", [late(r, "train_loss") for r in runs], 0.1, False),
        check("late training accuracy", [late(r, "train_accuracy") for r in runs], 0.95, True),
        check("late - early test accuracy", gain, 0.0, True),
    )  # fmt: skip
    moving = checks[0].passed and checks[1].passed and checks[4].passed
    falls = all(late(r, "train_loss") < 0.8 * early(r, "train_loss") for r in runs)
    verdict: Verdict = "not-with-these-settings"
    if all(c.passed for c in checks):
        verdict = "reproduced"
    elif moving and falls:
        verdict = "not-at-this-horizon"
    summary = (
        f"||change|| falls like round^{checks[0].value:.2f}; training loss ends at "
        f"{checks[2].value:.3f}, training accuracy at {checks[3].value:.3f}, test accuracy at "
        f"{np.mean([late(r, 'test_accuracy') for r in runs]):.3f} "
        f"({checks[4].value:+.3f} since the first ten rounds)."
    )
    shown = (figures.equal(study, runs), figures.holdings(study, runs[0]))
    return outcome(study, verdict, summary, checks, horizon(runs), shown)


def judge_rare(study: Study, number: int) -> Outcome:
    """I2: finite influence; I3: vanishing influence of the rare class's client."""
    runs = rare_runs(study)
    rare = {k: np.array([late(r, "rare_test_accuracy") for r in v]) for k, v in runs.items()}
    whole = {k: np.array([late(r, "test_accuracy") for r in v]) for k, v in runs.items()}
    if number == 2:
        lift = rare["finite"] - rare["equal"]
        kept = whole["finite"] - whole["equal"]
        checks: tuple[Check, ...] = (
            check("late rare-class accuracy, finite - equal", lift, 0.0, True),
            check("late test accuracy, finite - equal", kept, -0.05, True),
        )
        summary = (
            f"Rare-class test accuracy is {rare['finite'].mean():.3f} with influence "
            f"(1, 0.1, ...) and {rare['equal'].mean():.3f} with equal ones; over all classes "
            f"{whole['finite'].mean():.3f} and {whole['equal'].mean():.3f}."
        )
    else:
        gain = [late(r, "test_accuracy") - early(r, "test_accuracy") for r in runs["vanishing"]]
        checks = (
            check("late - early test accuracy, vanishing", gain, 0.0, True),
            check(
                "late rare-class accuracy, vanishing - equal",
                rare["vanishing"] - rare["equal"], 0.0, False,
            ),
            check("late rare-class accuracy, vanishing", rare["vanishing"], 0.5, False),
        )  # fmt: skip
        summary = (
            f"With client 0 at c/n the test accuracy ends at {whole['vanishing'].mean():.3f} "
            f"({checks[0].value:+.3f} since the first ten rounds), the rare class's at "
            f"{rare['vanishing'].mean():.3f}, against {rare['equal'].mean():.3f} with equal "
            f"steps and {rare['finite'].mean():.3f} with a finite influence."
        )
    passed = all(c.passed for c in checks)
    verdict: Verdict = "reproduced" if passed else "not-with-these-settings"
    e = runs["vanishing"][0].experiment
    p_n = e.influence().effective
    nearest = (
        "the setting itself"
        if passed
        else f"at the last round the client's own influence is still {p_n[0]:.2f} of the others': "
        "more rounds, or a larger delta, would lower it further"
    )
    return outcome(study, verdict, summary, checks, nearest, (figures.rare(study, runs),))


def judge_baselines(study: Study, number: int) -> Outcome:
    """I4: constant steps do not settle. I5: tapering ones do."""
    runs = baseline_runs(study)
    checks: list[Check] = []
    for method in BASELINES:
        constant, tapering = runs[method, "constant"], runs[method, "tapering"]
        pairs = list(zip(constant, tapering, strict=True))
        if number == 4:
            level = [late(c, "change") / late(t, "change") for c, t in pairs]
            swings = [swing(c, "test_loss") / swing(t, "test_loss") for c, t in pairs]
            checks += [
                check(f"{method}: late ||change||, constant / tapering", level, 3, True),
                check(f"{method}: swing of test loss, constant / tapering", swings, 2, True),
            ]
        else:
            slopes = [slope(t) for t in tapering]
            swings = [swing(t, "test_loss") / swing(c, "test_loss") for c, t in pairs]
            checks += [
                check(f"{method}: slope of log ||change|| in log round", slopes, FALLING, False),
                check(f"{method}: swing of test loss, tapering / constant", swings, 0.5, False),
            ]
    passed = all(c.passed for c in checks)
    values = ", ".join(f"{m} {checks[2 * i].value:.2f}" for i, m in enumerate(BASELINES))
    summary = (
        f"Late ||change|| with constant steps over that with tapering ones: {values}."
        if number == 4
        else f"||change|| falls like a power of the round with exponent: {values}."
    )
    lost = [
        late(t, "test_accuracy") - late(c, "test_accuracy")
        for m in BASELINES
        for c, t in zip(runs[m, "constant"], runs[m, "tapering"], strict=True)
    ]
    swung = ", ".join(f"{m} {checks[2 * i + 1].value:.2f}" for i, m in enumerate(BASELINES))
    ratio = "constant over tapering" if number == 4 else "tapering over constant"
    summary += f" Swing of the test loss, {ratio}: {swung}."
    summary += f" Late test accuracy, tapering - constant: {np.mean(lost):+.3f} on average."
    return outcome(
        study, "reproduced" if passed else "not-with-these-settings", summary, tuple(checks),
        "the setting itself" if passed else horizon(runs["fedavg", "tapering"]),
        figures.baselines(study, runs, "constant" if number == 4 else "tapering"),
    )  # fmt: skip


def judge_i6(study: Study) -> Outcome:
    """The effect of delta, of N, and of how unlike the clients are."""
    swept: dict[str, dict[float, list[Run]]] = {
        "delta": {d: over_seeds(study, Case(delta=d)) for d in DELTAS},
        "local epochs": {n: over_seeds(study, Case(epochs=n)) for n in EPOCHS},
        "dominant share": {
            s: over_seeds(study, Case(share=None if s == 0.7 else s)) for s in SHARES
        },
    }

    def ends(what: str, name: str) -> Array:
        """The sweep's last over its first value, seed by seed."""
        first, *_, last = swept[what].values()
        return np.array([late(b, name) / late(a, name) for a, b in zip(first, last, strict=True)])

    checks = (
        check("delta 1 / 0.76: late ||change||", ends("delta", "change"), 1, False),
        check("delta 1 / 0.76: late training loss", ends("delta", "train_loss"), 1, True),
        check("6 / 1 epochs: late training loss", ends("local epochs", "train_loss"), 1, False),
        check("share 0.95 / 0.3: late test loss", ends("dominant share", "test_loss"), 1, True),
    )  # fmt: skip
    passed = all(c.passed for c in checks)
    summary = (
        "A larger delta moves less and learns less by the same round; more local epochs learn "
        "more per round; clients that differ more end at a higher test loss."
        if passed
        else "; ".join(f"{c.name} is {c.value:.2f}" for c in checks) + "."
    )
    verdict: Verdict = "reproduced" if passed else "not-with-these-settings"
    return outcome(
        study, verdict, summary, checks, "the setting itself", figures.sweeps(study, swept)
    )


def horizon(runs: list[Run]) -> str:
    """What more rounds would change."""
    e = runs[0].experiment
    a = float(e.step_sizes(e.rounds - 1, e.rounds)[0, 0, 0])
    first = float(e.step_sizes(0, 1)[0, 0, 0])
    return (
        f"after {e.rounds} rounds a step is {a / first:.3f} of the first and the training loss "
        "still falls: more rounds, or a larger c, would take it further"
    )


def outcome(
    study: Study, verdict: Verdict, summary: str, checks: tuple[Check, ...], nearest: str,
    shown: tuple[str, ...],
) -> Outcome:  # fmt: skip
    """With the settings that made it."""
    sizes = setup(study)
    made = {
        "data_set": data_set(study), "clients": CLIENTS, "batch_size": BATCH, "local_epochs": 3,
        "clock": "epoch",
    }  # fmt: skip
    used = vars(sizes) | {"seeds": min(study.seeds, sizes.seeds)}
    return Outcome(verdict, summary, checks, nearest, shown, made | used)


def _claim(name: str, statement: str, measure: str, refuted: str, judge: Any) -> Claim:
    return Claim(name, statement, measure, refuted, judge)


CLAIMS = [
    _claim(
        "I1",
        "Images, equal steps: the change of the shared model goes to 0, training loss to 0, "
        "training accuracy to 1, and test metrics improve",
        "dominant-class split: slope of log ||change|| against log round over the second half; "
        "late (last ten rounds) change, training loss and accuracy, test accuracy",
        f"a slope above {FALLING}, a late training loss above 0.1 or accuracy below 0.95, or a "
        "test accuracy below its early value",
        judge_i1,
    ),
    _claim(
        "I2",
        "Rare class at client 0, influences (1, 0.1, ...): its test accuracy rises against equal "
        "influences, global accuracy is kept",
        "rare-class and global test accuracy, averaged over the last ten rounds, seed by seed",
        "a rare-class accuracy not above that of equal influences, or a global one more than "
        "0.05 below",
        lambda study: judge_rare(study, 2),
    ),
    _claim(
        "I3",
        "Rare class, client 0 at c/n (influence to 0): global metrics improve, the rare class's "
        "do not",
        "rare-class and global test accuracy, averaged over the last ten rounds, seed by seed",
        "a rare-class accuracy above 0.5 or not below that of equal steps, or no gain in global "
        "accuracy",
        lambda study: judge_rare(study, 3),
    ),
    _claim(
        "I4",
        "FedAvg, FedProx and FedNova at a constant step: the change of the shared model does not "
        "go to 0, metrics oscillate",
        "late ||change||, and the swing (mean second difference over the last 20 rounds) of the "
        "test loss, each over that of the same method with tapering steps",
        "a late change below 3 times, or a swing below twice, that with tapering steps",
        lambda study: judge_baselines(study, 4),
    ),
    _claim(
        "I5",
        "FedAvg, FedProx and FedNova with tapering steps: the change goes to 0, the "
        "oscillation is suppressed",
        "slope of log ||change|| against log round over the second half; swing of the test loss "
        "over that with a constant step",
        f"a slope above {FALLING}, or a swing above half of that with a constant step",
        lambda study: judge_baselines(study, 5),
    ),
    _claim(
        "I6",
        "On images, a larger delta learns less by the same round, more local epochs learn more "
        "per round, and unlike clients end at a higher test loss",
        "late change, training and test loss at the ends of a sweep of each, one over the other",
        "an effect that goes the other way",
        judge_i6,
    ),
]
