"""What an audit of updates says when they are late: false accusations and detections.

    python benchmarks/audit_delays.py [--federations 30] [--json FILE]

Federations of the A1 study (ten clients of the paper's size, up to three attackers, honest
oddities among the rest), seeds from 7,000,000 on, which chose nothing, audited from updates
after 100 rounds. Every client's updates are tau rounds late, always or at random (geometric with
mean tau, at most 50). All scales c are a twentieth of the study's, in step too, so that no run
diverges; with a delay of 20 rounds the model still swings out at first.

"As it is" compares an update with the model and step sizes of the round in which it arrives.
"Told when" is given those of the round in which it was made; it is possible where all clients
are equally late, since the fit knows one model per round.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fedtaper as ft
from fedtaper.auditing import trace_of
from fedtaper.auditing.judge import Trace, judge
from fedtaper.paper.federations import ATTACKERS, SWITCH, federation
from fedtaper.rules.behaviours import Behaviour

FIRST, MOST, SMALLER = 7_000_000, 50, 20.0
C, LATE_C = 0.1 / SMALLER, 0.1 * (SWITCH * 5) ** 0.24 / SMALLER
BEHAVIOURS: dict[str, Behaviour] = ATTACKERS | {
    "delta 0.9": ft.OtherSchedule(ft.Power(C, 0.9)),
    "delta 1": ft.OtherSchedule(ft.Power(C, 1.0)),
    "smaller c": ft.OtherSchedule(ft.Power(0.3 * C, 0.76)),
    "fades later": ft.After(SWITCH, ft.OtherSchedule(ft.Power(LATE_C, 1.0))),
}
FADING = ("delta 0.9", "delta 1", "fades later")
OTHERS = ("idle", "noise", "copying")
ACCUSED = ("fading", "rising", "idle", "noise", "copying")
CASES: dict[str, int | ft.RandomDelay | None] = {
    "in step": None,
    "always 5": 5,
    "always 20": 20,
    "5 on average": ft.RandomDelay(5.0, most=MOST),
    "20 on average": ft.RandomDelay(20.0, most=MOST),
}


def told(trace: Trace, late: int) -> Trace:
    """Each update beside the model and the step sizes that it was made with."""
    assert trace.updates is not None and trace.w is not None
    made = slice(None, trace.norms.shape[1] - late)
    return replace(
        trace,
        norms=trace.norms[:, late:],
        updates=trace.updates[:, late:],
        w=trace.w[made],
        declared=trace.declared.pick(slice(None), made),
    )


def study(count: int) -> dict[str, Counter[str]]:
    """Verdicts by case: counted as "kind: verdict"."""
    found: dict[str, Counter[str]] = {}
    for seed in range(FIRST, FIRST + count):
        plain, kinds = federation(seed)
        behaviours = {i: BEHAVIOURS[k] for i, k in enumerate(kinds) if k in BEHAVIOURS}
        for name, delay in CASES.items():
            e = replace(plain, schedules=ft.Power(C, 0.76), delays=delay, behaviours=behaviours)
            trace = trace_of(ft.run(e, updates=True, progress=False))
            views = {f"{name}, as it is": trace}
            if isinstance(delay, int):
                views[f"{name}, told when"] = told(trace, delay)
            for view, seen in views.items():
                pairs = zip(kinds, judge(seen).verdicts, strict=True)
                found.setdefault(view, Counter()).update(f"{k}: {v}" for k, v in pairs)
    return found


def share(counts: Counter[str], kinds: tuple[str, ...], verdicts: tuple[str, ...]) -> str:
    """How many of these kinds have one of these verdicts, of how many."""
    of = {key: v for key, v in counts.items() if key.split(": ")[0] in kinds}
    hit = sum(v for key, v in of.items() if key.split(": ")[1] in verdicts)
    return f"{hit} of {sum(of.values())}"


def main() -> None:
    """Print the table; keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=30)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = study(asked.federations)
    seen = {key.split(": ")[0] for counts in found.values() for key in counts}
    honest = tuple(sorted(seen - set(BEHAVIOURS)))
    print("| delay | honest accused | honest called fading | as declared | fading found |"
          " idle, noise, copies found |\n|---|---|---|---|---|---|")  # fmt: skip
    for view, counts in found.items():
        cells = (
            share(counts, honest, ACCUSED),
            share(counts, honest, ("fading",)),
            share(counts, honest, ("as declared",)),
            share(counts, FADING, ("fading",)),
            share(counts, OTHERS, ACCUSED),
        )
        print(f"| {view} | " + " | ".join(cells) + " |")
    if asked.json:
        kept = {view: dict(sorted(counts.items())) for view, counts in found.items()}
        asked.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
