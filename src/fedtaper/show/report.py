"""One self-contained page from runs and claims: opens offline, sends nothing anywhere."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import fedtaper
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_quadratic
from fedtaper.core.version import __version__
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.storage import store
from fedtaper.theory.forecast import fades

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #e4e4e4;
         vertical-align: top; }
td.n { text-align: right; white-space: nowrap; } th { border-bottom: 2px solid #888; }
img { max-width: 100%; height: auto; } figure { margin: .5rem 0; display: inline-block; }
figcaption { font-size: .85rem; color: #444; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .85rem; }
.good { color: #00543d; font-weight: 600; } .other { color: #9a3b00; font-weight: 600; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


def report(sources: Sequence[Run | str | Path] | Run | str | Path, out: str | Path) -> Path:
    """Write one HTML page about runs (or their folders) and claims folders.

    Args:
        sources: runs, run folders, or folders that ``fedtaper reproduce`` wrote.
        out: the page to write.
    """
    if isinstance(sources, (Run, str, Path)):
        sources = [sources]
    if not sources:
        raise FedtaperError("nothing to report on: give a run folder or a claims folder")
    parts = [_section(source) for source in sources]
    title = "fedtaper report"
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{''.join(parts)}"
        f"<p><small>fedtaper {__version__}</small></p></body></html>\n"
    )
    path = Path(out)
    if path.is_dir():
        raise FedtaperError(f"{path} is a folder; name the page to write, such as report.html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FedtaperError(f"{path} cannot be written: {problem.strerror}") from None
    store.write_text(path, page)
    return path


def _section(source: Run | str | Path) -> str:
    if isinstance(source, Run):
        return _run_section(source)
    folder = Path(source)
    if (folder / "claims.json").is_file():
        return _claims_section(folder)
    if not folder.exists():
        raise FedtaperError(f"there is no folder {folder}")
    return _run_section(store.load(folder))


def sentences(run: Run) -> list[str]:
    """What a run shows, in words made from its numbers."""
    e = run.experiment
    if run.diverged:
        first = min(run.diverged, key=lambda d: d.round)
        return [f"{len(run.diverged)} of {len(run.seeds)} seeds diverged; {first}."]
    out = []
    over = f", median of {len(run.seeds)} seeds" if run.many else ""
    if "error" in run.metrics:
        error, limit = (np.median(run.metrics[k][..., -1]) for k in ("error", "error_limit"))
        out.append(
            f"After {e.rounds:,} rounds (clock n = {run.n[-1]:,.0f}) the shared model is "
            f"{error:.3g} from w*(p_n), the optimum of the influences at that n, and {limit:.3g} "
            f"from w*(p), the optimum of their limits{over}."
        )
        settling = _settling(run)
        if settling is not None:
            word = "is still settling" if settling < 0.8 else "has stopped settling: it oscillates"
            out.append(
                f"The error of the last tenth of the rounds is {settling:.2f} of that of the "
                f"second tenth: the model {word}."
            )
    vanishing = [g for g in e.groups() if g.limit == 0 and g.effective > 0.01]
    if vanishing:
        when = fades(e, to=0.01)
        for group in vanishing:
            out.append(
                f"In the limit {group.who} will not count, but at this horizon the influence is "
                f"still {group.effective:.3g}; it falls to 0.01 at about "
                f"n = {when[group.clients[0]]:.1e}."
            )
    return out


def _settling(run: Run) -> float | None:
    tenth = len(run.round) // 10
    if tenth < 5:
        return None
    error = run.metrics["error"]
    return float(np.median(error[..., -tenth:]) / np.median(error[..., tenth : 2 * tenth]))


def _run_section(run: Run) -> str:
    e = run.experiment
    name = escape(run.path.name if run.path else "run")
    facts = "".join(f"<p>{escape(text)}</p>" for text in sentences(run))
    last = {k: v[..., -1] for k, v in run.metrics.items() if v.shape[-1]}
    rows = [[k, *_spread(v)] for k, v in last.items()]
    numbers = _table(["last round", "median", "10 %", "90 %"], rows)
    clients = [
        [g.who, g.taper, *(_number(v) for v in (g.step_sum, g.server_weight, g.participation)),
         _number(g.effective), _number(g.limit)]
        for g in e.groups()
    ]  # fmt: skip
    influence = _table(
        ["client", "step size", "step sum", "server weight", "participation",
         "influence now", "in the limit"], clients,
    )  # fmt: skip
    pictures = "".join(_run_figures(run)) if len(run.round) > 1 else ""
    own = isinstance(e.problem, LinearRegression) and e.problem.arrays is not None
    data = store.DATA if own else None
    settings = escape(fedtaper.to_toml(e, data))
    notes = escape(json.dumps(run.provenance or store.provenance(run), indent=2))
    return (
        f"<h2>{name}</h2>{facts}{pictures}{numbers}<h3>Influence in the last round</h3>{influence}"
        f"{_audit_part(run)}"
        f"<details><summary>Settings</summary><pre>{settings}</pre></details>"
        f"<details><summary>Provenance</summary><pre>{notes}</pre></details>"
    )


def _audit_part(run: Run) -> str:
    """Who contributed as declared, for runs that kept the updates (the first seed)."""
    if run.updates is None or not len(run.round):
        return ""
    from fedtaper.auditing import audit

    found = audit(run, seed=run.seeds[0] if run.many else None)
    head, *rows = found.rows()
    notes = "".join(f"<p>{escape(text)}</p>" for text in (*found.remarks(), found.caveat))
    return f"<h3>Audit: who contributed as declared</h3>{_table(head, rows)}{notes}"


def _run_figures(run: Run) -> list[str]:
    from fedtaper.show import report_figures as draw

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        made = [_image(draw.draw_metrics(run, base / "m.png"), "Distances and norms")]
        if is_quadratic(run.experiment.problem) and run.w is not None and not run.diverged:
            made.append(_image(draw.draw_trajectory(run, base / "t.png"), "Shared model"))
        made.append(_image(draw.draw_influence(run, base / "i.png"), "Effective influence"))
    return made


def _claims_section(folder: Path) -> str:
    try:
        page = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
        claims = page["claims"]
        overview = _table(
            ["claim", "statement", "verdict"],
            [[c["id"], c["statement"], c["verdict"]] for c in claims],
        )
        left = [one for one in page.get("wanted", []) if one not in {c["id"] for c in claims}]
        body = _missing(left) + "".join(_claim(c, folder) for c in claims)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FedtaperError(f"{folder}/claims.json is damaged: {problem}") from None
    notes = escape(json.dumps(page.get("provenance", {}), indent=2))
    return (
        f"<h2>The paper's claims</h2>{overview}{body}"
        f"<details><summary>Provenance</summary><pre>{notes}</pre></details>"
    )


def _missing(claims: list[str]) -> str:
    if not claims:
        return ""
    return (
        f"<p><b>Not judged yet:</b> {escape(', '.join(claims))}. The study stopped before them; "
        "go on with <code>fedtaper reproduce --resume</code>.</p>"
    )


def _claim(c: dict[str, Any], folder: Path) -> str:
    kind = "good" if c["verdict"] == "reproduced" else "other"
    rows = [
        [n["name"], _number(n["value"]), _number(n["low"]), _number(n["high"]), n["threshold"],
         "yes" if n["passed"] else "no"]
        for n in c["numbers"]
    ]  # fmt: skip
    table = _table(["measured", "value", "from", "to", "asked for", "met"], rows)
    pictures = "".join(
        _image(folder / name, name) for name in c["figures"] if _is_own_figure(folder, name)
    )
    return (
        f"<h2>{escape(c['id'])} <span class={kind}>{escape(c['verdict'])}</span></h2>"
        f"<p>{escape(c['statement'])}</p><p>{escape(c['summary'])}</p>"
        f"<p><b>Nearest setting that shows it:</b> {escape(c['nearest'])}.</p>{pictures}"
        f"<details><summary>Deciding numbers</summary><p>{escape(c['measure'])} "
        f"<b>Refuted by:</b> {escape(c['refuted_by'])}</p>{table}</details>"
    )


def _is_own_figure(folder: Path, name: Any) -> bool:
    """Whether a name is that of a PNG in the folder itself: not a link to a file elsewhere."""
    if not isinstance(name, str) or Path(name).name != name:
        return False
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89PNG\r\n\x1a\n"


def _image(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    text = escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}" '
        f'style="width:{_width(path)}px"><figcaption>{text}</figcaption></figure>'
    )


def _width(path: Path) -> int:
    """Half the pixels of a PNG: sharp on dense screens, and the figures' own size elsewhere."""
    return int.from_bytes(path.read_bytes()[16:20], "big") * 11 // 20


def _table(head: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td{_align(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _align(cell: str) -> str:
    try:
        float(cell)
    except ValueError:
        return ""
    return ' class="n"'


def _number(value: float) -> str:
    return f"{value:.4g}"


def _spread(values: Any) -> list[str]:
    array = np.atleast_1d(values)
    array = array[np.isfinite(array)]
    if not array.size:
        return ["not finite"] * 3
    return [_number(float(np.quantile(array, q))) for q in (0.5, 0.1, 0.9)]
