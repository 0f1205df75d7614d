"""What is killed: one small run of every CPU engine and kind of state, many runs, and a study.

A case is a function of a folder that does all of its work there, or goes on with what it finds.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedtaper as ft
from fedtaper import engines
from fedtaper.engines import reference
from fedtaper.paper.claim import Check, Claim, Outcome, reproduce
from fedtaper.simulation import drive

TIMES = ("manifest", "seconds", "metric_seconds")  # what differs between two runs of the same bits


def hasten():
    """A checkpoint after each small block, so that every kill meets one that is being written."""
    drive.CHECKPOINT_SECONDS = -1.0
    engines.BLOCK_SAMPLES = 4_000
    reference.BLOCK_UPDATES = 60


def regression(rounds=150, schedules=None, **how):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=60, feature_spread=1.0, seed=7)
    settings = {"rounds": rounds, "local_steps": 2, "batch_size": 4} | how
    return ft.Experiment(problem, schedules or ft.Power(0.1, 0.8), **settings)


def stream(rounds=600, **how):
    problem = ft.RegressionStream(num_clients=3, dim=2, rho=0.5, feature_spread=1.0, seed=7)
    settings = {"rounds": rounds, "local_steps": 2, "batch_size": 4} | how
    return ft.Experiment(problem, ft.Power(0.1, 0.8), **settings)


class Rows:
    """A data set that is read sample by sample, as from a disk."""

    def __init__(self, client):
        rng = np.random.default_rng(client)
        self.x = rng.normal(size=(30 + client, 4)).astype(np.float32)
        self.y = (self.x.sum(axis=1) > 0).astype(np.int64)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        import torch

        return torch.from_numpy(self.x[i]), int(self.y[i])


def loss(model, x, y):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(x), y)


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def own(rounds=25, lazy=False, **how):
    data = [Rows(i) for i in range(3)]
    if not lazy:
        import torch

        data = [(torch.from_numpy(d.x), torch.from_numpy(d.y)) for d in data]
    problem = ft.Custom(loss, network, data, lazy=lazy or None)
    settings = {"rounds": rounds, "local_steps": 2, "batch_size": 8} | how
    return ft.Experiment(problem, ft.Power(0.1, 0.8), **settings)


def digits():
    problem = ft.ImageClassification("digits", split=ft.RareClass(3), num_clients=10)
    return ft.Experiment(problem, ft.Power(0.05, 0.8), rounds=4, local_steps=1, batch_size=8)


def stored(make, **how):
    """A case: one run with its folder."""

    def go(out):
        ft.run(make(), out=Path(out) / "run", resume=True, progress=False, **how)

    return go


def many(out):
    """Three runs in one folder, by ``run_many``."""
    base = regression(60)
    named = {f"seed-{seed}": replace(base, seed=seed) for seed in range(3)}
    ft.run_many(named, out=Path(out) / "many", engine="reference")


def study(out):
    """Four claims in one folder, by ``reproduce``."""

    def judge(seed):
        def found(known):
            made = known.run(regression(40, seed=seed), engine="reference")
            value = float(made.metrics["error"][:, -1].mean())
            name = f"figure-{seed}.txt"
            known.figure(name).write_text(f"{value!r}\n")
            check = Check("error", value, 0.0, 9.0, "below 9", value < 9)
            return Outcome("reproduced", f"error {value:.4g}", (check,), "these", (name,))

        return found

    claims = [Claim(f"R{k}", f"statement {k}", "m", "r", judge(k)) for k in range(1, 5)]
    reproduce(claims, Path(out) / "study", seeds=3, resume=True)


REFERENCE, UPDATES = {"engine": "reference"}, {"engine": "reference", "updates": True}
CASES = {
    "reference": stored(lambda: regression(server=ft.Adam()), **REFERENCE),
    "reference, seeds": stored(lambda: regression(80), seeds=[3, 1], thin=7, **UPDATES),
    "reference, momentum": stored(lambda: regression(local=ft.Momentum(0.5)), **REFERENCE),
    "reference, scaffold": stored(
        lambda: regression(local=ft.Scaffold(), server=ft.Controlled()), **REFERENCE
    ),
    "reference, dynamic": stored(
        lambda: regression(local=ft.Dynamic(0.1), server=ft.DynamicServer(0.1)), **REFERENCE
    ),
    "reference, behaviours": stored(
        lambda: regression(behaviours={1: ft.Copies(), 2: ft.After(9, ft.Idle())}), **UPDATES
    ),
    "reference, challenges": stored(
        lambda: regression(challenges=ft.Challenges(every=7)), **REFERENCE
    ),
    "reference, median": stored(lambda: regression(server=ft.Median()), **REFERENCE),
    "reference, delays": stored(
        lambda: regression(delays=ft.RandomDelay(2.0, 9), own_clock=True), **REFERENCE
    ),
    "reference, asynchronous": stored(
        lambda: regression(asynchronous=ft.Asynchronous(buffer=2)), **REFERENCE
    ),
    "compiled": stored(lambda: regression(3000, server=ft.Yogi()), engine="compiled"),
    "compiled, seeds": stored(lambda: regression(2000), engine="compiled", seeds=range(4)),
    "compiled, momentum": stored(
        lambda: regression(2000, local=ft.Momentum(0.5), participation=0.6), engine="compiled"
    ),
    "compiled, challenges": stored(
        lambda: regression(800, challenges=ft.Challenges(every=7)), engine="compiled"
    ),
    "events, delays": stored(
        lambda: regression(2000, delays=(0, 3, ft.HeavyDelay(1.5, 40))), engine="events"
    ),
    "events, asynchronous": stored(
        lambda: regression(2000, asynchronous=ft.Asynchronous(buffer=2)), engine="events"
    ),
    "events, stream": stored(stream, engine="events"),
    "events, moving": stored(
        lambda: ft.Experiment(
            ft.MovingRegression(stream().problem, drift=0.1),
            ft.Constant(0.05),
            rounds=600,
            local_steps=2,
            batch_size=4,
        ),
        engine="events",
    ),
    "cpu": stored(own, engine="cpu"),
    "cpu, adamw": stored(lambda: own(local=ft.AdamW()), engine="cpu"),
    "cpu, scaffold": stored(lambda: own(local=ft.Scaffold(), server=ft.Controlled()), engine="cpu"),
    "cpu, delays": stored(lambda: own(delays=ft.RandomDelay(2.0, 9)), engine="cpu"),
    "cpu, asynchronous": stored(lambda: own(asynchronous=ft.Asynchronous(buffer=2)), engine="cpu"),
    "cpu, seeds": stored(lambda: own(12), engine="cpu", seeds=[0, 5]),
    "cpu, updates": stored(
        lambda: own(15, behaviours={1: ft.Noise()}, server=ft.Adam()), engine="cpu", updates=True
    ),
    "cpu, challenges": stored(lambda: own(challenges=ft.Challenges(every=7)), engine="cpu"),
    "cpu, lazy": stored(lambda: own(lazy=True), engine="cpu"),
    "cpu, digits": stored(digits, engine="cpu"),
    "network, reference": stored(lambda: own(15, local=ft.Momentum(0.5)), **REFERENCE),
    "reference, steering": stored(
        lambda: regression(60, steering=ft.Steering(every=7)), **REFERENCE
    ),
    "compiled, steering": stored(
        lambda: regression(600, steering=ft.Steering(every=7)), engine="compiled"
    ),
    "cpu, steering": stored(lambda: own(steering=ft.Steering(every=5)), engine="cpu"),
    "run_many": many,
    "reproduce": study,
}


def bits(out):
    """All that a case left behind, without times: by file and array, and nothing unfinished."""
    found = {}
    for path in sorted(Path(out).rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or name.endswith(".lock"):
            continue
        if path.name == "provenance.json":
            notes = json.loads(path.read_text())
            found[name] = {k: notes[k] for k in ("seeds", "many", "diverged", "engine")}
        elif path.name == "claims.json":
            page = json.loads(path.read_text())
            found[name] = [{k: v for k, v in row.items() if k in KEPT} for row in page["claims"]]
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                for key in arrays.files:
                    if key not in TIMES:
                        found[f"{name}:{key}"] = arrays[key].tobytes()
        elif path.name != "metrics.csv":  # a table of what run.npz holds, with times
            found[name] = path.read_bytes()
    for path in sorted(Path(out).rglob("run.npz")):
        ft.load(path.parent)  # whole, and its checksums hold
    return found


KEPT = ("id", "statement", "verdict", "summary", "numbers", "figures")
