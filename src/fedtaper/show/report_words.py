"""What runs show, in sentences made from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.influence import ClientGroup
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.theory.forecast import fades

SETTLED = 0.8  # the error of late rounds over that of early ones, below which it still falls
AWAY = 1.25  # and above which it grows
FEW = 4  # groups of clients that a sentence can list


def sentences(run: Run) -> list[str]:
    """What one run shows."""
    if run.diverged:
        return [_divergence(run)]
    if not len(run.round):
        return ["The run has no recorded round."]
    out = [_ends(run)] if "error" in run.metrics else _metrics(run)
    if run.stopped:
        out.append(f"It was stopped before its last round: {run.stopped}.")
    return [*out, *_settles(run), *_influence(run)]


def about(run: Run) -> list[str]:
    """What one run shows; if only some of its seeds diverged, also what the others show."""
    rest = survivors(run)
    if not run.diverged or not rest.seeds or not len(run.round):
        return sentences(run)
    return [*sentences(run), "Without the seeds that diverged:", *sentences(rest)]


def survivors(run: Run) -> Run:
    """The run without the seeds that diverged."""
    if not run.diverged:
        return run
    lost = {d.seed for d in run.diverged}
    kept = [j for j, seed in enumerate(run.seeds) if seed not in lost]
    if not kept or not run.many:
        return replace(run, seeds=())
    return replace(
        run,
        seeds=tuple(run.seeds[j] for j in kept),
        metrics={name: values[kept] for name, values in run.metrics.items()},
        diverged=(),
    )


def _divergence(run: Run) -> str:
    first, count = min(run.diverged, key=lambda d: d.round), len(run.diverged)
    who = first.name or labels.clients(run)[first.client]
    where = f"in round {first.round:,} at {who}: {first.reason}."
    if len(run.seeds) == 1:
        return f"The run diverged {where}"
    which = f", the first, seed {first.seed}," if count > 1 else f" (seed {first.seed})"
    return f"{count} of {len(run.seeds)} seeds diverged{which} {where}"


def _ends(run: Run) -> str:
    e = run.experiment
    error, limit = (labels.middle(run.metrics[k][..., -1]) for k in ("error", "error_limit"))
    if not np.isfinite(error):
        return (
            f"After {run.round[-1]:,} rounds the shared model of {_clients(e.num_clients)} is so "
            f"far away that its distance is no longer a finite number{_over(run)}."
        )
    start = (
        f"After {run.round[-1]:,} rounds (clock n = {run.n[-1]:,.0f}) the shared model of "
        f"{_clients(e.num_clients)} is {error:.3g} from w*(p_n), the optimum of the influences at "
        "that n"
    )
    if np.allclose(run.metrics["error"], run.metrics["error_limit"], rtol=1e-6, equal_nan=True):
        return f"{start} and in the limit{_over(run)}."
    return f"{start}, and {limit:.3g} from w*(p), the optimum of their limits{_over(run)}."


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count != 1)}"


def _over(run: Run) -> str:
    return f", median of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""


def _metrics(run: Run) -> list[str]:
    shown = [name for name in labels.metrics(run) if name not in ("change", "answered")]
    start = f"After {run.round[-1]:,} rounds with {_clients(run.experiment.num_clients)}"
    if not shown:
        return [f"{run.round[-1]:,} rounds with {_clients(run.experiment.num_clients)}."]
    texts = [_metric(run, name) for name in shown[:6]]
    return [f"{start}{_over(run)}: {'; '.join(texts)}."]


def _metric(run: Run, name: str) -> str:
    """A metric's last value, with its best one if that is known to be better, or its first."""
    curve = np.median(np.atleast_2d(run.metrics[name]), axis=0)
    last = labels.number(float(curve[-1]))
    text = f"{labels.metric(name)} {last}"
    if not np.isfinite(curve).any():
        return text
    if "accuracy" not in name and "loss" not in name:
        return f"{text} ({labels.number(float(curve[0]))} after round {run.round[0]:,})"
    best = np.nanargmax(curve) if "accuracy" in name else np.nanargmin(curve)
    value = labels.number(float(curve[best]))
    return text if value == last else f"{text} (best {value} in round {run.round[best]:,})"


def settling(run: Run) -> float | None:
    """Late over early: the error (or model's step) of the last tenth divided by the second's."""
    tenth = len(run.round) // 10
    name = "error" if "error" in run.metrics else "change"
    if tenth < 5 or run.diverged or name not in run.metrics:
        return None
    values = run.metrics[name]
    early = np.median(values[..., tenth : 2 * tenth])
    late = np.median(values[..., -tenth:])
    return float(late / early) if early > 0 and np.isfinite(late / early) else None


def _settles(run: Run) -> list[str]:
    ratio = settling(run)
    if ratio is None:
        return []
    error = "error" in run.metrics
    words = (
        ("the model is still coming closer", "it no longer comes closer", "it is moving away")
        if error
        else ("the model is settling", "the model does not settle", "the model speeds up")
    )
    what = "the distance to w*(p_n)" if error else "the step of the shared model"
    return [
        f"In the last tenth of the rounds {what} is {ratio:.2f} times what it was in the second "
        f"tenth: {words[int(ratio >= SETTLED) + int(ratio > AWAY)]}."
    ]


def _influence(run: Run) -> list[str]:
    e, names = run.experiment, labels.clients(run)
    groups = sorted(e.groups(run.last_round), key=lambda g: -g.effective)
    out = []
    if len(groups) == 1 or np.ptp([g.effective for g in groups]) < 1e-9:
        out.append(f"By their step sizes, all {_clients(e.num_clients)} count the same.")
    elif len(groups) <= FEW:
        parts = [f"{labels.who(names, g)}: {g.effective:.3g}" for g in groups]
        out.append(f"Influence at this horizon: {'; '.join(parts)}.")
    else:
        ends = [f"{g.effective:.3g} ({labels.who(names, g)})" for g in (groups[0], groups[-1])]
        out.append(f"Influence at this horizon: from {ends[0]} down to {ends[1]}.")
    vanishing = [g for g in groups if g.limit == 0 and g.effective > 0.01]
    if not vanishing:
        return out
    when = fades(e, to=0.01)
    if len(vanishing) < FEW:
        return [*out, *(_vanishes(names, g, when[g.clients[0]]) for g in vanishing)]
    return [*out, _vanish(e.num_clients, vanishing, when)]


def _vanishes(names: Sequence[str], group: ClientGroup, when: float) -> str:
    whose = "its" if len(group.clients) == 1 else "their"
    then = f"; it falls to 0.01 at about n = {_far(when)}" if np.isfinite(when) else ""
    return (
        f"In the limit {labels.who(names, group)} will not count, but at this horizon {whose} "
        f"influence is still {group.effective:.3g}{then}."
    )


def _vanish(clients: int, groups: Sequence[ClientGroup], when: NDArray[np.float64]) -> str:
    """Many groups that will not count, in one sentence."""
    count = sum(len(g.clients) for g in groups)
    times = [float(when[g.clients[0]]) for g in groups]
    then = f", first at about n = {_far(min(times))}" if np.isfinite(min(times)) else ""
    then += f" and last at about n = {_far(max(times))}" if np.isfinite(max(times)) else ""
    return (
        f"In the limit {count} of {clients} clients will not count, but at this horizon their "
        f"influences are still {groups[-1].effective:.3g} to {groups[0].effective:.3g}; they fall "
        f"to 0.01 one after another{then}."
    )


def _far(n: float) -> str:
    """A far clock value, short.

    >>> _far(2.2345e8), _far(93210.0)
    ('2.2e8', '93,000')
    """
    if n < 1e6:
        return f"{float(f'{n:.2g}'):,.0f}"
    front, power = f"{n:.1e}".split("e")
    return f"{front.removesuffix('.0')}e{int(power)}"


def summary(
    groups: Sequence[tuple[Sequence[Run], Sequence[str]]], names: Sequence[str]
) -> list[str]:
    """What several runs show together: those of one problem are compared with one another.

    Args:
        groups: the runs of each problem, and their names.
        names: all runs' names, in the order of the page.
    """
    found = {n: run for runs, mine in groups for n, run in zip(mine, runs, strict=True)}
    lost = [n for n in names if found[n].diverged and not survivors(found[n]).seeds]
    partly = [n for n in names if found[n].diverged and n not in lost]
    first = f"{len(names)} runs"
    if lost:
        first += f"; {named(lost)} diverged"
    if partly:
        first += f"; some seeds of {named(partly)} diverged and are left out here"
    out = [f"{first}." if lost or partly else f"{first}, all finished."]
    if len(groups) > 1:
        out.append(
            f"They are of {len(groups)} different problems. Numbers are compared below only "
            "between runs of the same one; across problems they mean little."
        )
    for runs, mine in groups:
        out += _compare(runs, mine)
    ratios = {n: settling(survivors(run)) for n, run in found.items()}
    still = [n for n in names if (ratios[n] or 0) >= SETTLED]
    if still:
        out.append(f"No longer settling: {named(still)}.")
    if any("w*(p" in text for text in out):
        out.append(
            "w*(p_n) is the optimum of the influences at the end of a run, and w*(p) that of their "
            "limits."
        )
    return out


def _compare(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Where up to three metrics end lowest and highest among runs of one problem."""
    out: list[str] = []
    seen: list[dict[str, float]] = []
    kept = [survivors(run) for run in runs]
    for name in _compared(kept):
        ends = {
            n: labels.middle(r.metrics[name][..., -1])
            for n, r in zip(names, kept, strict=True)
            if name in r.metrics and r.seeds and len(r.round)
        }
        ends = {n: v for n, v in ends.items() if np.isfinite(v)}
        if len(ends) < 2 or ends in seen:  # p_n = p: both distances are one
            continue
        seen.append(ends)
        low, high = min(ends, key=lambda n: ends[n]), max(ends, key=lambda n: ends[n])
        text = labels.title(name)
        if np.isclose(ends[low], ends[high], rtol=1e-3):
            where = f"in {'all of ' if len(ends) > 2 else ''}{named(list(ends))}"
            out.append(f"{text} ends at {ends[low]:.3g} {where}.")
        elif len(ends) == 2:
            out.append(
                f"{text} ends at {ends[low]:.3g} in {low} and at {ends[high]:.3g} in {high}."
            )
        else:
            out.append(
                f"{text} ends lowest in {low} ({ends[low]:.3g}) and highest in {high} "
                f"({ends[high]:.3g})."
            )
    return out


def _compared(runs: Sequence[Run]) -> list[str]:
    """Up to three metrics for the summary: distances and scores first, then the user's."""
    known = ("error", "error_limit", "test_accuracy", "rare_test_accuracy", "test_loss")
    own = [n for r in runs for n in labels.metrics(r) if n not in labels.METRICS]
    found = [n for n in dict.fromkeys([*known, *own]) if sum(n in r.metrics for r in runs) > 1]
    return found[:3] or ["train_loss"]


def named(names: Sequence[str]) -> str:
    """Names in a sentence: the first four, and how many more."""
    shown = list(names[:4]) + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
