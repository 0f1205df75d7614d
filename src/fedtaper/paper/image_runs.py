"""The runs behind claims I1 to I6: each is made once and kept in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Study
from fedtaper.problems.data import SOURCES, DominantClass, RareClass
from fedtaper.problems.images import ImageClassification
from fedtaper.results import Run
from fedtaper.rules.presets import PRESETS
from fedtaper.simulation.drive import run as simulate
from fedtaper.storage import store

CLIENTS, BATCH, DELTA = 10, 32, 0.76
BASELINES = ("fedavg", "fedprox", "fednova")
STEPS = ("constant", "tapering")
RARE_CASES = ("equal", "finite", "vanishing")


@dataclass(frozen=True)
class Setup:
    """One data set's sizes: the paper's, except for the digits."""

    model: str = "resnet9"
    c: float = 0.1
    rounds: int = 100
    seeds: int = 3
    share: float = 0.7
    first_seed: int = 0


SETUPS = {  # the digits' c was chosen on seed 0, so that is not judged
    "digits": Setup(model="cnn", c=0.3, rounds=50, first_seed=1),
}


@dataclass(frozen=True)
class Case:
    """One run: split, method, step sizes, and what claim I6 varies."""

    split: str = "dominant"
    method: str = "fedavg"
    steps: str = "tapering"
    seed: int = 0
    delta: float = DELTA
    epochs: int = 3
    share: float | None = None

    @property
    def name(self) -> str:
        """The run's folder."""
        parts = [self.split, self.method, self.steps]
        if self.delta != DELTA:
            parts.append(f"delta{self.delta:g}")
        if self.epochs != 3:
            parts.append(f"epochs{self.epochs}")
        if self.share is not None:
            parts.append(f"share{self.share:g}")
        return "-".join([*parts, f"seed{self.seed}"])


def data_set(study: Study) -> str:
    """The study's data set."""
    name = str(study.options.get("data_set", "digits"))
    if name not in SOURCES:
        raise FedtaperError(f"there is no data set {name!r}: use one of {', '.join(SOURCES)}")
    return name


def setup(study: Study) -> Setup:
    """The study's sizes."""
    return SETUPS.get(data_set(study), Setup())


def schedules(c: float, case: Case) -> Schedule | tuple[Schedule, ...]:
    """Step sizes of a case; the rare class's client is the first."""
    slow = Power(c, case.delta)
    if case.steps == "finite":
        return (slow, *[Power(c / 10, case.delta)] * (CLIENTS - 1))
    if case.steps == "vanishing":
        return (Power(c, 1.0), *[slow] * (CLIENTS - 1))
    return Constant(c) if case.steps == "constant" else slow


def experiment(study: Study, case: Case) -> Experiment:
    """What a case runs."""
    name, sizes = data_set(study), setup(study)
    split: Any = DominantClass(case.share or sizes.share)
    if case.split == "rare":
        split = RareClass(SOURCES[name].rare)
    problem = ImageClassification(
        name, split=split, model=sizes.model, num_clients=CLIENTS,
        seed=case.seed,
    )  # fmt: skip
    rules = {key: PRESETS[case.method][key] for key in ("local", "server")}
    return Experiment(
        problem, schedules(sizes.c, case), rounds=sizes.rounds, local_epochs=case.epochs,
        batch_size=BATCH, seed=case.seed, **rules,
    )  # fmt: skip


def folder(study: Study, case: Case) -> Path:
    """Where a case's run is kept."""
    return study.out / "runs" / data_set(study) / case.name


def image_run(study: Study, case: Case) -> Run:
    """The case's run: loaded if finished, resumed if stopped, else made."""

    def make() -> Run:
        where = folder(study, case)
        if store.is_complete(where):
            return store.load(where)
        study.say(f"{data_set(study)}: {case.name}")
        made = simulate(
            experiment(study, case), out=where, resume=where.exists(), progress=False,
            device=study.options.get("device"),
        )  # fmt: skip
        store.drop(where, store.MODEL, store.STATE, store.TENSORS)  # claims need no weights
        return made

    found: Run = study.once(("images", data_set(study), case), make)
    return found


def over_seeds(study: Study, case: Case) -> list[Run]:
    """The case's runs, one per seed."""
    sizes = setup(study)
    count = min(study.seeds, sizes.seeds)
    seeds = range(sizes.first_seed, sizes.first_seed + count)
    return [image_run(study, Case(**vars(case) | {"seed": seed})) for seed in seeds]


def rare_runs(study: Study) -> dict[str, list[Run]]:
    """The three influences of the rare class's client."""
    return {steps: over_seeds(study, Case("rare", steps=steps)) for steps in RARE_CASES}


def baseline_runs(study: Study) -> dict[tuple[str, str], list[Run]]:
    """Three methods, each with constant and with tapering steps, by (method, steps)."""
    return {
        (method, steps): over_seeds(study, Case(method=method, steps=steps))
        for method in BASELINES
        for steps in STEPS
    }
