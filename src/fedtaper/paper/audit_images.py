"""Claim A2: a client that holds a rare class and lets its influence fade is found on images."""

from __future__ import annotations

import numpy as np

from fedtaper.auditing import Audit, audit
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study
from fedtaper.paper.statistics import share_interval
from fedtaper.problems.data import RareClass
from fedtaper.problems.images import ImageClassification
from fedtaper.rules.behaviours import OtherSchedule
from fedtaper.simulation.drive import run

ROUNDS, RARE = 100, 0
FRESH = 1_000_000  # seeds below were used to choose the threshold
DECLARED, FASTER = Power(0.1, 0.76), Power(0.1, 1.0)
FOUND, FALSE_ALARMS = 0.9, 0.05


def federation(seed: int, attacked: bool) -> Experiment:
    """Ten clients on digits, class 0 only at client 0, which tapers with delta 1 if it attacks."""
    return Experiment(
        ImageClassification("digits", split=RareClass(RARE), model="cnn"),
        DECLARED,
        rounds=ROUNDS,
        local_epochs=1,
        batch_size=32,
        clock="epoch",
        behaviours={0: OtherSchedule(FASTER)} if attacked else {},
        seed=seed,
    )


def look(seed: int, attacked: bool) -> Audit:
    """Run it, and audit it with replays on held-out data of each client's classes."""
    return audit(run(federation(seed, attacked), updates=True, progress=False))


def judge_images(study: Study) -> Outcome:
    """A tenth as many federations as the study has seeds, each attacked and honest."""
    count = max(5, study.seeds // 10)
    found, honest = [], []
    for seed in range(FRESH, FRESH + count):
        attacked, fair = look(seed, True), look(seed, False)
        found.append(attacked.clients[0].verdict == "fading")
        honest += [c.accused for c in (*attacked.clients[1:], *fair.clients)]
        study.say(
            f"A2: federation {len(found)} of {count}; found {sum(found)}, "
            f"honest accused {sum(honest)} of {len(honest)}"
        )
    share, accused = share_interval(np.array(found)), share_interval(np.array(honest))
    checks = (
        Check("rare client found by round 100", *share, "at least 0.9", share[0] >= FOUND),
        Check("honest clients accused", *accused, "at most 0.05", accused[0] <= FALSE_ALARMS),
    )
    passed = all(c.passed for c in checks)
    return Outcome(
        "reproduced" if passed else "not-with-these-settings",
        f"found in {share[0]:.0%} of {count} federations by round {ROUNDS}; "
        f"{accused[0]:.2%} of honest clients accused",
        checks,
        "",
        settings={"federations": count, "first seed": FRESH, "attacker": repr(FASTER)},
    )


CLAIMS = [
    Claim(
        "A2",
        "On images, a client that holds a rare class and tapers faster than declared is found",
        "share of digits federations in which client 0, alone with class 0, is called fading by "
        "round 100 when it tapers with delta 1 for 0.76; share of honest clients accused",
        "found in less than 90 %; more than 5 % of honest clients accused",
        judge_images,
    )
]
