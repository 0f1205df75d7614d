"""Figures of claims A1 and A3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.show.style import COLOURS, figure, key

WAYS = (
    ("from updates", "updates", False),
    ("from sizes", "norms", False),
    ("plain log-log slope", "norms", True),
)
SHOWN = ("delta 0.9", "delta 1", "fades later", "idle", "noise", "copying")
# One colour per kind, the same in every figure.
KINDS = {kind: COLOURS[number] for number, kind in enumerate(SHOWN)} | {"honest": COLOURS[6]}
HONEST = ("honest", "little data", "easy data", "noisy data", "missed rounds", "gradient vanishes")


def detection(table: Any, path: Path) -> None:
    """Share accused over the round, by attacker, from updates and from sizes alone."""
    rounds = np.unique(table["round"])
    with figure(path, columns=2, sharey=True, height=2.9) as axes:
        for axis, witness in zip(axes[0], ("updates", "norms"), strict=True):
            for kind in SHOWN:
                share = [table.share_accused([kind], k, witness) for k in rounds]
                style = "--" if kind == "copying" else "-"  # lies on the line of noise
                axis.plot(rounds, share, style, marker="o", markersize=2.5, label=kind,
                          color=KINDS[kind])  # fmt: skip
            honest = [table.share_accused(HONEST, k, witness) for k in rounds]
            axis.plot(rounds, honest, color=KINDS["honest"], marker="s", markersize=2.5,
                      linewidth=1.6, label="honest (false accusations)")  # fmt: skip
            axis.set_title(f"from {'updates' if witness == 'updates' else 'sizes alone'}")
            axis.set_xlabel("round")
            axis.set_ylim(-0.02, 1.03)
        axes[0, 0].set_ylabel("share of clients accused")
        key(axes, columns=4)


def calibration(table: Any, path: Path) -> None:
    """Stated against actual coverage of the intervals for delta, after 100 rounds."""
    from scipy.special import ndtri

    levels = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
    last = int(table["round"].max())
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        axis.plot([0, 1], [0, 1], ":", color="#888888", label="as stated")
        for number, (label, witness, plain) in enumerate(WAYS):
            scores = np.abs(table.scores(last, witness, plain))
            actual = [(scores < ndtri(0.5 + level / 2)).mean() for level in levels]
            axis.plot(levels, actual, marker="o", markersize=3, color=COLOURS[number], label=label)
        axis.set_xlabel("stated coverage")
        axis.set_ylabel("actual coverage")
        axis.set_xlim(0.45, 1.01)
        axis.set_ylim(0, 1.02)
        key(axes, columns=2)


def heterogeneity(tables: dict[str, Any], path: Path) -> None:
    """Detection of the two faster tapers, and false accusations, by heterogeneity."""
    rounds = np.unique(next(iter(tables.values()))["round"])
    with figure(path, columns=2, sharey=True, height=2.9) as axes:
        for axis, kind in zip(axes[0], ("delta 0.9", "delta 1"), strict=True):
            for number, (name, table) in enumerate(tables.items()):
                for witness, style in (("updates", "-"), ("norms", "--")):
                    share = [_mean(table.accused([kind], k, witness)) for k in rounds]
                    label = name if style == "-" else None
                    width = 3.4 - 0.8 * number  # where lines coincide, the wider ones show
                    axis.plot(
                        rounds, share, style, color=COLOURS[number], label=label, linewidth=width
                    )
            axis.set_title(f"{kind} found (updates solid, sizes dashed)")
            axis.set_xlabel("round")
            axis.set_ylim(-0.02, 1.03)
        axes[0, 0].set_ylabel("share of clients accused")
        key(axes, columns=4)


def _mean(flags: Any) -> float:
    return float(flags.mean()) if len(flags) else float("nan")


def estimates(rows: list[dict[str, Any]], path: Path) -> None:
    """A3: estimated excess taper of every client, by kind and pair of model and data."""
    pairs = list(dict.fromkeys(sorted(row["pair"] for row in rows)))
    kinds = {"honest": 0.0, "delta 0.9": 0.14, "delta 1": 0.24}
    rng = np.random.default_rng(0)  # only spreads the dots
    with figure(path, height=0.55 * len(pairs) + 1.2) as axes:
        axis = axes[0, 0]
        for number, (kind, true) in enumerate(kinds.items()):
            mine = [row for row in rows if row["kind"] == kind and np.isfinite(row["excess"][0])]
            place = [pairs.index(row["pair"]) + 0.27 * (number - 1) for row in mine]
            axis.axvline(true, color=KINDS[kind], linestyle="--", linewidth=0.8)
            axis.plot(
                [row["excess"][0] for row in mine], place + 0.08 * rng.uniform(-1, 1, len(place)),
                ".", markersize=2.5, alpha=0.6, color=KINDS[kind], label=kind,
            )  # fmt: skip
        axis.set_yticks(range(len(pairs)), pairs)
        axis.invert_yaxis()
        axis.set_xlim(-0.2, 0.45)
        axis.set_xlabel("estimated excess taper")
        key(axes, columns=3)


def found_when(rows: list[dict[str, Any]], path: Path) -> None:
    """A3: share of clients accused by each round, by kind."""
    rounds = np.arange(1, 101)
    with figure(path, height=2.8) as axes:
        axis = axes[0, 0]
        for kind in SHOWN:
            first = np.array([row["accused"] for row in rows if row["kind"] == kind])
            share = [_mean((first > 0) & (first <= k)) for k in rounds]
            axis.step(rounds, share, where="post", color=KINDS[kind], label=kind)
        first = np.array([row["accused"] for row in rows if row["kind"] == "honest"])
        share = [_mean((first > 0) & (first <= k)) for k in rounds]
        axis.step(rounds, share, where="post", color=KINDS["honest"], linewidth=1.6,
                  label="honest")  # fmt: skip
        axis.set_ylim(-0.02, 1.03)
        axis.set_xlabel("round")
        axis.set_ylabel("share of clients accused")
        key(axes, columns=3)
