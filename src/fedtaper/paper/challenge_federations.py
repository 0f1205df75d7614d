"""Federations of pairs of model and data, to measure the audit by challenges on.

Sites differ in their classes (split by Dirichlet draws) and in size. Seeds below FRESH were
used to choose settings; every reported rate comes from seeds at or above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedtaper.auditing import audit, trace_of
from fedtaper.auditing.judge import judge
from fedtaper.auditing.records import ACCUSATIONS
from fedtaper.core.errors import FedtaperWarning
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.problems.custom import Custom
from fedtaper.problems.data import Dirichlet
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.behaviours import After, Behaviour, Copies, Idle, Noise, OtherSchedule
from fedtaper.rules.challenges import Challenges
from fedtaper.simulation.drive import run

FRESH = 8_000_000  # those from 4,000,000 on were judged before, with earlier versions of the audit
ROUNDS, SWITCH = 100, 30
LOOKS = (20, 40, 60, 80, 100)
TRUE = {"honest": 0.0, "delta 0.9": 0.14, "delta 1": 0.24}
WHOLE = 8  # sites hold a multiple of this many samples
KINDS = ("delta 0.9", "delta 1", "fades later", "idle", "noise", "copying")


PLAIN = Challenges()


@dataclass(frozen=True)
class Pair:
    """A model and data: how to make a problem from a seed, and how it is trained."""

    make: Callable[[int], Any]
    settings: dict[str, Any]
    c: float = 0.1
    challenges: Challenges = PLAIN


def federation(name: str, seed: int) -> tuple[Experiment, tuple[str, ...]]:
    """About a third of the clients are attackers, drawn from KINDS; the rest are honest."""
    pair = (PAIRS | LARGE)[name]
    rng = np.random.default_rng([seed, 12])
    problem = pair.make(seed)
    count = problem.num_clients
    kinds = ["honest"] * count
    for i in rng.permutation(count)[: max(1, 3 * count // 10)]:
        kinds[i] = str(rng.choice(KINDS))
    made = Experiment(
        problem,
        Power(pair.c, 0.76),
        rounds=ROUNDS,
        challenges=pair.challenges,
        seed=seed,
        **pair.settings,
    )
    behaviours = {i: _behaviour(k, pair.c, made.period) for i, k in enumerate(kinds)}
    chosen = {i: b for i, b in behaviours.items() if b is not None}
    return Experiment(**{**_fields(made), "behaviours": chosen}), tuple(kinds)


def look(name: str, seed: int, device: str | None = None) -> list[dict[str, Any]]:
    """Run one federation; one row per client: when it was first accused, and its estimate."""
    e, kinds = federation(name, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        made = run(e, updates=True, progress=False, device=device)
    trace, found = trace_of(made).without_tapers(), audit(made)
    first = [0] * len(kinds)
    for k in LOOKS:  # idle, noise and copying; who fades is known by the round of its answer
        for i, verdict in enumerate(judge(trace.until(k)).verdicts):
            if verdict in ACCUSATIONS and not first[i]:
                first[i] = k
    rows = []
    for i, (kind, c) in enumerate(zip(kinds, found.clients, strict=True)):
        exact = c.since if c.verdict == "fading" and c.since is not None else first[i]
        ends = (c.delta, c.delta_low, c.delta_high)
        rows.append(
            {
                "pair": name, "seed": seed, "client": i, "kind": kind, "verdict": c.verdict,
                "accused": int(exact or first[i]), "excess": [round(d - 0.76, 4) for d in ends],
                "work": e.challenges.extra_work(ROUNDS, e.steps) if e.challenges else 0.0,
            }
        )  # fmt: skip
    return rows


def _fields(e: Experiment) -> dict[str, Any]:
    names = ("problem", "schedules", "rounds", "local_steps", "local_epochs", "batch_size")
    return {name: getattr(e, name) for name in (*names, "clock", "challenges", "seed")}


def _behaviour(kind: str, c: float, period: int) -> Behaviour | None:
    late = OtherSchedule(Power(c * (SWITCH * period) ** 0.24, 1.0))
    known: dict[str, Behaviour] = {
        "delta 0.9": OtherSchedule(Power(c, 0.9)),
        "delta 1": OtherSchedule(Power(c, 1.0)),
        "fades later": After(SWITCH, late),
        "idle": Idle(),
        "noise": Noise(),
        "copying": Copies(),
    }
    return known.get(kind)


@lru_cache(maxsize=4)
def _data(name: str) -> tuple[Any, Any]:
    """A data set of scikit-learn, standardised, as tensors."""
    import torch
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    x = (found.data - found.data.mean(axis=0)) / np.maximum(found.data.std(axis=0), 1e-9)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(found.target)


def _sites(name: str, count: int, alpha: float, least: int, seed: int) -> list[Any]:
    """Each class is split by a Dirichlet draw: sites differ in classes and size."""
    x, y = _data(name)
    rng = np.random.default_rng([seed, 13])
    parts: list[list[int]] = [[] for _ in range(count)]
    for label in range(int(y.max()) + 1):
        order = rng.permutation(np.flatnonzero(y.numpy() == label))
        cuts = np.cumsum(rng.dirichlet(np.full(count, alpha)))[:-1] * len(order)
        for part, some in zip(parts, np.split(order, cuts.astype(int)), strict=True):
            part += some.tolist()
    for part in parts:  # a site of too few samples gets some of the rest
        missing = max(0, least - len(part))
        part += rng.choice(len(x), missing, replace=False).tolist()
        del part[len(part) // WHOLE * WHOLE :]  # or a last batch of one weighs as much as any
    return [(x[part], y[part]) for part in parts]


def _loss(model: Any, x: Any, y: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(x), y)


def _custom(name: str, network: Callable[[], Any], count: int, alpha: float, least: int) -> Any:
    return lambda seed: Custom(_loss, network, _sites(name, count, alpha, least, seed))


def _logistic() -> Any:
    from torch import nn

    return nn.Linear(30, 2)


def _softmax() -> Any:
    from torch import nn

    return nn.Linear(64, 10)


def _mlp(width: int, classes: int) -> Any:
    def network() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, classes))

    return network


def _cnn() -> Any:
    """Two convolutions with GroupNorm on 8 x 8 images."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def _transformer() -> Any:
    """One block over the eight rows of an 8 x 8 image."""
    from torch import nn

    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 16), block, nn.Flatten(), nn.Linear(128, 10)
    )


def _regression(seed: int) -> LinearRegression:
    rng = np.random.default_rng([seed, 14])
    return LinearRegression(
        num_clients=10,
        samples=tuple(int(n) for n in rng.integers(200, 2000, 10)),
        feature_spread=tuple(float(s) for s in rng.choice((3.0, 5.0, 8.0), 10)),
        seed=seed,
    )


def _blood(seed: int) -> ImageClassification:
    return ImageClassification("bloodmnist", split=Dirichlet(0.5), model="resnet9", seed=seed)


EPOCHS = {"local_epochs": 4, "batch_size": 32}
IMAGES = {"local_epochs": 2, "batch_size": 32}
HALF = Challenges(every=6, share=0.5)  # noisy answers: more of them for the same work
# of one update: exact, for networks that learn a class, or leave where they were, within a round
ONE = Challenges(every=1, share=0.01)
PAIRS: dict[str, Pair] = {
    "regression, unequal features": Pair(_regression, {"local_steps": 50}, 0.001, HALF),
    "logistic, breast cancer": Pair(
        _custom("breast_cancer", _logistic, 10, 2.0, 40), EPOCHS, challenges=HALF
    ),
    "MLP, wine": Pair(_custom("wine", _mlp(13, 3), 5, 2.0, 24), EPOCHS | {"batch_size": 16}),
    "MLP, digits": Pair(_custom("digits", _mlp(64, 10), 10, 0.5, 64), IMAGES),
    "softmax, digits": Pair(_custom("digits", _softmax, 10, 0.5, 64), IMAGES, challenges=HALF),
    "CNN with GroupNorm, digits": Pair(
        _custom("digits", _cnn, 10, 0.5, 64), {"local_epochs": 1, "batch_size": 16}, challenges=ONE
    ),
    "transformer, digits": Pair(
        _custom("digits", _transformer, 10, 0.5, 64),
        {"local_epochs": 1, "batch_size": 16},
        challenges=ONE,
    ),
}
LARGE: dict[str, Pair] = {  # half a minute each on a GPU, many hours on a CPU
    "ResNet-9, BloodMNIST": Pair(_blood, {"local_epochs": 1, "batch_size": 32}, challenges=ONE),
}
