"""Free-rider detectors of the literature and the audit by challenges, on the same federations.

    python benchmarks/freeriders.py [--federations 3] [--rounds 100]

Logistic regression on the breast-cancer data, ten unlike and unequal sites, three of them
attackers of one kind. Every detector gives each client a score. Because the papers' thresholds are
tuned to their data, each score is given the threshold at which 5 % of the honest clients of these
very federations are accused: the best a user could do. The audit has its own threshold.

The detectors are written from the papers; what had to be chosen here is marked "ours".

- WEF-Defense (Chen et al. 2022): how often each weight moves by more than the mean. Theirs counts
  local iterations and the sites send the counts; ours counts rounds, from what the server sees.
  Distance, cosine and mean of the counts against the other clients', each standardised, are added.
- S2-WEF (Nakamura 2026): the pattern of a round is also compared with those of the models that the
  server sent before, which copies resemble. Their clustering is replaced by adding the two scores
  (ours).
- DAGMM (Zong et al. 2018; on updates: Lin et al. 2019): an autoencoder, then the energy of a
  Gaussian mixture over code and reconstruction error. Code and mixture are fitted one after the
  other, with the deviation of the update as a further feature as in STD-DAGMM (ours: sizes).
- FoolsGold (Fung et al. 2020): the largest cosine between summed updates, with pardoning.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedtaper import audit
from fedtaper.paper.challenge_federations import PAIRS, _behaviour, federation
from fedtaper.simulation.drive import run

ATTACKS = ("delta 0.9", "delta 1", "fades later", "idle", "noise", "copying")
NAME, FIRST, CLIENTS, ATTACKERS, ALLOWED = "logistic, breast cancer", 50_000, 10, 3, 0.05


def made(kind: str, seed: int, rounds: int) -> tuple[Any, Any]:
    """One federation: which clients attack, and its run with every update."""
    e, _ = federation(NAME, seed)
    chosen = np.random.default_rng(seed).permutation(CLIENTS)[:ATTACKERS]
    behaviour = _behaviour(kind, PAIRS[NAME].c, e.period)
    e = replace(e, rounds=rounds, behaviours=dict.fromkeys(map(int, chosen), behaviour))
    return np.isin(np.arange(CLIENTS), chosen), run(
        e, updates=True, engine="reference", progress=False
    )


def standard(values: Any) -> Any:
    """In deviations from the middle client, robustly."""
    off = values - np.median(values)
    return off / max(1.4826 * float(np.median(np.abs(off))), 1e-9)


def pattern(updates: Any) -> Any:
    """Which weights moved by more than the mean, round by round, (rounds, L, d)."""
    size = np.abs(updates)
    return (size > size.mean(axis=-1, keepdims=True)).astype(float)


def cosines(a: Any, b: Any) -> Any:
    size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(axis=-1) / np.maximum(size, 1e-12)


def wef(r: Any) -> Any:
    """Deviation of a client's matrix of frequencies from the others'."""
    count = pattern(r.updates).sum(axis=0)
    distance = np.linalg.norm(count[:, None] - count[None], axis=-1).mean(axis=1)
    alike = cosines(count[:, None], count[None]).mean(axis=1)
    parts = (distance, -alike, count.mean(axis=1))
    return sum(np.abs(standard(part)) for part in parts)


def s2_wef(r: Any) -> Any:
    """The same, and likeness to the patterns of the models sent before."""
    w = np.concatenate([r.w0[None], r.w])
    simulated = pattern((w[1:] - w[:-1])[:, None])[:-1]  # what round k made, for round k + 1
    alike = cosines(pattern(r.updates)[1:], simulated).mean(axis=0)
    return np.maximum(standard(alike), 0) + wef(r)


def dagmm(r: Any) -> Any:
    """Mean energy of a client's updates in the second half of the rounds."""
    import torch
    from sklearn.mixture import GaussianMixture

    late = r.updates[len(r.updates) // 2 :]
    x = late / np.maximum(np.linalg.norm(late, axis=-1, keepdims=True), 1e-12)
    x = torch.tensor(x.reshape(-1, x.shape[-1]), dtype=torch.float32)
    torch.manual_seed(0)
    width = x.shape[1]
    code = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    back = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, width))
    adam = torch.optim.Adam([*code.parameters(), *back.parameters()], 0.01)
    for _ in range(200):
        adam.zero_grad()
        torch.nn.functional.mse_loss(back(code(x)), x).backward()
        adam.step()
    with torch.no_grad():
        z, again = code(x), back(code(x))
    error = (x - again).norm(dim=1, keepdim=True)
    turned = torch.nn.functional.cosine_similarity(x, again)[:, None]
    size = np.log(np.maximum(np.linalg.norm(late, axis=-1), 1e-12)).reshape(-1, 1)
    features = np.concatenate([z.numpy(), error.numpy(), turned.numpy(), size], axis=1)
    features = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-9)
    mixture = GaussianMixture(2, reg_covar=1e-3, random_state=0).fit(features)
    return -mixture.score_samples(features).reshape(late.shape[:2]).mean(axis=0)


def foolsgold(r: Any) -> Any:
    """The largest cosine with another client's summed updates, pardoned."""
    total = r.updates.sum(axis=0)
    alike = cosines(total[:, None], total[None]) - np.eye(len(total))
    most = alike.max(axis=1)
    pardon = np.where(most[:, None] < most[None], most[:, None] / np.maximum(most, 1e-12), 1.0)
    return (alike * pardon).max(axis=1)


DETECTORS: dict[str, Callable[[Any], Any]] = {
    "WEF-Defense": wef, "S2-WEF": s2_wef, "DAGMM": dagmm, "FoolsGold": foolsgold,
}  # fmt: skip


def main() -> None:
    """Print one table: share of attackers found, by attack and detector."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--federations", type=int, default=3, help="of each attack")
    words.add_argument("--rounds", type=int, default=100)
    chosen = words.parse_args()
    warnings.simplefilter("ignore")
    scores: dict[str, dict[str, list[Any]]] = {n: {k: [] for k in ATTACKS} for n in DETECTORS}
    ours: dict[str, list[Any]] = {k: [] for k in ATTACKS}
    who: dict[str, list[Any]] = {k: [] for k in ATTACKS}
    for number, kind in enumerate(ATTACKS):
        for seed in range(chosen.federations):
            attacker, r = made(kind, FIRST + 100 * number + seed, chosen.rounds)
            who[kind] += list(attacker)
            ours[kind] += [c.accused for c in audit(r).clients]
            for name, detector in DETECTORS.items():
                scores[name][kind] += list(detector(r))
    honest = ~np.concatenate([who[k] for k in ATTACKS])
    print(f"| detector | honest accused | {' | '.join(ATTACKS)} |")
    print("|---" * (len(ATTACKS) + 2) + "|")
    for name, found in scores.items():
        line = np.quantile(np.concatenate([found[k] for k in ATTACKS])[honest], 1 - ALLOWED)
        flags = {k: np.array(found[k]) > line for k in ATTACKS}
        print(row(name, flags, who))
    print(row("audit by challenges", {k: np.array(v) for k, v in ours.items()}, who))
    count = chosen.federations * ATTACKERS
    print(f"\n{count} attackers of each kind, {int(honest.sum())} honest clients.")


def row(name: str, flags: dict[str, Any], who: dict[str, list[Any]]) -> str:
    """A line of the table."""
    attackers = {k: np.array(who[k]) for k in ATTACKS}
    wrong = np.concatenate([flags[k][~attackers[k]] for k in ATTACKS]).mean()
    found = (f"{flags[k][attackers[k]].mean():.0%}" for k in ATTACKS)
    return f"| {name} | {wrong:.1%} | {' | '.join(found)} |"


if __name__ == "__main__":
    main()
