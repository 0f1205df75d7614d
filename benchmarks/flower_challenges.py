"""Honest sites that are challenged over Flower: none of them may be accused.

python benchmarks/flower_challenges.py [RUNS] [FIRST_SEED]

Three honest sites hold breast-cancer data, split anew for each run, and train a logistic
regression in Flower's simulation, with challenges. The seeds chose no setting of the audit.
"""

import io
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import binary_cross_entropy_with_logits

import fedtaper as ft
from fedtaper.deploy.server import serve
from fedtaper.engines.flower.app import make_client_app
from fedtaper.engines.flower.federation import numbered
from fedtaper.engines.flower.simulation import Simulation
from fedtaper.engines.flower.source import PickledSource

ROUNDS, EVERY, BASE = 30, 4, 3


def loss(model, x, y):
    """The mean logistic loss."""
    return binary_cross_entropy_with_logits(model(x)[:, 0], y)


def init():
    """A linear model of 30 features."""
    return torch.nn.Linear(30, 1)


def experiment(seed: int) -> ft.Experiment:
    """Three sites of unequal size, unlike in how many patients are ill."""
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    rng = np.random.default_rng(seed)
    order = np.argsort(y + rng.normal(0, 1.0, len(y)))  # the first sites get more of one kind
    parts = np.split(order, np.cumsum([150, 240]))
    problem = ft.Custom(loss, init, [(x[p], y[p].astype("float32")) for p in parts])
    return ft.Experiment(
        problem, ft.Power(0.3, 0.76), ROUNDS, local_epochs=1, batch_size=30, seed=seed,
        challenges=ft.Challenges(every=EVERY, base=BASE),
    )  # fmt: skip


@dataclass(frozen=True)
class Current:
    """The experiment that a file of the folder names: one simulation serves many runs."""

    folder: str

    def __call__(self, context: Any) -> PickledSource:
        """What a site is to work on now."""
        return PickledSource((Path(self.folder) / "current").read_text(encoding="utf-8"))


def main(runs: str = "20", first: str = "5000") -> None:
    """One line per run, and the count."""
    accused, federation = 0, ft.Federation(numbered(3))
    with tempfile.TemporaryDirectory() as folder:
        app = make_client_app(Current(folder))
        with Simulation(app, 3) as grid:
            for seed in range(int(first), int(first) + int(runs)):
                began = time.perf_counter()
                place = Path(folder) / str(seed)
                place.mkdir()
                source = PickledSource.write(experiment(seed), federation, place)
                (Path(folder) / "current").write_text(source.path, encoding="utf-8")
                with redirect_stdout(io.StringIO()):
                    run = serve(grid, source, None, progress=False)
                found = ft.audit(run).clients
                accused += sum(client.accused for client in found)
                verdicts = ", ".join(client.verdict for client in found)
                print(f"seed {seed}: {verdicts} ({time.perf_counter() - began:.0f} s)", flush=True)
    print(f"{accused} of {3 * int(runs)} honest sites accused")


if __name__ == "__main__":
    main(*sys.argv[1:])
