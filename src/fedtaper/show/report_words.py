"""What runs show, in sentences made from their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtaper.core.tables import capital
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.theory.forecast import fades

SETTLED = 0.8  # the error of late rounds over that of early ones, below which it still falls


def sentences(run: Run) -> list[str]:
    """What one run shows."""
    if run.diverged:
        first = min(run.diverged, key=lambda d: d.round)
        return [f"{len(run.diverged)} of {len(run.seeds)} seeds diverged; {first}."]
    if not len(run.round):
        return ["The run has no recorded round."]
    out = [_ends(run)] if "error" in run.metrics else _metrics(run)
    ratio = settling(run)
    if ratio is not None:
        what = "error" if "error" in run.metrics else "step of the shared model"
        word = "is still settling" if ratio < SETTLED else "has stopped settling: it oscillates"
        out.append(
            f"The {what} of the last tenth of the rounds is {ratio:.2f} times that of the second "
            f"tenth: the model {word}."
        )
    return [*out, *_influence(run)]


def _ends(run: Run) -> str:
    e = run.experiment
    error, limit = (labels.middle(run.metrics[k][..., -1]) for k in ("error", "error_limit"))
    return (
        f"After {run.round[-1]:,} rounds (clock n = {run.n[-1]:,.0f}) the shared model of "
        f"{e.num_clients} clients is {error:.3g} from w*(p_n), the optimum of the influences at "
        f"that n, and {limit:.3g} from w*(p), the optimum of their limits{_over(run)}."
    )


def _over(run: Run) -> str:
    return f", median of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""


def _metrics(run: Run) -> list[str]:
    shown = [name for name in labels.metrics(run) if name not in ("change", "answered")]
    found = []
    for name in shown[:6]:
        values = run.metrics[name]
        curve = np.median(np.atleast_2d(values), axis=0)
        text = f"{labels.metric(name)} {labels.number(float(curve[-1]))}"
        better = np.nanargmax(curve) if "accuracy" in name else np.nanargmin(curve)
        if ("accuracy" in name or "loss" in name) and better != len(curve) - 1:
            text += f" (best {labels.number(float(curve[better]))} in round {run.round[better]:,})"
        elif "accuracy" not in name and "loss" not in name:
            text += f" ({labels.number(float(curve[0]))} after round {run.round[0]:,})"
        found.append(text)
    if not found:
        return [f"{run.round[-1]:,} rounds with {run.experiment.num_clients} clients."]
    return [
        f"After {run.round[-1]:,} rounds with {run.experiment.num_clients} clients"
        f"{_over(run)}: {'; '.join(found)}."
    ]


def settling(run: Run) -> float | None:
    """Late over early: the error (or model's step) of the last tenth divided by the second's."""
    tenth = len(run.round) // 10
    name = "error" if "error" in run.metrics else "change"
    if tenth < 5 or run.diverged or name not in run.metrics:
        return None
    values = run.metrics[name]
    early = np.median(values[..., tenth : 2 * tenth])
    return float(np.median(values[..., -tenth:]) / early) if early > 0 else None


def _influence(run: Run) -> list[str]:
    e, names = run.experiment, labels.clients(run)
    groups = e.groups()
    out = []
    if len(groups) == 1 or np.ptp([g.effective for g in groups]) < 1e-9:
        out.append(f"All {e.num_clients} clients count the same.")
    elif len(groups) <= 4:
        parts = [f"{labels.who(names, g)} {g.effective:.3g}" for g in groups]
        out.append(f"Influence at this horizon: {', '.join(parts)}.")
    vanishing = [g for g in groups if g.limit == 0 and g.effective > 0.01]
    when = fades(e, to=0.01) if vanishing else None
    for group in vanishing:
        assert when is not None
        out.append(
            f"In the limit {labels.who(names, group)} will not count, but at this horizon their "
            f"influence is still {group.effective:.3g}; it falls to 0.01 at about "
            f"n = {when[group.clients[0]]:.1e}."
        )
    return out


def summary(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """What several runs show together, or what a single one shows."""
    if len(runs) == 1:
        return sentences(runs[0])
    lost = [name for name, run in zip(names, runs, strict=True) if run.diverged]
    out = [f"{len(runs)} runs" + (f"; {_list(lost)} diverged." if lost else ", all finished.")]
    shared = _compared(runs)
    for name in shared:
        ends = {
            n: labels.middle(r.metrics[name][..., -1])
            for n, r in zip(names, runs, strict=True)
            if name in r.metrics and not r.diverged and len(r.round)
        }
        ends = {n: v for n, v in ends.items() if np.isfinite(v)}
        if len(ends) < 2:
            continue
        low, high = min(ends, key=lambda n: ends[n]), max(ends, key=lambda n: ends[n])
        text = capital(labels.metric(name))
        if np.isclose(ends[low], ends[high], rtol=1e-3):
            out.append(f"{text} ends at {ends[low]:.3g} in all runs.")
        else:
            out.append(
                f"{text} ends lowest in {low} ({ends[low]:.3g}) and highest in {high} "
                f"({ends[high]:.3g})."
            )
    ratios = {n: settling(r) for n, r in zip(names, runs, strict=True)}
    still = [n for n, v in ratios.items() if v is not None and v >= SETTLED]
    if still:
        out.append(f"Oscillating and no longer settling: {_list(still)}.")
    return out


def _compared(runs: Sequence[Run]) -> list[str]:
    """Up to three metrics for the summary: distances and scores first, then the user's."""
    known = ("error", "error_limit", "test_accuracy", "rare_test_accuracy", "test_loss")
    own = [n for r in runs for n in labels.metrics(r) if n not in labels.METRICS]
    found = [n for n in dict.fromkeys([*known, *own]) if sum(n in r.metrics for r in runs) > 1]
    return found[:3] or ["train_loss"]


def _list(names: Sequence[str]) -> str:
    shown = list(names[:4]) + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
