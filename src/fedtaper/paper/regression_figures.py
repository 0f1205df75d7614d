"""Counterparts of the paper's regression figures, with bands over seeds (10 to 90 %)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.protocols import as_quadratic
from fedtaper.core.schedules import Constant, Schedule
from fedtaper.experiment import Experiment
from fedtaper.paper.claim import Study
from fedtaper.paper.ensemble import (
    PAPER_STEP,
    QUANTILES,
    ROUNDS,
    Ensemble,
    Setting,
    log_rounds,
    quiet_run,
)
from fedtaper.show.style import (
    COLOURS,
    band,
    below,
    coinciding,
    figure,
    key,
    log_axis,
    parameters,
    rounds_axis,
    shade,
    smoothed,
)

Cells = dict[tuple[float, int], Ensemble]
PERIODS = (2, 5, 10)
ERROR, GRADIENT = "distance to w*(p_n)", "aggregated gradient norm"
NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fednova": "FedNova"}


def case(study: Study, setting: Setting, name: str, title: str) -> str:
    """Parameters against w*, and gradient norms (the paper's figures of cases 1, 2 and 3)."""
    e = setting.experiment(0)
    made = quiet_run(e, range(max(20, study.seeds // 4)))
    assert made.w is not None and made.w0 is not None
    k = log_rounds(ROUNDS)
    w = np.quantile(made.w[:, k - 1], QUANTILES, axis=0)
    own = np.linalg.norm(as_quadratic(e.problem).mean_field(made.w[:, k - 1]), axis=-1)
    limit, now = e.limit_influence, e.effective_influence(ROUNDS - 1, ROUNDS)[0]
    differs = bool(np.max(np.abs(limit - now)) > 1e-3)
    with figure(study.figure(name), rows=2, height=2.6) as axes:
        top, bottom = axes[:, 0]
        low, high = _window(e, w, now, limit)
        start = np.quantile(made.w0, QUANTILES, axis=0)[:, None]
        parameters(top, np.append(0.5, k), np.concatenate([start, w], axis=1), (low, high))
        for j in range(e.problem.dim):
            top.axhline(
                as_quadratic(e.problem).equilibrium(now)[j], color=COLOURS[j], ls=":", lw=0.9
            )
            if differs:
                top.axhline(
                    as_quadratic(e.problem).equilibrium(limit)[j], color=COLOURS[j], ls="--", lw=0.9
                )
        lines = "dotted: w*(p_n)" + (", dashed: w*(p)" if differs else " = w*(p)")
        top.set(ylabel="shared model", title=f"{title}\n{lines}", ylim=(low, high))
        rounds_axis(top)
        top.set_xticks([0.5, 1, 10, 100, 1000], ["start", "1", "10", "100", "1000"])
        below(top)
        for i in range(1, e.num_clients):
            label = "each other client" if i == 1 else ""
            bottom.plot(k, np.median(own[:, :, i], axis=0), color="#999999", lw=0.7, label=label)
        bottom.plot(k, np.median(own[:, :, 0], axis=0), color=COLOURS[1], label="client 0")
        gradient = np.quantile(made.metrics["gradient_norm"][:, k - 1], QUANTILES, axis=0)
        band(bottom, k, gradient, "weighted by influence", COLOURS[0])
        bottom.set_ylabel("gradient norm")
        log_axis(bottom)
        bottom.set_ylim(gradient.min() / 2, 20 * np.median(own[:, -1]))
        rounds_axis(bottom)
        below(bottom)
    return name


def _window(e: Experiment, w: Any, now: Any, limit: Any) -> tuple[float, float]:
    """Room for the optima and for the trajectory after its first climb."""
    seen = np.concatenate(
        [w[:, w.shape[1] // 3 :].ravel(), *as_quadratic(e.problem).equilibrium([now, limit])]
    )
    low, high = float(seen.min()), float(seen.max())
    room = 0.3 * (high - low) + 0.1
    return low - room, high + 2 * room


def deltas(study: Study, found: dict[float, Ensemble]) -> str:
    """The sweep of delta: error and gradient norm."""
    name = "r4-delta-sweep.png"
    with figure(study.figure(name), rows=2, height=2.4) as axes:
        for axis, metric, label in zip(
            axes[:, 0], ("error", "gradient_norm"), (ERROR, GRADIENT), strict=True
        ):
            for number, (delta, cell) in enumerate(found.items()):
                colour = shade(number, len(found))
                band(axis, cell.k, cell.curves[metric], f"{delta:g}", colour)
            axis.set_ylabel(label)
            log_axis(axis)
            rounds_axis(axis)
        key(axes, columns=5, title="delta")
    return name


def _grid(study: Study, name: str, metric: str, label: str, cells: Cells, text: Any) -> str:
    """Three panels, one for each N, a line for each level."""
    levels = list(dict.fromkeys(level for level, _ in cells))
    with figure(study.figure(name), columns=3, height=2.6, sharey=True) as axes:
        for axis, period in zip(axes[0], PERIODS, strict=True):
            for number, level in enumerate(levels):
                cell = cells[level, period]
                band(axis, cell.k, cell.curves[metric], text(level), shade(number, len(levels)))
            axis.set_title(f"N = {period}")
            log_axis(axis)
            rounds_axis(axis)
        axes[0, 0].set_ylabel(label)
        key(axes, columns=5)
    return name


def spreads(study: Study, cells: Cells) -> tuple[str, ...]:
    """Feature heterogeneity: error, gradient norm, parameters."""

    def text(level: float) -> str:
        return "drawn from 5 to 25" if level else "all 5"

    setting = {n: Setting(local_steps=n, problem=_SAME_W, spreads=_SPREADS) for n in PERIODS}
    return (
        _grid(study, "r5-spread-error.png", "error", ERROR, cells, text),
        _grid(study, "r5-spread-gradient.png", "gradient_norm", GRADIENT, cells, text),
        _trajectories(study, "r5-spread-parameters.png", setting),
    )


_SPREADS = (5.0, 10.0, 15.0, 20.0, 25.0)
_SAME_W = (("true_w", (1.001, 0.998, 0.997)),)


def _trajectories(study: Study, name: str, settings: dict[int, Setting]) -> str:
    """Parameters after the climb, one panel for each N."""
    k = log_rounds(ROUNDS)
    with figure(study.figure(name), columns=3, height=2.5, sharey=True) as axes:
        for axis, (period, setting) in zip(axes[0], settings.items(), strict=True):
            e = setting.experiment(0)
            made = quiet_run(e, range(max(10, study.seeds // 5)))
            assert made.w is not None
            w = np.quantile(made.w[:, k - 1], QUANTILES, axis=0)
            optimum = as_quadratic(e.problem).equilibrium(e.limit_influence)
            parameters(axis, k, w, (0.9, 1.1))
            for j in range(e.problem.dim):
                axis.axhline(optimum[j], color=COLOURS[j], ls=":", lw=0.9)
            axis.set(title=f"N = {period}", ylim=(0.9, 1.1))
            rounds_axis(axis)
        axes[0, 0].set_ylabel("shared model\n(dotted: w*)")
        key(axes)
    return name


def levels(study: Study, kind: str, cells: Cells, values: Any) -> tuple[str, ...]:
    """Error and gradient norm along sigma_w (R6) or the SNR (R7)."""
    claim = "r6-sigma-w" if kind == "sigma_w" else "r7-snr"

    def text(level: float) -> str:
        return f"sigma_w = {level:g}" if kind == "sigma_w" else f"{level:g} dB"

    return (
        _grid(study, f"{claim}-error.png", "error", ERROR, cells, text),
        _grid(study, f"{claim}-gradient.png", "gradient_norm", GRADIENT, cells, text),
    )


def periods(study: Study, grids: dict[str, Cells]) -> str:
    """Late wobble against the level, a line for each N, in all three grids."""
    labels = {"spread": "feature spreads", "sigma_w": "sigma_w", "snr": "SNR (dB)"}
    name = "r8-period.png"
    with figure(study.figure(name), columns=3, height=2.5) as axes:
        for axis, (kind, cells) in zip(axes[0], grids.items(), strict=True):
            known = list(dict.fromkeys(level for level, _ in cells))
            for number, period in enumerate(PERIODS):
                rows = [np.quantile(cells[level, period].wobble, QUANTILES) for level in known]
                low, middle, high = np.array(rows).T
                axis.errorbar(
                    np.arange(len(known)) + 0.08 * (number - 1), middle,
                    yerr=[middle - low, high - middle], color=COLOURS[number],
                    marker="os^"[number], markersize=3, lw=1, capsize=2, label=f"N = {period}",
                )  # fmt: skip
            text = ["all 5", "5 to 25"] if kind == "spread" else [f"{v:g}" for v in known]
            axis.set_xticks(range(len(known)), text)
            axis.set_xlabel(labels[kind])
            log_axis(axis)
            axis.margins(x=0.15)
        axes[0, 0].set_ylabel("late wobble of the\nshared model")
        key(axes)
    return name


def baselines(study: Study, tapering: Any, literal: Any, stable: Any) -> tuple[str, ...]:
    """Baselines, constant against tapering: parameters' distance, and gradient norm."""
    panels = (("error", ERROR, "r9-baselines-error.png"),
              ("gradient_norm", GRADIENT, "r9-baselines-gradient.png"))  # fmt: skip
    titles = ("constant 0.1: diverges", "smaller constants: oscillate", "0.1/n^0.76: settles")
    for metric, quantity, name in panels:
        with figure(study.figure(name), columns=3, height=2.9, sharey=True) as axes:
            _methods(axes[0, 0], literal, metric, 0)
            for level, a in enumerate((0.07, 0.05, 0.01)):
                cells = {preset: stable[preset, a] for preset in NAMES}
                _methods(axes[0, 1], cells, metric, 3 + level, f"{a:g}: ")
            _methods(axes[0, 2], tapering, metric, 0)
            for axis, title in zip(axes[0], titles, strict=True):
                axis.set_title(title)
                log_axis(axis)
                axis.set(xlim=(0.9, ROUNDS * 1.1), ylim=(1e-3, 1e6))
                rounds_axis(axis)
                below(axis, columns=1)
            axes[0, 0].set_ylabel(quantity)
    return (*(name for _, _, name in panels), _baseline_parameters(study))


def _methods(axis: Any, cells: Any, metric: str, colour: int, front: str = "") -> None:
    """One line for methods whose curves coincide, which here means: within a line's width."""
    curves = {preset: cells[preset].curves[metric] for preset in NAMES}
    middle = {NAMES[preset]: np.where(q[1] < 1e6, q[1], np.nan) for preset, q in curves.items()}
    back = {label: preset for preset, label in NAMES.items()}
    for number, (first, label) in enumerate(coinciding(middle, within=0.15).items()):
        cell = cells[back[first]]
        band(axis, cell.k, curves[back[first]], front + label, COLOURS[(colour + number) % 7])


def _baseline_parameters(study: Study) -> str:
    """One seed's parameters, constant 0.05 against tapering, and the band of all seeds."""
    name = "r9-baselines-parameters.png"
    k = log_rounds(ROUNDS, 400)
    steps: tuple[Schedule, ...] = (Constant(0.05), PAPER_STEP)
    titles = ("constant 0.05: oscillates for ever", "0.1/n^0.76: settles")
    with figure(study.figure(name), columns=2, height=2.9, sharey=True) as axes:
        for axis, step, title in zip(axes[0], steps, titles, strict=True):
            paths = {preset: _one_path(study, step, preset) for preset in NAMES}
            made, optimum = paths["fedavg"]
            w = {NAMES[preset]: run.w[0, k - 1] for preset, (run, _) in paths.items()}
            far = max(float(np.abs(w["FedAvg"] - other).max()) for other in w.values())
            low, _, high = np.quantile(made.w[:, k - 1], QUANTILES, axis=0)
            for j in range(len(optimum)):
                axis.fill_between(k, low[:, j], high[:, j], color=COLOURS[j], alpha=0.2, lw=0)
                axis.plot(k, w["FedAvg"][:, j], color=COLOURS[j], lw=0.5, alpha=0.8)
                even = smoothed(w["FedAvg"][:, j], 25)
                axis.plot(k, even, color=COLOURS[j], lw=1.6, label=f"component {j + 1}, smoothed")
                axis.axhline(optimum[j], color="black", lw=0.7, label="optimum w*")
            axis.set_title(f"{title}\nFedAvg; FedProx and FedNova within {far:.2g}")
            rounds_axis(axis)
        axes[0, 0].set_ylabel("shared model")
        key(axes, columns=4)
    return name


def _one_path(study: Study, step: Schedule, preset: str) -> Any:
    e = Setting(step, preset=preset).experiment(0)
    made = quiet_run(e, range(max(10, study.seeds // 10)))
    assert made.w is not None
    return made, as_quadratic(e.problem).equilibrium(e.limit_influence)
