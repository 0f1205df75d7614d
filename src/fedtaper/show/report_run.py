"""One run on a page: its metrics, convergence, influence, tracking, audit and provenance."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_quadratic, is_quadratic
from fedtaper.core.tables import capital
from fedtaper.problems.linear import LinearRegression
from fedtaper.show import labels
from fedtaper.show.charts import Chart, Curve, spread, thin
from fedtaper.show.report_findings import audit, audit_in_words, board, intervals
from fedtaper.show.report_page import Part, Section, folded, paragraphs, slug, table
from fedtaper.show.report_view import View
from fedtaper.show.report_words import about
from fedtaper.storage import store
from fedtaper.storage.config import to_toml

Array = NDArray[np.float64]
CHART_GROUPS = (  # metrics that are read against one another share a chart
    ("error", "error_limit"),
    ("train_loss", "test_loss", "rare_test_loss"),
    ("train_accuracy", "test_accuracy", "rare_test_accuracy"),
)
CONVERGENCE = ("error", "error_limit", "gradient_norm", "change")
TITLES = {
    "error": "Distance to the optimum",
    "train_loss": "Loss",
    "test_loss": "Loss",
    "train_accuracy": "Accuracy",
    "test_accuracy": "Accuracy",
}


def section(view: View, alone: bool = False) -> Section:
    """Everything about one run; of the only one of a page the words are on top already."""
    found = [part(view) for part in PARTS] if len(view.run.round) else [origin(view)]
    text = "" if alone else paragraphs([*about(view.run), *audit_in_words(view)])
    if len(view.run.seeds) > 1:
        note = f"Curves: medians over {len(view.run.seeds)} seeds. Bands: 10 to 90 % of them."
        text += paragraphs([note], "muted")
    return Section(view.name, text, (), tuple(p for p in found if p is not None))


def last_round(view: View) -> Part | None:
    """The last round's metrics, with their spread over the seeds if there are several."""
    shown = labels.metrics(view.run)
    if not shown:
        return None
    many = len(view.run.seeds) > 1
    known = np.all([np.isfinite(np.atleast_2d(v)).any(axis=0) for v in shown.values()], axis=0)
    lost = view.away and not known[-1]
    if lost and not known.any():
        return None
    at = int(np.flatnonzero(known)[-1]) if lost else -1
    rows = []
    for name, values in shown.items():
        end = np.atleast_1d(values[..., at])
        end = end[np.isfinite(end)]
        shares = np.quantile(end, (0.5, 0.1, 0.9)) if end.size else [np.nan] * 3
        rows.append([labels.metric(name), *map(labels.number, shares[: 3 if many else 1])])
    head = ["metric", "median", "10 %", "90 %"] if many else ["metric", "value"]
    title = f"After round {view.run.round[at]:,}" + (", the last with finite numbers" * lost)
    return Part(title, table(head, rows))


def metrics(view: View) -> Part | None:
    """Every metric that was recorded, including the user's own."""
    names = [m for m in labels.metrics(view.run) if m not in CONVERGENCE]
    charts = metric_charts(view, names)
    return Part("Metrics", charts=charts) if charts else None


def metric_charts(view: View, names: Sequence[str]) -> tuple[Chart, ...]:
    """One chart per metric; metrics that are compared with each other share one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        first = next((g[0] for g in CHART_GROUPS if name in g), name.split("/")[0])
        groups.setdefault(first, []).append(name)
    charts = []
    for first, members in groups.items():
        values = {m: view.run.metrics[m] for m in members}
        if first == "error" and _same(values):
            values = {"error": values["error"]}  # p_n = p: one line is both
        curves = [view.curve(labels.metric(m), v) for m, v in values.items()]
        title = TITLES.get(members[0], labels.title(first))
        unit = labels.metric(members[0]) if members[0] in TITLES and len(values) == 1 else ""
        charts.append(view.chart(first, title, unit, curves))
    return tuple(charts)


def _same(values: dict[str, Array]) -> bool:
    first, *others = values.values()
    return bool(others) and all(
        np.allclose(first, other, rtol=1e-6, atol=0, equal_nan=True) for other in others
    )


def convergence(view: View) -> Part | None:
    """Distances, norms and steps; the shared model and its optima, if they are known."""
    names = [m for m in labels.metrics(view.run) if m in CONVERGENCE]
    charts = metric_charts(view, names)
    if is_quadratic(view.run.experiment.problem) and view.run.w is not None and not view.away:
        charts = (*charts, _trajectory(view))
    return Part("Convergence", charts=charts) if charts else None


def _trajectory(view: View) -> Chart:
    """The first components of the shared model, and the optima as level lines."""
    run, e = view.run, view.run.experiment
    assert run.w is not None
    equilibrium = as_quadratic(e.problem).equilibrium
    now = equilibrium(e.influence(run.last_round).effective)
    limit = equilibrium(e.limit_influence)
    ends = view.rounds[[0, -1]]
    curves = []
    for j in range(min(3, e.problem.dim)):
        path = run.w[..., j]
        near = max(1.0, float(np.ptp(np.stack([now, limit])))) * 20  # a climb would hide the rest
        path = np.where(np.abs(path - now[j]) > near, np.nan, path)
        curves.append(view.curve(f"w[{j}]", path, colour=j))
        curves.append(Curve(f"w*(p_n)[{j}]", ends, [now[j]] * 2, line="dotted", colour=j))
        if abs(limit[j] - now[j]) > 1e-3 * max(1.0, abs(now[j])):
            curves.append(Curve(f"w*(p)[{j}]", ends, [limit[j]] * 2, line="dashed", colour=j))
    apart = any(c.line == "dashed" for c in curves)
    words = "dotted: w*(p_n), dashed: w*(p)" if apart else "dotted: w*(p_n)"
    stem = f"{slug(view.name)}-model"
    return Chart(stem, "Shared model", words, tuple(curves), log_x=view.log_x)


def influence(view: View) -> Part | None:
    """Effective influence over the rounds, one line for clients that are alike, and its factors."""
    e = view.run.experiment
    groups = e.groups(view.run.last_round)
    rounds = 1 + thin(view.run.last_round, 80)
    p = np.concatenate([e.effective_influence(int(k) - 1, int(k)) for k in rounds])
    drawn = spread([g.effective for g in groups])
    curves = [
        Curve(labels.who(view.clients, g), rounds, p[:, i], colour=view.colour(i))
        for g in (groups[j] for j in drawn)
        for i in g.clients[:1]
    ]
    unit = "relative to " + view.clients[e.reference]
    chart = view.chart("influence", "Influence", unit, curves)
    rows = [
        [labels.who(view.clients, g), labels.taper(g)]
        + [labels.number(v) for v in (g.step_sum, g.server_weight, g.participation)]
        + [labels.number(g.effective), labels.number(g.limit)]
        for g in groups
    ]
    head = ["client", "step size", "step sum", "server weight", "participation",
            "influence now", "in the limit"]  # fmt: skip
    few = len(drawn) < len(groups)
    text = f"Drawn: {len(drawn)} of {len(groups)} groups, spread evenly over the influences."
    if all(len(g.clients) == 1 for g in groups):
        text = text.replace("groups", "clients")
    notes = paragraphs([text], "muted") if few else ""
    return Part("Influence", table(head, rows) + notes, (chart, *_sent(view)))


def _sent(view: View) -> tuple[Chart, ...]:
    """The size of what clients sent: all of them, or some."""
    norms = view.run.update_norms
    if not np.isfinite(norms).any():
        return ()
    middle = np.median(norms, axis=0) if norms.ndim == 3 else norms
    drawn = spread(view.run.experiment.influence(view.run.last_round).effective)
    curves = [
        Curve(view.clients[i], view.rounds, middle[view.at, i], colour=view.colour(i))
        for i in drawn
    ]
    return (view.chart("updates", "What each client sent", "size of the update", curves),)


def tracking(view: View) -> Part | None:
    """How closely the run follows the limit ODE, if that is known in closed form."""
    from fedtaper.theory.tracking import tracking_error

    if view.away or not is_quadratic(view.run.experiment.problem):
        return None
    try:
        found = tracking_error(view.run)
    except FedtaperError:  # too short, or thinned: there is nothing to compare
        return None
    curves = []
    for kind, name in (("finite", "ODE with p_n"), ("limit", "ODE with p")):
        if kind == "limit" and np.allclose(found.limit, found.finite, rtol=1e-6):
            continue
        low, middle, high = found.band(kind)  # type: ignore[arg-type]  # one of two words
        many = len(view.run.seeds) > 1
        edges = (low, high) if many else (None, None)
        curves.append(Curve(name, found.round, middle, *edges))
    chart = view.chart("tracking", "Distance to the ODE", "largest distance in a window", curves)
    text = (
        f"Windows of length {found.window:.3g} in the ODE's time, each started at the run's own "
        "model. By the theorem the distance goes to 0."
    )
    return Part("Tracking the limit ODE", paragraphs([text]), (chart,))


def stability(view: View) -> Part | None:
    """Whether the first steps are small enough for the curvature."""
    from fedtaper.theory.stability import late_pull
    from fedtaper.theory.stability import stability as look

    if not is_quadratic(view.run.experiment.problem):
        return None
    e = view.run.experiment
    texts = [look(e).advice]
    pull = late_pull(e)
    if pull > np.pi / 2:
        texts.append(
            "the first steps are too large for the delays: summed over the longest delay, step "
            f"size times curvature is {pull:.3g}, above pi / 2, so the model climbs before it "
            "settles"
        )
    return Part("Stability", paragraphs(f"{capital(text)}." for text in texts))


def origin(view: View) -> Part:
    """The exact command, and everything needed to repeat the run."""
    run, e = view.run, view.run.experiment
    notes = run.provenance or store.provenance(run)
    command = str(notes["command"])
    if command.split(" ", maxsplit=1)[0].endswith(".py"):  # how a script was called
        command = f"python {command}"
    html = f"<p>Command:</p><pre tabindex='0'>{escape(command)}</pre>"
    try:
        own = isinstance(e.problem, LinearRegression) and e.problem.arrays is not None
        data = store.DATA if own else None
        text = to_toml(e, data)
        seeds = (
            f" --seeds {len(run.seeds)}"
            if run.seeds == tuple(range(len(run.seeds))) and run.many
            else ""
        )
        again = f"fedtaper run config.toml{seeds}" + (
            " --updates" if run.updates is not None else ""
        )
        use = f"As <code>config.toml</code>, for <code>{again}</code>:"
        if tomllib.loads(text)["problem"].get("kind") == "recorded":
            use = (
                "The model and the data are not in these settings. To train again, give the "
                "problem: <code>e = ft.load(folder, problem=problem).experiment</code>."
            )
        html += folded("Settings", f"<p>{use}</p><pre tabindex='0'>{escape(text)}</pre>")
    except FedtaperError as problem:
        html += paragraphs([f"The settings cannot be written as a file: {problem}."], "muted")
    rows = [
        [k.replace("_", " "), v if isinstance(v, str) else json.dumps(v)]
        for k, v in notes.items()
        if k not in ("command", "many") and v not in ("", [], {}, None)
    ]
    rows = [[k, v if len(v) <= 200 else f"{v[:197]}..."] for k, v in rows]
    return Part(
        "Provenance", html + folded("Versions, machine, seeds", table(["what", "value"], rows))
    )


# The parts of a run's section, in order. A part looks at the run and returns None where it has
# nothing to say; what is new joins here.
PARTS: tuple[Callable[[View], Part | None], ...] = (
    last_round,
    metrics,
    convergence,
    influence,
    tracking,
    intervals,
    audit,
    board,
    stability,
    origin,
)
