"""What a network's clients brought: shared out from its rounds, against retraining every coalition.

    python benchmarks/network_contributions.py

Wine data at four sites, a network with one hidden layer. Retraining makes one run for each of the
15 coalitions; sharing out trains the rounds that count once more.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from sklearn.datasets import load_wine

import fedtaper as ft
from fedtaper.engines.steered import client_losses
from fedtaper.outcomes.contributions import evaluate

CLIENTS, ROUNDS = 4, 30


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), y)


def init() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(13, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def experiment(data: list[tuple[np.ndarray, np.ndarray]]) -> ft.Experiment:
    problem = ft.Custom(loss, init, data)
    return ft.Experiment(problem, ft.Power(0.5, 0.76, 10), ROUNDS, 3, batch_size=20)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    order = np.argsort(y + np.random.default_rng(0).normal(size=len(y)))  # unlike classes
    data = [(x[part], y[part]) for part in np.array_split(order, CLIENTS)]
    whole = experiment(data)
    began = time.process_time()
    run = ft.run(whole, updates=True, progress=False)
    once = time.process_time() - began
    began = time.process_time()
    shared = ft.contributions(run)
    cost = time.process_time() - began

    def game(masks: np.ndarray) -> np.ndarray:
        out = []
        for mask in masks:
            members = [data[i] for i in np.flatnonzero(mask)]
            w = run.w0 if not members else ft.run(experiment(members), progress=False).final
            out.append(-client_losses(whole.problem, np.asarray(w, dtype=np.float64)))
        return np.array(out)

    began = time.process_time()
    equal = np.full(CLIENTS, 1 / CLIENTS)
    retrained = evaluate(game, CLIENTS, equal, "retrained", True, 20, 0, time.perf_counter())
    print(f"one run {once:.2f} s, shared out {cost:.2f} s, "
          f"retrained {time.process_time() - began:.2f} s (CPU)")  # fmt: skip
    for name, found in (("shared out", shared), ("retrained", retrained)):
        shares = " ".join(f"{v:.1%}" for v in found.shapley / found.worth)
        out = " ".join(f"{v:.3f}" for v in found.leave_one_out)
        print(f"{name}: worth {found.worth:.3f}, shares {shares}, leave-one-out {out}")


if __name__ == "__main__":
    main()
