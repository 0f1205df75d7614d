"""The paper's regression settings: its three cases of step sizes, and its grids.

What counts as near and as settled is the same for all claims about regression.
"""

from __future__ import annotations

from fedtaper.core.schedules import Power, Schedule
from fedtaper.paper.claim import Check, Outcome, Study, outcome_of
from fedtaper.paper.ensemble import (
    LOCAL_STEPS,
    PAPER_STEP,
    PROBLEMS,
    ROUNDS,
    Ensemble,
    Setting,
    ensemble,
)

NEAR = 0.05  # distance to the optimum that counts as there, equal steps
SETTLED = 0.8  # late error over the error of rounds 501-1000; theory says about 0.5
HORIZON = ROUNDS * LOCAL_STEPS
SAME_W = (("true_w", (1.001, 0.998, 0.997)),)
SPREADS = (5.0, 10.0, 15.0, 20.0, 25.0)
SIGMAS = (5.0, 10.0, 15.0, 20.0, 25.0)
SNRS = (25.0, 20.0, 15.0, 10.0, 5.0)
PERIODS = (2, 5, 10)
DELTAS = (0.76, 0.825, 0.9, 0.975, 1.0)
BASELINES = ("fedavg", "fedprox", "fednova")
LITERAL, STABLE = 0.1, (0.07, 0.05, 0.01)


def case_2(c: float = 1.0) -> tuple[Schedule, ...]:
    """Clients 0 and 1 taper slowly, the other eight as c / n (the paper: c = 1)."""
    return (PAPER_STEP, Power(0.05, 0.76), *[Power(c, 1.0)] * 8)


def case_3(c: float = 0.1) -> tuple[Schedule, ...]:
    """Client 0 tapers slowly, the other nine as c / n (the paper: c = 0.1)."""
    return (PAPER_STEP, *[Power(c, 1.0)] * 9)


def grid(kind: str) -> dict[tuple[float, int], Setting]:
    """Settings of one heterogeneity grid, by (level, N)."""
    if kind == "spread":  # level 0: all spreads 5; level 1: drawn from the five
        return {
            (float(mixed), n): Setting(
                local_steps=n, problem=SAME_W, spreads=SPREADS if mixed else ()
            )
            for mixed in (False, True)
            for n in PERIODS
        }
    levels = SIGMAS if kind == "sigma_w" else SNRS
    fixed = () if kind == "sigma_w" else SAME_W
    name = "sigma_w" if kind == "sigma_w" else "snr_db"
    default = {"sigma_w": 5.0, "snr_db": 10.0}[name]  # left out: the cell is shared with others
    return {
        (level, n): Setting(
            local_steps=n, problem=fixed if level == default else (*fixed, (name, level))
        )
        for level in levels
        for n in PERIODS
    }


def run_grid(study: Study, kind: str) -> dict[tuple[float, int], Ensemble]:
    """Every cell of a grid."""
    return {key: ensemble(study, setting) for key, setting in grid(kind).items()}


def outcome(
    study: Study, checks: tuple[Check, ...], summary: str, nearest: str, names: tuple[str, ...]
) -> Outcome:
    """Reproduced when every check passed."""
    return outcome_of(checks, summary, (nearest, nearest), names, settings(study))


def settings(study: Study) -> dict[str, int]:
    """What all regression claims share."""
    return {"problems": PROBLEMS, "seeds": study.seeds, "rounds": ROUNDS, "horizon_n": HORIZON}
