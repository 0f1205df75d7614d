"""Why a rare class's accuracy jumps up and down from round to round, and what removes it.

    python benchmarks/rare_class_swing.py --folder data

BloodMNIST, 4,000 images; client 0 holds all of class 6 and nothing else, and counts ten times as
much as each of the nine others, who have none of it. A small network with GroupNorm.

The first table changes one setting at a time: how far the rare class's test accuracy moves from
one round to the next, and how often the move turns around. The second takes the model after some
rounds and shifts its bias of the rare class. The *margin* is the score of the rare class above
the best other one, on its test images (the middle one). The table shows how far client 0 alone,
the others alone and all together move the margin in one round. The slope is that of the margin
after the round over the margin before, where all together do not move it: below -1 the model
jumps across that place in every round.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedtaper as ft
from fedtaper.engines.network_client import Client
from fedtaper.problems.data import load_images

CLIENTS, BATCH, RARE, IMAGES, BEFORE = 10, 32, 6, 4000, 4  # rounds that are not looked at
SHIFTS = (-6.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1)]
        layers += [nn.GroupNorm(after // 4, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 8))


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x), y)


class Federation:
    """The clients' images and the test images."""

    def __init__(self, folder: str | None, seed: int) -> None:
        data = load_images("bloodmnist", folder)
        some = np.random.default_rng(seed).permutation(len(data.train_y))[:IMAGES]
        y = data.train_y[some]
        parts = ft.RareClass(RARE).places(y, CLIENTS, len(data.classes), seed)
        held = [(data.normalised(data.train_x[some[p]]), y[p].astype(np.int64)) for p in parts]
        self.x, self.rare = torch.from_numpy(data.normalised(data.test_x)), data.test_y == RARE
        self.seed, self.problem = seed, ft.Custom(loss, network, held, self.evaluate)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Shares of the rare class's images, and of the others, that are taken for it."""
        found = model(self.x).argmax(1).numpy() == RARE
        return {"rare": found[self.rare].mean(), "taken for it": found[~self.rare].mean()}

    def experiment(
        self, c: float, share: float = 0.1, offset: float = 0.0, epochs: int = 3, rounds: int = 40
    ) -> ft.Experiment:
        """Client 0 with c, the others with a share of it."""
        schedules = [ft.Power(c, 0.76, offset)] + [ft.Power(share * c, 0.76, offset)] * 9
        return ft.Experiment(
            self.problem, schedules, rounds, local_epochs=epochs, batch_size=BATCH, clock="epoch",
            seed=self.seed,
        )  # fmt: skip

    def margin(self, client: Client, w: torch.Tensor) -> float:
        """Score of the rare class above the best other one, on the middle one of its images."""
        client.w.copy_(w)
        with torch.no_grad():
            scores = client.module(self.x)[self.rare]
        others = torch.cat([scores[:, :RARE], scores[:, RARE + 1 :]], 1)
        return float((scores[:, RARE] - others.max(1).values).median())

    def moves(self, e: ft.Experiment) -> Any:
        """Margin before a round, and how far client 0, the others and all move it: (shifts, 4)."""
        after = replace(e, rounds=e.rounds + 1)
        client, a = Client(after), after.step_sizes(e.rounds, e.rounds + 1)[0]
        start = torch.from_numpy(ft.run(e, progress=False).final).float()
        rows = []
        for shift in SHIFTS:
            w = start.clone()
            w[RARE - 8] += shift  # the biases of the eight classes come last
            sent = []
            for i in range(CLIENTS):
                client.train(i, self.seed, e.rounds, w, a[:, i])
                sent.append((client.w - w) / CLIENTS)
            before, parts = self.margin(client, w), (sent[0], sum(sent[1:]), sum(sent))
            rows.append([before, *(self.margin(client, w + u) - before for u in parts)])
        return np.array(rows)


CASES = {
    "c = 1": {"c": 1.0},
    "c = 1, offset 30": {"c": 1.0, "offset": 30.0},
    "c = 1, offset 30, 1 local epoch": {"c": 1.0, "offset": 30.0, "epochs": 1, "rounds": 120},
    "c = 0.5, offset 30": {"c": 0.5, "offset": 30.0},
    "c = 0.25, offset 30": {"c": 0.25, "offset": 30.0},
    "c = 0.1, offset 30": {"c": 0.1, "offset": 30.0},
    "c = 1, offset 30, the others at 0.3": {"c": 1.0, "offset": 30.0, "share": 0.3},
    "c = 1, offset 30, the others at 1": {"c": 1.0, "offset": 30.0, "share": 1.0},
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--folder", help="where bloodmnist.npz is")
    words.add_argument("--seed", type=int, default=0)
    chosen = words.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    federation = Federation(chosen.folder, chosen.seed)
    print("| setting | moves per round | turns around | rare class, last 10 rounds | slope |")
    print("|---|---|---|---|---|")
    for name, settings in CASES.items():
        e = federation.experiment(**settings)
        found = ft.run(e, progress=False).metrics["rare"]
        steps = np.diff(found[BEFORE:])
        turns = float((steps[1:] * steps[:-1] < 0).mean())
        table = federation.moves(replace(e, rounds=e.rounds // 2))
        size, end = np.abs(steps).mean(), found[-10:].mean()
        print(f"| {name} | {size:.3f} | {turns:.0%} | {end:.2f} | {slope(table):.2f} |", flush=True)
    e = federation.experiment(**CASES["c = 1, offset 30"])
    print("\n| margin | client 0 | the others | all |\n|---|---|---|---|")
    for row in federation.moves(replace(e, rounds=e.rounds // 2)):
        print("| " + " | ".join(f"{value:.1f}" for value in row) + " |")


def slope(table: Any) -> float:
    """Of the margin after a round over that before, where the round does not change it."""
    before, change = table[:, 0], table[:, 3]
    at = np.flatnonzero((change[:-1] > 0) & (change[1:] <= 0))
    if not at.size:
        return float("nan")
    low, high = int(at[0]), int(at[0]) + 1
    return float(1 + (change[high] - change[low]) / (before[high] - before[low]))


if __name__ == "__main__":
    main()
