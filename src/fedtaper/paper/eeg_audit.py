"""Claim E2: hospitals that train a seizure detector are audited by challenges."""

from __future__ import annotations

import warnings

from fedtaper.auditing import audit
from fedtaper.auditing.records import ACCUSATIONS
from fedtaper.core.errors import FedtaperWarning
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Check, Claim, Outcome, Study
from fedtaper.paper.eeg import SCALE, SEEDS, data_at_hand
from fedtaper.problems.eeg import SeizureDetection
from fedtaper.rules.behaviours import OtherSchedule
from fedtaper.rules.challenges import Challenges
from fedtaper.simulation.drive import run

ROUNDS = 100
MODELS = ("features", "cnn")


def verdicts(data: str, model: str, fading: int | None, seed: int) -> tuple[str, ...]:
    """The audit's verdict on each hospital; one of them may taper faster than it declares."""
    problem = SeizureDetection(data, model)  # type: ignore[arg-type]  # checked there
    faster = {} if fading is None else {fading: OtherSchedule(Power(SCALE, 1.0))}
    e = Experiment(
        problem, Power(SCALE, 0.76), rounds=ROUNDS, local_steps=10, batch_size=16, clock="round",
        challenges=Challenges(), behaviours=faster, seed=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        return tuple(c.verdict for c in audit(run(e, updates=True, progress=False)).clients)


def judge_e2(study: Study) -> Outcome:
    """All hospitals honest, then each of them fading in turn."""
    data, seeds = data_at_hand(), min(SEEDS, study.seeds)
    hospitals = SeizureDetection(data, "features").num_clients  # type: ignore[arg-type]  # checked there
    checks: list[Check] = []
    for model in MODELS:
        accused = honest = found = cheats = 0
        for seed in range(seeds):
            for fading in (None, seed % hospitals, (seed + 1) % hospitals):
                study.say(f"E2: {data}, {model}, seed {seed}, fading: {fading}")
                for i, verdict in enumerate(verdicts(data, model, fading, seed)):
                    honest += i != fading
                    cheats += i == fading
                    accused += i != fading and verdict in ACCUSATIONS
                    found += i == fading and verdict == "fading"
        name = f"{model}: honest hospitals accused, of {honest}"
        checks.append(Check(name, accused, accused, accused, "none", accused == 0))
        name = f"{model}: hospitals with delta 1 for a declared 0.76 that were found, of {cheats}"
        checks.append(Check(name, found, found, found, "all", found == cheats))
    passed = all(check.passed for check in checks)
    summary = (
        f"{'The recordings' if data == 'neonatal_eeg' else 'The synthetic stand-in'}, {hospitals} "
        f"hospitals, {seeds} seeds, {ROUNDS} rounds with {Challenges().extra_work(ROUNDS):.0%} of "
        "extra local work: " + "; ".join(f"{c.name}: {c.value:.0f}" for c in checks) + "."
    )
    settings = {"data": data, "seeds": seeds, "rounds": ROUNDS, "steps": f"{SCALE:g} / k^0.76"}
    return Outcome(
        "reproduced" if passed else "not-with-these-settings",
        summary,
        tuple(checks),
        "this one" if passed else "see the checks that did not pass",
        (),
        settings,
    )


CLAIMS = (
    Claim(
        "E2",
        "An audit by challenges finds the hospital that fades, and accuses no honest one.",
        "All hospitals honest, and one with delta 1 for a declared 0.76: the verdicts after 100 "
        "rounds, for the one-dimensional CNN and for the linear model on features.",
        "An honest hospital that is accused, or a fading one that is not found.",
        judge_e2,
    ),
)
