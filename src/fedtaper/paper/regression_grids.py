"""Judges of R5 to R8: heterogeneous features, parameters and noise, with several periods."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtaper.paper import regression_figures as figures
from fedtaper.paper.claim import Outcome, Study
from fedtaper.paper.ensemble import Ensemble
from fedtaper.paper.regression_cases import NEAR, PERIODS, SETTLED, SIGMAS, SNRS, outcome, run_grid
from fedtaper.paper.statistics import above, below, nearly_all

Array = NDArray[np.float64]


def judge_r5(study: Study) -> Outcome:
    """Feature spreads."""
    cells = run_grid(study, "spread")
    same = {n: cells[0.0, n] for n in PERIODS}
    mixed = {n: cells[1.0, n] for n in PERIODS}
    checks = (
        *(
            above(
                f"rounds to arrive, mixed / equal, N = {n}", mixed[n].arrival / same[n].arrival, 1
            )
            for n in PERIODS
        ),
        *(
            above(f"late wobble, mixed / equal, N = {n}", mixed[n].wobble / same[n].wobble, 1)
            for n in PERIODS
        ),
        *(
            nearly_all(f"final error below {NEAR}, N = {n}", mixed[n].final_error < NEAR)
            for n in PERIODS
        ),
        *(below(f"late / middle error, N = {n}", mixed[n].settling, SETTLED) for n in PERIODS),
    )
    peak = max(float(np.max(mixed[n].curves["error"][1])) for n in PERIODS)
    summary = (
        f"Slower: it stays within {NEAR} from round {np.median(mixed[5].arrival):.0f} on, against "
        f"{np.median(same[5].arrival):.0f}, after a climb to {peak:.0e}; the late wobble is "
        f"{checks[4].value:.1f} times as large, and the error still falls to "
        f"{np.median(mixed[5].final_error):.4f}."
    )
    return outcome(study, checks, summary, "the paper's own setting", figures.spreads(study, cells))


def judge_level(study: Study, kind: str) -> Outcome:
    """R6 and R7: the error (R6) or the wobble (R7) grows along the levels; it still converges."""
    cells = run_grid(study, kind)
    levels = SIGMAS if kind == "sigma_w" else SNRS
    measure = "late error" if kind == "sigma_w" else "late wobble"

    def number(cell: Ensemble) -> Array:
        return cell.late_error if kind == "sigma_w" else cell.wobble

    unit = "sigma_w {:g}" if kind == "sigma_w" else "{:g} dB"
    rising = tuple(
        above(
            f"{measure}, {unit.format(b)} / {unit.format(a)}, N = {n}",
            number(cells[b, n]) / number(cells[a, n]),
            1,
        )
        for n in PERIODS
        for a, b in pairwise(levels)
    )
    worst = levels[-1]
    end = f"late / middle error, {unit.format(worst)}, N = "
    still = tuple(below(f"{end}{n}", cells[worst, n].settling, SETTLED) for n in PERIODS)
    ends = [float(np.median(number(cells[level, 5]))) for level in (levels[0], worst)]
    summary = (
        f"At N = 5 the {measure} goes from {ends[0]:.2g} ({unit.format(levels[0])}) to "
        f"{ends[1]:.2g} ({unit.format(worst)}), and there the error of the last 500 rounds is "
        f"still {still[1].value:.2f} of that of rounds 501-1000."
    )
    names = figures.levels(study, kind, cells, levels)
    return outcome(study, rising + still, summary, "the paper's own setting", names)


def judge_r8(study: Study) -> Outcome:
    """N against oscillation, in all three grids."""
    cells = {kind: run_grid(study, kind) for kind in ("spread", "sigma_w", "snr")}
    checks = []
    for kind, found in cells.items():
        for level in sorted({level for level, _ in found}):
            ratio = found[level, 10].wobble / found[level, 2].wobble
            checks.append(below(f"late wobble, N = 10 / N = 2, {kind} {level:g}", ratio, 1))
    middle = float(np.median([check.value for check in checks]))
    summary = (
        f"With N = 10 the late wobble is {middle:.2f} of that with N = 2 (median of "
        f"{len(checks)} settings): at the same round the clock is further on and steps are smaller."
    )
    name = figures.periods(study, cells)
    return outcome(study, tuple(checks), summary, "the paper's own setting", (name,))
