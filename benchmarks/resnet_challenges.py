"""Challenges of a ResNet-9 with large steps: who is accused, with answers of several updates and of
one?

    python benchmarks/resnet_challenges.py --data DIR [--seeds 4] [--first 7007000] [--several]

The federations of claim A3 on BloodMNIST (ten sites, unlike and of unequal size, c = 0.1). Two
rounds are trained in float32 on the CPU; after that only the challenges are answered, which need no
more than the model of round 2. So a federation takes ten minutes of a core and no GPU; --several,
challenges of a quarter of a round too, three times as long. Sites that are idle, send noise or copy
need the other rounds: they are left out.
"""

import argparse
import os
import time
import warnings
from dataclasses import replace

import numpy as np

from fedtaper import engines
from fedtaper.auditing.challenges import examine
from fedtaper.auditing.traces import _asked
from fedtaper.engines.cpu import CpuSession
from fedtaper.paper.challenge_federations import LARGE, ONE, TRUE, federation
from fedtaper.rules.challenges import Challenges
from fedtaper.simulation.challenger import Challenger

PLANS = {"one update, every round": ONE}
SEVERAL = {"a quarter of a round, every 3": Challenges(every=3, share=0.25)}
LEFT_OUT = ("idle", "noise", "copying")


def answered(seed, chosen):
    """What every client answers under each plan, and the clients' kinds."""
    (name,) = LARGE
    e, kinds = federation(name, seed)
    kept = {i: b for i, b in e.behaviours if kinds[i] not in LEFT_OUT}
    e = replace(e, behaviours=kept)
    plans = {plan: replace(e, challenges=how) for plan, how in chosen.items()}
    state = engines.init(e, np.array([seed]))
    session = CpuSession(e, state)
    asking = {plan: Challenger(one, state) for plan, one in plans.items()}
    try:
        for now in range(e.rounds):
            for challenger in asking.values():
                challenger.before_round(session)
            if now < 2:
                session.advance(1)
                session.sync()
            else:
                state.round += 1  # nothing is trained any more
    finally:
        session.close()
    found = {}
    for plan, challenger in asking.items():
        answers = challenger.answers(many=False)
        assert answers is not None
        found[plan] = _asked(plans[plan], answers)
    return found, kinds


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--data", required=True)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--first", type=int, default=7_007_000)
    options.add_argument("--several", action="store_true")
    options = options.parse_args()
    os.environ["FEDTAPER_DATA"] = options.data
    warnings.simplefilter("ignore")
    chosen = PLANS | SEVERAL if options.several else PLANS
    rows = {(plan, audit): [] for plan in chosen for audit in ("products alone", "lengths too")}
    for seed in range(options.first, options.first + options.seeds):
        began = time.perf_counter()
        found, kinds = answered(seed, chosen)
        for plan, asked in found.items():
            for audit in ("products alone", "lengths too"):
                used = asked if audit == "lengths too" else replace(asked, length=None)
                said = examine(used)
                for i, kind in enumerate(kinds):
                    if kind not in LEFT_OUT:
                        ends = said.excess[i], said.error[i]
                        rows[plan, audit].append((kind, int(said.found[i]), *ends))
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        for (plan, audit), all_rows in rows.items():
            print(f"  {plan}, {audit}: {told(all_rows)}", flush=True)


def told(rows):
    """Found of each kind, and how many honest clients have an estimate near the truth."""
    words = []
    for kind in ("honest", "delta 0.9", "delta 1", "fades later"):
        mine = [row for row in rows if row[0] == kind]
        words.append(f"{kind} {sum(row[1] > 0 for row in mine)} of {len(mine)} accused")
    known = [row for row in rows if row[0] in TRUE and np.isfinite(row[2])]
    near = sum(abs(row[2] - TRUE[row[0]]) < 2 * row[3] for row in known)
    return ", ".join(words) + f"; {near} of {len(known)} estimates within two errors"


if __name__ == "__main__":
    main()
