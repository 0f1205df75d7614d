"""What robust means do to influence, and what they are good for: python benchmarks/robust_means.py.

Seven clients of a regression with planned influences 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1 (by their step
sizes, delta 0.76), 300 rounds, medians of 10 seeds. For each server rule: by how much each group
of clients moved the model, relative to the first; the distance of the model to the optimum of the
planned influences and to that of equal ones; and the distance to the planned optimum of the others
when client 2 sends noise of 100 times its update's size.
"""

from dataclasses import replace

import numpy as np

import fedtaper as ft

PLANNED = np.array([1, 1, 0.5, 0.5, 0.5, 0.1, 0.1])
SEEDS = range(10)
RULES = (
    ft.Average(), ft.Median(), ft.Trimmed(each=1), ft.Trimmed(each=2), ft.Clipped(),
    ft.Clipped(norm=1.0), ft.Clipped(norm=10.0),
)  # fmt: skip


def contributions(rule, updates):
    """Each client's part of D, (rounds, L, d); the parts add up to D."""
    clients = updates.shape[1]
    if isinstance(rule, (ft.Median, ft.Trimmed)):
        cut = clients // 2 if isinstance(rule, ft.Median) else rule.each
        place = updates.argsort(axis=1).argsort(axis=1)
        kept = (place >= cut) & (place < clients - cut)
        return np.where(kept, updates, 0.0) / (clients - 2 * cut)
    if isinstance(rule, ft.Clipped):
        sizes = np.linalg.norm(updates, axis=2)
        limit = np.median(sizes, axis=1, keepdims=True) if rule.norm is None else rule.norm
        return np.minimum(1, limit / sizes)[..., None] * updates / clients
    return updates / clients


def main():
    problem = ft.LinearRegression(num_clients=7, dim=3, samples=200, feature_spread=1.0, seed=1)
    schedules = [ft.Power(0.5 * p, 0.76) for p in PLANNED]
    e = ft.Experiment(problem, schedules, rounds=300, local_steps=3, batch_size=40)
    others = np.where(np.arange(7) == 2, 0.0, PLANNED)
    targets = [problem.equilibrium(p) for p in (PLANNED, np.ones(7), others)]
    print("| server rule | moved the model, relative | to w*(planned) | to w*(equal) | attacked |")
    print("|---|---|---|---|---|")
    for rule in RULES:
        honest = ft.run(replace(e, server=rule), seeds=SEEDS, updates=True, engine="reference")
        parts = [contributions(rule, updates) for updates in honest.updates]
        moved = np.mean([np.abs(part).sum(axis=(0, 2)) for part in parts], axis=0)
        groups = [moved[:2].mean(), moved[2:5].mean(), moved[5:].mean()]
        lying = replace(e, server=rule, behaviours={2: ft.Noise(100.0)})
        attacked = ft.run(lying, seeds=SEEDS, engine="reference").w[:, -1]
        away = [np.linalg.norm(honest.w[:, -1] - target, axis=1) for target in targets[:2]]
        away.append(np.linalg.norm(attacked - targets[2], axis=1))
        shares = " : ".join(f"{value / groups[0]:.2f}" for value in groups)
        print(f"| `{rule}` | {shares} | " + " | ".join(f"{np.median(a):.3g}" for a in away) + " |")


if __name__ == "__main__":
    main()
