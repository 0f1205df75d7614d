"""Fair while training: steering against equal influence, q-FedAvg and agnostic FL, at equal work.

    python benchmarks/fairness.py --data digits --out results/fairness-digits
    python benchmarks/fairness.py --data bloodmnist --folder data --out results/fairness-bloodmnist

Ten clients, one of whom holds all of a class and nothing else. All methods make the same rounds,
local epochs and step sizes from the same first model with the same mini-batches. What differs is
what the server does: nothing (equal influence), q-FedAvg (Li et al. 2020), agnostic FL (Mohri et
al. 2019; the averaged variant of Deng et al. 2020: weights on the simplex move by the losses), or
steering the clients' scales towards min-max. Every method with a parameter gets the same three
tries on a seed that is not measured, judged by the accuracy of the worst class on the clients' own
samples; the test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch.nn.functional import cross_entropy

import fedtaper as ft
from fedtaper.engines.network_client import Client
from fedtaper.engines.steered import network_losses
from fedtaper.problems.data import load_images

CLIENTS, BATCH, TUNING_SEED, EVERY, BOUND = 10, 32, 100, 3, 20.0
TRIES = {
    "equal influence": [None],
    "q-FedAvg": [0.1, 1.0, 5.0],
    "agnostic FL": [0.01, 0.1, 1.0],
    "steered to min-max": [0.3, 1.0, 3.0],
}


@dataclass(frozen=True)
class Setting:
    """One data set: which class is at one client alone, how many images, steps and rounds."""

    rare: int
    images: int
    step: float
    rounds: int
    model: Callable[[], torch.nn.Module]


def mlp() -> torch.nn.Module:
    """One hidden layer, for images of 8 x 8."""
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def cnn() -> torch.nn.Module:
    """Two convolutions, for colour images of 28 x 28."""
    first = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1)
    second = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
    last = torch.nn.Linear(32 * 7 * 7, 8)
    relu = torch.nn.ReLU
    return torch.nn.Sequential(first, relu(), second, relu(), torch.nn.Flatten(), last)


SETTINGS = {
    "digits": Setting(0, 1438, 0.3, 60, mlp),
    "bloodmnist": Setting(6, 4000, 0.1, 60, cnn),
}


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Cross-entropy, and the share of correct answers."""
    scores = model(x)
    return cross_entropy(scores, y), (scores.argmax(1) == y).double().mean()


class Federation:
    """The clients' images of one seed, and the test images."""

    def __init__(self, data_set: str, folder: str | None, seed: int, rounds: int) -> None:
        self.setting = how = SETTINGS[data_set]
        data = load_images(data_set, folder)
        rng = np.random.default_rng(seed)
        some = rng.permutation(len(data.train_y))[: how.images]
        y = data.train_y[some]
        parts = ft.RareClass(how.rare).places(y, CLIENTS, len(data.classes), seed)
        held = [(data.normalised(data.train_x[some[p]]), y[p].astype(np.int64)) for p in parts]
        problem = ft.Custom(loss, how.model, held)
        self.e = ft.Experiment(
            problem, ft.Power(how.step, 0.76, 10), rounds, local_epochs=1, batch_size=BATCH,
            clock="epoch", seed=seed,
        )  # fmt: skip
        self.train = (np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held]))
        self.test = (data.normalised(data.test_x), data.test_y.astype(np.int64))
        self.client = Client(self.e)

    def losses(self, w: torch.Tensor) -> np.ndarray:
        """Every client's loss at a model."""
        self.client.w.copy_(w)
        return network_losses(self.e.problem, self.client.module)

    def trained(self, client: int, round_: int, w: torch.Tensor) -> torch.Tensor:
        """A client's model after its local updates of a round."""
        a = self.e.step_sizes(round_, round_ + 1)[0, :, client]
        self.client.train(client, self.e.seed, round_, w, a)
        return self.client.w.clone()

    def worst_class(
        self, w: np.ndarray, images: tuple[np.ndarray, np.ndarray]
    ) -> tuple[float, ...]:
        """Accuracy of the worst class, and of all."""
        x, y = images
        with torch.no_grad():
            self.client.w.copy_(torch.from_numpy(np.asarray(w, dtype=np.float32)))
            pieces = torch.from_numpy(x).split(1000)
            right = torch.cat([self.client.module(p).argmax(1) for p in pieces]).numpy() == y
        return min(float(right[y == c].mean()) for c in np.unique(y)), float(right.mean())

    def scores(self, w: np.ndarray) -> dict[str, float]:
        """Accuracies of a model."""
        worst, mean = self.worst_class(w, self.test)
        sizes = np.cumsum(self.e.problem.sizes)[:-1]
        x, y = (np.split(part, sizes) for part in self.train)
        clients = [self.worst_class(w, pair)[1] for pair in zip(x, y, strict=True)]
        return {"worst class": worst, "worst client (train)": min(clients), "test accuracy": mean}


def trained(federation: Federation, method: str, value: float | None) -> np.ndarray:
    """The last model of a method with its parameter."""
    e = federation.e
    if method == "equal influence":
        return ft.run(e, progress=False).final
    if method == "steered to min-max":
        assert value is not None
        return ft.steer(e, "minmax", every=EVERY, rate=value, bound=BOUND).w
    w = torch.from_numpy(e.problem.initial(e.seed)).float()
    weights = np.full(CLIENTS, 1 / CLIENTS)
    for k in range(e.rounds):
        if method == "q-FedAvg":
            losses = federation.losses(w)
            ends = [federation.trained(i, k, w) for i in range(CLIENTS)]
            lipschitz = 1 / float(e.step_sizes(k, k + 1)[0].max())
            w = w - _q_step(w, ends, losses, lipschitz, float(value or 0))
        else:
            ends = [federation.trained(i, k, w) for i in range(CLIENTS)]
            w = sum(float(p) * end for p, end in zip(weights, ends, strict=True))  # type: ignore[assignment]
            weights = simplex(weights + float(value or 0) * federation.losses(w))
    return w.numpy()


def _q_step(
    w: torch.Tensor, ends: list[torch.Tensor], losses: np.ndarray, lipschitz: float, q: float
) -> torch.Tensor:
    """Algorithm 2 of Li et al. (2020): the sum of f^q pulls over the sum of their bounds."""
    pulls = [lipschitz * (w - end) for end in ends]
    top = sum(float(f**q) * pull for f, pull in zip(losses, pulls, strict=True))
    under = sum(
        q * f ** (q - 1) * float(pull @ pull) + lipschitz * f**q
        for f, pull in zip(losses, pulls, strict=True)
    )
    return top / under  # type: ignore[return-value]


def simplex(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex (Duchi et al. 2008)."""
    u = np.sort(v)[::-1]
    over = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - over[u > over][-1], 0)


def interval(values: list[float]) -> list[float]:
    """Mean with a 95 % t interval over the seeds."""
    found = np.asarray(values)
    half = float(student.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    return [float(found.mean()), float(found.mean()) - half, float(found.mean()) + half]


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--data", choices=list(SETTINGS), default="digits")
    words.add_argument("--folder", help="where the data set's file lies")
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--rounds", type=int)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    how = SETTINGS[given.data]
    rounds = given.rounds or how.rounds
    tries: dict[str, dict[str, float]] = {}
    chosen: dict[str, float | None] = {}
    tuning = Federation(given.data, given.folder, TUNING_SEED, rounds)
    for method, values in TRIES.items():
        scores = {}
        for value in values if len(values) > 1 else []:
            scores[value] = tuning.worst_class(trained(tuning, method, value), tuning.train)[0]
            print("tried", method, value, round(scores[value], 3), flush=True)
        chosen[method] = max(scores, key=lambda v: scores[v]) if scores else None
        tries[method] = {str(v): s for v, s in scores.items()}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in TRIES}
    for seed in range(given.seeds):
        federation = Federation(given.data, given.folder, seed, rounds)
        for method in TRIES:
            began = time.process_time()
            found = federation.scores(trained(federation, method, chosen[method]))
            rows[method].append(found | {"CPU seconds": time.process_time() - began})
            print(seed, method, {k: round(v, 3) for k, v in rows[method][-1].items()}, flush=True)
    names = ("worst class", "worst client (train)", "test accuracy")
    summary = {m: {n: interval([r[n] for r in runs]) for n in names} for m, runs in rows.items()}
    equal = rows["equal influence"]
    apart = {
        m: {n: interval([a[n] - b[n] for a, b in zip(runs, equal, strict=True)]) for n in names}
        for m, runs in rows.items()
        if m != "equal influence"
    }
    for method, found in summary.items():
        print(method, {n: [round(v, 3) for v in values] for n, values in found.items()})
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        page = {
            "data": given.data, "images": how.images, "rounds": rounds, "step": how.step,
            "seeds": list(range(given.seeds)), "tuning seed": TUNING_SEED, "tries": tries,
            "chosen": chosen, "mean and 95 % interval": summary,
            "difference from equal influence": apart, "runs": rows,
        }  # fmt: skip
        (given.out / "fairness.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
