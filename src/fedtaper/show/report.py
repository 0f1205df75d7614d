"""One self-contained page about runs and claims: it opens offline and sends nothing anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError
from fedtaper.results import Run
from fedtaper.show import charts, labels, report_claims, report_compare, report_run
from fedtaper.show.report_findings import audit_in_words
from fedtaper.show.report_page import Section, page, paragraphs
from fedtaper.show.report_settings import problems
from fedtaper.show.report_view import View
from fedtaper.show.report_words import about, sentences, summary
from fedtaper.storage import store
from fedtaper.storage.loading import CLAIMS

__all__ = ["report", "sentences"]
MOST_POINTS, FEWEST_POINTS, ALL_POINTS = 400, 80, 9_000  # of a curve; of one metric in all runs
MOST_AUDITS = 6  # sentences about audits on top


def report(
    sources: Sequence[Run | str | Path] | Run | str | Path,
    out: str | Path,
    *,
    figures: str | Path | None = None,
) -> Path:
    """Write one HTML page about runs (or their folders) and claims folders.

    Args:
        sources: runs, run folders, or folders that ``fedtaper reproduce`` wrote.
        out: the page to write.
        figures: a folder for the page's charts as PNG and SVG files, for a paper.
    """
    if isinstance(sources, (Run, str, Path)):
        sources = [sources]
    if not isinstance(sources, Sequence) or not sources:
        raise FedtaperError("nothing to report on: give a run folder or a claims folder")
    path = _checked(as_path(out))
    folder = None if figures is None else as_path(figures)
    runs, claims = _load(sources)
    names = labels.runs(runs)
    points = int(np.clip(ALL_POINTS // max(1, len(runs)), FEWEST_POINTS, MOST_POINTS))
    views = [View(run, name, points) for run, name in zip(runs, names, strict=True)]
    sections = [*_about(views, points), *(s for f in claims for s in report_claims.sections(f))]
    lead = paragraphs(_lead(views))
    store.write_text(path, page(_title(names), f'<div class="lead">{lead}</div>', sections))
    if folder is not None:
        shown = [c for s in sections for c in (*s.charts, *(c for p in s.parts for c in p.charts))]
        charts.write(shown, folder)
    return path


def _checked(path: Path) -> Path:
    if path.is_dir():
        raise FedtaperError(f"{path} is a folder; name a file to write, such as report.html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FedtaperError(f"{path} cannot be written: {problem.strerror}") from None
    return path


def _load(sources: Sequence[Run | str | Path]) -> tuple[list[Run], list[Path]]:
    runs, claims = [], []
    for source in sources:
        if isinstance(source, Run):
            runs.append(source)
        elif (as_path(source) / CLAIMS).is_file():
            claims.append(Path(source))
        elif not Path(source).exists():
            raise FedtaperError(f"there is no folder {source}")
        else:
            runs.append(store.load(source))
    return runs, claims


def _title(names: Sequence[str]) -> str:
    if not names:
        return "fedtaper: claims"
    return f"fedtaper: {names[0]}" if len(names) == 1 else f"fedtaper: {len(names)} runs"


def _lead(views: Sequence[View]) -> list[str]:
    """The summary in words, with what audits found."""
    if len(views) == 1:
        return [*about(views[0].run), *audit_in_words(views[0])]
    if not views:
        return []
    runs, names = [v.run for v in views], [v.name for v in views]
    audits = [
        text.replace("Audit:", f"Audit of {view.name}:", 1)
        for view in views
        for text in audit_in_words(view)
    ]
    shown = audits[:MOST_AUDITS]
    if len(audits) > len(shown):
        shown.append(f"The audits of {len(audits) - len(shown)} more runs are below.")
    return [*summary(problems(runs, names), names), *shown]


def _about(views: Sequence[View], points: int) -> list[Section]:
    single = [report_run.section(view, alone=len(views) == 1) for view in views]
    if len(views) < 2:
        return single
    runs, names = [v.run for v in views], [v.name for v in views]
    return [
        report_compare.comparison(runs, names),
        report_compare.differences(runs, names),
        report_compare.overlays(runs, names, points),
        *single,
    ]
