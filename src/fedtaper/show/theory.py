"""Figures of the theory: phase plane, tracking, bound, noise sums, probability one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.results import Run
from fedtaper.show.style import COLOURS, band, below, coinciding, figure, key, log_axis, rounds_axis
from fedtaper.theory.bound import Bound
from fedtaper.theory.noise import NoiseSums
from fedtaper.theory.ode import limit_ode
from fedtaper.theory.probability import ProbabilityOne
from fedtaper.theory.tracking import Tracking

Array = NDArray[np.float64]
_TERM_LABELS = {
    "K": "K: the ODE moves within a round",
    "P": "P: local fields pull apart",
    "Q": "Q: local noise pulls apart",
    "W": r"W: $p_n$ is not $p$",
    "U": "U: aggregated noise",
}


def phase_plane(
    run: Run, path: str | Path, *, coordinates: tuple[int, int] = (0, 1), after: int = 10
) -> None:
    """A run on the field of the ODE with p_n, in two coordinates, and the ODE's solution.

    The field is that of the last round, with the other coordinates at its equilibrium. Both
    curves start after round ``after``, past the first overshoot.
    """
    ode = limit_ode(run.experiment, "finite")
    assert run.w is not None
    if run.w.shape[-1] <= max(coordinates) or len(run.round) <= after:
        raise FedtaperError(
            f"the phase plane shows coordinates {coordinates} from round {after} on: the run has "
            f"{run.w.shape[-1]} coordinates and {len(run.round)} rounds"
        )
    w, t = (run.w[0] if run.many else run.w), run.t
    rest = ode.equilibrium(float(t[-1]))
    solution = ode.solve(w[after - 1], start=float(t[after - 1]), end=float(t[-1]))
    smooth = solution(np.geomspace(t[after - 1], t[-1], 400))
    x, y = coordinates
    seen = np.concatenate([w[after - 1 :], smooth, rest[None]])[:, [x, y]]
    low, high = seen.min(axis=0), seen.max(axis=0)
    pad = 0.12 * np.maximum(high - low, 1e-9)
    grid = [np.linspace(low[j] - pad[j], high[j] + pad[j], 25) for j in range(2)]
    points = np.tile(rest, (25, 25, 1))
    points[..., x], points[..., y] = np.meshgrid(*grid)
    weights = ode.weights(float(t[-1]))
    pull = np.stack([weights @ ode.fields(point) for point in points.reshape(-1, len(rest))])
    pull = pull.reshape(25, 25, -1)
    with figure(path, height=3.0) as axes:
        axis = axes[0, 0]
        axis.grid(False)
        axis.streamplot(
            *grid, pull[..., x], pull[..., y], color="#bbbbbb", linewidth=0.5, arrowsize=0.6,
            density=0.9,
        )  # fmt: skip
        axis.plot(w[after - 1 :, x], w[after - 1 :, y], color=COLOURS[0], linewidth=0.6,
                  label=rf"$\bar w$ from round {after}")  # fmt: skip
        axis.plot(smooth[:, x], smooth[:, y], color=COLOURS[1], label=r"ODE with $p_n$")
        axis.plot(*rest[[x, y]], "*", color="black", markersize=9, label=r"$w^*(p_n)$ at the end")
        axis.set_xlim(grid[0][0], grid[0][-1])
        axis.set_ylim(grid[1][0], grid[1][-1])
        axis.set_xlabel(f"$w_{x + 1}$")
        axis.set_ylabel(f"$w_{y + 1}$")
        key(axes, columns=2)


def tracking(found: dict[str, Tracking], path: str | Path) -> None:
    """Tracking error against the round: the ODE with p_n and with p, and the square root law."""
    with figure(path, columns=len(found) if len(found) > 1 else 1, sharey=True) as axes:
        for axis, (name, one) in zip(axes[0], found.items(), strict=True):
            band(axis, one.round, one.band("limit"), "ODE with $p$", COLOURS[1], "--")
            band(axis, one.round, one.band("finite"), "ODE with $p_n$", COLOURS[0])
            middle = one.band("finite")[1]
            law = middle[-1] * np.sqrt(one.step / one.step[-1])
            axis.plot(one.round, law, ":", color="black", label=r"$\propto \sqrt{a_n}$")
            rounds_axis(axis)
            log_axis(axis)
            axis.set_title(name)
        axes[0, 0].set_ylabel("largest distance in a window")
        key(axes)


def bound_terms(found: Bound, path: str | Path) -> None:
    """The terms of the bound, the bound and the measured distance, medians over the seeds."""
    with figure(path, height=3.2) as axes:
        axis = axes[0, 0]
        for (name, values), colour in zip(found.terms.items(), COLOURS[1:], strict=False):
            middle = np.median(values, axis=0)
            if middle.max() > 1e-12:
                axis.plot(found.round, middle, "--", color=colour, label=_TERM_LABELS[name])
        axis.plot(found.round, np.median(found.total, axis=0), color="black", label="bound",
                  linewidth=1.8)  # fmt: skip
        axis.plot(found.round, np.median(found.measured, axis=0), color=COLOURS[0],
                  label="measured", linewidth=1.8)  # fmt: skip
        rounds_axis(axis)
        log_axis(axis)
        axis.set_ylabel("distance to the ODE with p")
        key(axes, columns=2)


def noise(found: dict[str, NoiseSums], path: str | Path, client: int = 0) -> None:
    """How much a client's noise sum still moves between rounds k and 2k, by schedule."""
    with figure(path, height=2.6) as axes:
        axis = axes[0, 0]
        for (name, one), colour in zip(found.items(), COLOURS, strict=False):
            quantiles = np.quantile(one.doubling[:, :, client], (0.1, 0.5, 0.9), axis=0)
            band(axis, one.doubled, quantiles, name, colour)
        rounds_axis(axis)
        log_axis(axis)
        axis.set_xlabel("round k")
        axis.set_ylabel("movement of $R$, rounds k to 2k")
        key(axes, columns=2)


def probability_presets(
    tapering: dict[str, ProbabilityOne],
    constant: dict[str, ProbabilityOne],
    path: str | Path,
    eps: float,
) -> None:
    """Share of seeds that still exceed eps, for every method: tapering and constant steps."""
    with _two_panels(path, f"{eps:g}") as axes:
        for axis, found in zip(axes, (tapering, constant), strict=True):
            _curves(axis, {name: (one, one.eps.index(eps)) for name, one in found.items()})


def probability_by_eps(
    tapering: ProbabilityOne, constant: ProbabilityOne, path: str | Path
) -> None:
    """Share of seeds that still exceed several eps: tapering and constant steps."""
    with _two_panels(path, r"$\epsilon$") as axes:
        for axis, one in zip(axes, (tapering, constant), strict=True):
            _curves(axis, {rf"$\epsilon$ = {eps:g}": (one, j) for j, eps in enumerate(one.eps)})


@contextmanager
def _two_panels(path: str | Path, eps: str) -> Iterator[Any]:
    with figure(path, columns=2, height=3.0, sharey=True) as axes:
        yield axes[0]
        for axis, title in zip(axes[0], ("tapering steps", "constant steps"), strict=True):
            rounds_axis(axis)
            axis.set_title(title)
            below(axis, columns=2)
        axes[0, 0].set_ylim(-0.03, 1.03)
        axes[0, 0].set_ylabel(f"share of seeds that exceed {eps} later")


def _curves(axis: Any, found: dict[str, tuple[ProbabilityOne, int]]) -> None:
    """Shares with their intervals, up to nine tenths of the run: "later" ends with the run.

    Curves that coincide as far as they are shown share one line.
    """
    shown = {name: one.round <= 0.9 * one.round[-1] for name, (one, _) in found.items()}
    shares = {name: one.share[j, shown[name]] for name, (one, j) in found.items()}
    place = {name: number for number, name in enumerate(found)}
    for name, label in coinciding(shares).items():
        one, j = found[name]
        colour, seen = COLOURS[place[name]], shown[name]
        axis.plot(one.round[seen], shares[name], color=colour, label=label)
        limits = one.low[j, seen], one.high[j, seen]
        axis.fill_between(one.round[seen], *limits, color=colour, alpha=0.15, lw=0)
