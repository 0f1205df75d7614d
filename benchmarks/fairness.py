"""Fair while training on digits: steering against equal influence, q-FedAvg and agnostic FL.

    python benchmarks/fairness.py [--seeds 3] [--rounds 60] [--out results/fairness-digits]

All methods make the same rounds, local epochs and step sizes from the same first model with the
same mini-batches. What differs is what the server does: nothing (equal influence), q-FedAvg (Li
et al. 2020) with q = 1, agnostic FL (Mohri et al. 2019; the averaged variant of Deng et al. 2020:
weights on the simplex move by the losses), or steering the clients' scales towards min-max.
Parameters were set on seed 100; the seeds measured are 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import fedtaper as ft
from fedtaper.problems.network import bind

CLIENTS, EPOCHS, BATCH, STEP = 10, 1, 16, 0.3
Q, AGNOSTIC_RATE, STEER_RATE, EVERY = 1.0, 0.1, 1.0, 3


def mlp(channels: int, height: int, width: int, classes: int) -> torch.nn.Module:
    inside = channels * height * width
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(inside, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, classes),
    )


def experiment(seed: int, rounds: int) -> ft.Experiment:
    problem = ft.ImageClassification(
        "digits", split=ft.RareClass(0), model=mlp, num_clients=CLIENTS, seed=seed
    )
    return ft.Experiment(
        problem, ft.Power(STEP, 0.76, 10), rounds, local_epochs=EPOCHS, batch_size=BATCH, seed=seed
    )


class Clients:
    """Local training and evaluation with one network, in float32, as the CPU engine does."""

    def __init__(self, e: ft.Experiment) -> None:
        self.e, self.module = e, e.problem.module()
        self.w = torch.zeros(e.problem.dim)
        self.gradient = torch.zeros_like(self.w)
        bind(self.module, self.w, self.gradient)

    def train(self, client: int, round_: int, start: torch.Tensor) -> torch.Tensor:
        """A client's model after its local updates of a round."""
        problem, e = self.e.problem, self.e
        a = e.step_sizes(round_, round_ + 1)[0, :, client]
        self.w.copy_(start)
        for step, batch in enumerate(problem.batches(e, e.seed, client, round_)):
            loss, _ = problem.batch_loss(self.module, *problem.take(client, batch))
            self.gradient.zero_()
            loss.backward()
            with torch.no_grad():
                self.w -= float(a[step]) * self.gradient
        return self.w.clone()

    def look(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every client's training loss and accuracy."""
        problem = self.e.problem
        with torch.no_grad():
            self.w.copy_(torch.from_numpy(np.asarray(w, dtype=np.float32)))
            found = [
                problem.batch_loss(self.module, *problem.take(i, problem.every_sample(i)))
                for i in range(CLIENTS)
            ]
        return (np.array([float(v) for v in part]) for part in zip(*found, strict=True))  # type: ignore[return-value]

    def scores(self, w: np.ndarray) -> dict[str, float]:
        """Accuracies of a model."""
        with torch.no_grad():
            self.w.copy_(torch.from_numpy(np.asarray(w, dtype=np.float32)))
            test = self.e.problem.scores(self.module)
        _, right = self.look(w)
        classes = [v for name, v in test.items() if name.startswith("test_accuracy_class_")]
        return {
            "test accuracy": test["test_accuracy"],
            "worst class": min(classes),
            "worst client (train)": float(right.min()),
            "mean client (train)": float(right.mean()),
        }


def server_side(e: ft.Experiment, method: str) -> np.ndarray:
    """Equal influence, q-FedAvg or agnostic FL, by plain loops."""
    clients = Clients(e)
    w = torch.from_numpy(e.problem.initial(e.seed)).float()
    weights = np.full(CLIENTS, 1 / CLIENTS)
    for k in range(e.rounds):
        losses, _ = clients.look(w.numpy())
        ends = [clients.train(i, k, w) for i in range(CLIENTS)]
        if method == "q-FedAvg":
            lipschitz = 1 / float(e.step_sizes(k, k + 1)[0].max())
            pulls = [lipschitz * (w - end) for end in ends]
            top = sum(f**Q * pull for f, pull in zip(losses, pulls, strict=True))
            under = sum(
                Q * f ** (Q - 1) * float(pull @ pull) + lipschitz * f**Q
                for f, pull in zip(losses, pulls, strict=True)
            )
            w = w - top / under
        else:
            w = sum(float(p) * end for p, end in zip(weights, ends, strict=True))  # type: ignore[assignment]
            if method == "agnostic FL":
                losses, _ = clients.look(w.numpy())
                weights = simplex(weights + AGNOSTIC_RATE * losses)
    return w.numpy()


def simplex(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex (Duchi et al. 2008)."""
    u = np.sort(v)[::-1]
    over = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - over[u > over][-1], 0)


def steered(e: ft.Experiment) -> np.ndarray:
    clients = Clients(e)

    def losses(w: np.ndarray) -> np.ndarray:
        found, _ = clients.look(w)
        return found

    return ft.steer(e, "minmax", every=EVERY, rate=STEER_RATE, bound=20, judge=losses).w


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--first", type=int, default=0)
    words.add_argument("--rounds", type=int, default=60)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    methods = ("equal influence", "q-FedAvg", "agnostic FL", "steered to min-max")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    for seed in range(given.first, given.first + given.seeds):
        e = experiment(seed, given.rounds)
        for name in methods:
            began = time.perf_counter()
            w = steered(e) if "steered" in name else server_side(e, name)
            rows[name].append(Clients(e).scores(w) | {"seconds": time.perf_counter() - began})
            print(seed, name, {k: round(v, 3) for k, v in rows[name][-1].items()}, flush=True)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        page = {"rounds": given.rounds, "first seed": given.first, "runs": rows}
        (given.out / "fairness.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
