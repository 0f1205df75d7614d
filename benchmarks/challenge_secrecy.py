"""Who recognises a challenge? Sites that keep hashes, and sites that keep whole models.

    python benchmarks/challenge_secrecy.py [--seeds 3]

An MLP on the wine data, five sites, 100 rounds. For several ways to make the challenge from the
model of the base round: the share of challenges that a site tells from a round by

- a hash of every model it was sent,
- the distance to the nearest model that it kept (closer than a tenth of the last step),
- the distance from the latest model (farther than three of the last steps),

beside the share of ordinary rounds that the same rule takes for challenges; and whether the audit
finds a site that fades and answers the challenges that it recognises as declared.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

import fedtaper as ft
from fedtaper.paper.challenge_federations import PAIRS, federation

NAME, FIRST, CLOSE, FAR = "MLP, wine", 60_000, 0.1, 3.0
WAYS = {
    "the base model itself (jitter 0)": {"jitter": 0.0},
    "moved a little (jitter 0.02, the default)": {"jitter": 0.02},
    "interpolated (jitter 0.5)": {"jitter": 0.5},
    "interpolated (jitter 1)": {"jitter": 1.0},
    "a later base (round 20, jitter 0.5)": {"jitter": 0.5, "base": 20},
}


def recognised(r: Any, plan: Any) -> tuple[dict[str, float], float, float]:
    """Shares of challenges by each rule; shares of plain rounds by the two distances."""
    w = np.concatenate([r.w0[None], r.w])  # w[k] is what round k (from 0) starts from
    base, after = w[plan.base - 1], w[plan.base]
    hits: dict[str, list[bool]] = {"hash": [], "near": [], "far": []}
    near, far = [], []
    for k in range(plan.base + 1, len(r.round)):
        kept, step = w[: k + 1], float(np.linalg.norm(w[k] - w[k - 1]))
        gaps = np.linalg.norm(w[k] - w[:k], axis=1)
        near.append(bool(gaps.min() < CLOSE * step))
        far.append(bool(gaps[-1] > FAR * np.linalg.norm(w[k - 1] - w[k - 2])))
        if k + 1 in plan.rounds(len(r.round)):
            model = plan.model(base, after, int(r.seeds[0]), k)
            away = np.linalg.norm(kept - model, axis=1)
            hits["hash"].append(bool(away.min() == 0))
            hits["near"].append(bool(away.min() < CLOSE * step))
            hits["far"].append(bool(away[-1] > FAR * step))
    return (
        {n: float(np.mean(v)) for n, v in hits.items()},
        float(np.mean(near)),
        float(np.mean(far)),
    )


def main() -> None:
    """Print one table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--seeds", type=int, default=3)
    seeds = range(FIRST, FIRST + words.parse_args().seeds)
    warnings.simplefilter("ignore")
    fast = ft.Power(PAIRS[NAME].c, 1.0)
    print(
        "| challenge | by hash | by nearest kept | by distance from the latest | rounds taken for "
        "challenges | found: plain fading | found: keeps hashes | found: knows all |"
    )
    print("|---" * 8 + "|")
    for words_, how in WAYS.items():
        plan, seen, wrong, found = ft.Challenges(**how), [], [], {0: [], 1: [], 2: []}
        for seed in seeds:
            e, _ = federation(NAME, seed)
            cheats = {
                0: ft.OtherSchedule(fast),
                1: ft.Recognises(fast),
                2: ft.Recognises(fast, near=True),
            }
            e = replace(e, challenges=plan, behaviours=cheats)
            r = ft.run(e, progress=False)
            hits, near, far = recognised(r, plan)
            seen.append([hits["hash"], hits["near"], hits["far"]])
            wrong.append([near, far])
            for i, verdicts in found.items():
                verdicts.append(ft.audit(r).clients[i].verdict == "fading")
        a, b, c = np.mean(seen, axis=0)
        n, f = np.mean(wrong, axis=0)
        shares = " | ".join(f"{np.mean(v):.0%}" for v in found.values())
        print(f"| {words_} | {a:.0%} | {b:.0%} | {c:.0%} | {n:.0%}, {f:.0%} | {shares} |")


if __name__ == "__main__":
    main()
