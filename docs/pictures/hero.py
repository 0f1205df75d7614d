"""Draws hero.png, the picture at the top of the README: python docs/pictures/hero.py."""

from pathlib import Path

import numpy as np

import fedtaper as ft
from fedtaper.show import style

HERE = Path(__file__).parent
SITES = ("north", "east", "south")
GREY = "#555555"


def main() -> None:
    """Where influence takes the model, and what a constant and a tapering step do."""
    with style.figure(HERE / "hero.png", columns=2, height=3.1) as axes:
        where(axes[0, 0])
        settle(axes[0, 1])


def where(axis) -> None:
    """Three sites, four choices of influence, one path each."""
    problem = ft.LinearRegression(
        num_clients=3,
        dim=2,
        samples=2000,
        feature_spread=1.0,
        sigma_w=4.0,
        init_spread=3.0,
        seed=41,
    )
    optima = np.stack([problem.equilibrium(row) for row in np.eye(3)])
    centre = optima.mean(axis=0)
    for i, site in enumerate(SITES):
        axis.plot(*optima[i], "o", color=style.COLOURS[i], markersize=11)
        side = 1 if optima[i, 0] >= centre[0] else -1
        axis.annotate(
            f"{site}'s own\noptimum", optima[i], (11 * side, 0), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", color=style.COLOURS[i],
        )  # fmt: skip
    choices = {"all count the same": (np.ones(3), GREY)}
    for i, site in enumerate(SITES):
        counts = np.where(np.arange(3) == i, 1.0, 0.1)
        choices[f"{site} counts 10 times as much"] = (counts, style.COLOURS[i])
    for label, (p, colour) in choices.items():
        schedules = [ft.Power(0.3 * float(v), 0.76, offset=20) for v in p]
        e = ft.Experiment(problem, schedules, rounds=3000, local_steps=5, batch_size=20)
        run = ft.run(e)
        assert run.w is not None
        path = np.concatenate([run.w0[None], run.w])
        axis.plot(*path.T, color=colour, linewidth=1.0, label=label)
        axis.plot(*path[-1], "*", color=colour, markersize=10, markeredgecolor="white", zorder=5)
    axis.plot(*path[0], "s", color="black", markersize=4)
    axis.annotate("start", path[0], (-6, -2), textcoords="offset points", ha="right")
    axis.set(title="Influence decides where the shared model goes", xlabel="$w_1$", ylabel="$w_2$")
    axis.margins(0.4, 0.15)
    axis.grid(False)
    style.below(axis, columns=1)


def settle(axis) -> None:
    """Distance to the optimum: constant against tapering steps, twenty seeds."""
    problem = ft.LinearRegression(num_clients=10, seed=0)
    steps = {
        "constant step 0.05: keeps oscillating": (ft.Constant(0.05), style.COLOURS[4]),
        "tapering step 0.05 / $n^{0.76}$: settles": (ft.Power(0.05, 0.76), style.COLOURS[5]),
    }
    rounds = np.unique(np.geomspace(1, 5000, 300).astype(int))
    for label, (schedule, colour) in steps.items():
        e = ft.Experiment(problem, schedule, rounds=5000, local_steps=5)
        error = ft.run(e, seeds=range(20)).metrics["error"]
        quantiles = np.quantile(error[:, rounds - 1], (0.1, 0.5, 0.9), axis=0)
        style.band(axis, rounds, quantiles, label, colour, width=1.4)
    style.log_axis(axis)
    style.rounds_axis(axis)
    axis.set(title="A tapering step settles, a constant one does not")
    axis.set_ylabel("distance to the optimum")
    style.below(axis, columns=1)


if __name__ == "__main__":
    main()
