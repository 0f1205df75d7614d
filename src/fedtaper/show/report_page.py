"""The page itself: one HTML file with its style, its code and its numbers inside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from fedtaper.core.version import __version__
from fedtaper.show.charts import Chart

STATIC = Path(__file__).parent / "static"
_ONE = r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?"
_NUMBER = re.compile(rf"{_ONE}( ?%| \[[^\]]*\]| to {_ONE}| of {_ONE})?$", re.IGNORECASE)
_FILLER = re.compile(r"(|-|–|diverged|in round [\d,]+|not finite|always|never)$")
_OPTIMUM, _UNBROKEN = re.compile(r"w\*\(p(_n)?\)"), r'<span class="whole">\g<0></span>'


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of a section: a heading, HTML, and charts after it."""

    title: str
    html: str = ""
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, eq=False)
class Section:
    """A section of the page, with an entry in the contents."""

    title: str
    html: str = ""
    charts: tuple[Chart, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def anchor(self) -> str:
        """The id that the contents link to."""
        return slug(self.title)


def slug(text: str) -> str:
    """A name for links and files.

    >>> slug("Case 1: equal / all")
    'case-1-equal-all'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "run"


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as text."""
    specs: list[dict[str, Any]] = []
    body = "".join(_section(section, specs) for section in sections)
    entries = [(s.anchor, s.title) for s in sections]
    if len(sections) == 1:  # of one run: its parts
        entries = [(_part(sections[0], p), p.title) for p in sections[0].parts]
    contents = "".join(f'<li><a href="#{at}">{escape(text)}</a></li>' for at, text in entries)
    data = json.dumps(specs, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    library, code, style = _assets()
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (library, code))
    rules = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{style}</style>'
        f"</head><body><header><h1>{escape(title)}</h1>"
        '<button id="theme" class="no-print" type="button">Dark</button></header><main>'
        f'{lead}<nav aria-label="Contents"><ul class="contents">{contents}</ul></nav>{body}'
        "<noscript><p>The charts need JavaScript; the tables and texts do not.</p></noscript>"
        f"</main><footer><p>fedtaper {__version__}. This page is self-contained: "
        "it needs no network.</p></footer>"
        f'<script type="application/json" id="charts">{data}</script>'
        f'<script>{library}</script><script type="module">{code}</script></body></html>\n'
    )


def _section(section: Section, specs: list[dict[str, Any]]) -> str:
    parts = "".join(
        f'<h3 id="{_part(section, p)}">{escape(p.title)}</h3>{p.html}{_places(p.charts, specs)}'
        for p in section.parts
    )
    return (
        f'<section aria-labelledby="{section.anchor}"><h2 id="{section.anchor}">'
        f"{escape(section.title)}</h2>{section.html}{_places(section.charts, specs)}{parts}"
        "</section>"
    )


def _part(section: Section, part: Part) -> str:
    return f"{section.anchor}-{slug(part.title)}"


def _places(charts: Iterable[Chart], specs: list[dict[str, Any]]) -> str:
    found = []
    for chart in charts:
        found.append(f'<div data-chart="{len(specs)}"></div>')
        specs.append(chart.spec())
    return f'<div class="charts">{"".join(found)}</div>' if found else ""


@cache
def _assets() -> tuple[str, str, str]:
    """The chart library, our modules as one, and the style sheets."""
    library = (STATIC / "vendor/uPlot.iife.min.js").read_text(encoding="utf-8")
    modules = [(STATIC / name).read_text(encoding="utf-8") for name in ("charts.js", "report.js")]
    code = "\n".join(re.sub(r"^(import .*$|export )", "", m, flags=re.MULTILINE) for m in modules)
    sheets = ("vendor/uPlot.min.css", "style.css", "report.css")
    style = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in sheets)
    return library, code, style


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """An HTML table: columns of numbers are right-aligned, and so are their heads."""
    number = [
        all(_NUMBER.match(row[j]) or _FILLER.match(row[j]) for row in rows)
        and any(_NUMBER.match(row[j]) for row in rows)
        for j in range(len(head))
    ]

    def line(tag: str, cells: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        marks = [scope + (' class="n"' if one else "") for one in number]
        made = [f"<{tag}{m}>{escape(cell)}</{tag}>" for m, cell in zip(marks, cells, strict=True)]
        line = "".join(made)
        return f"<tr>{_OPTIMUM.sub(_UNBROKEN, line) if tag == 'th' else line}</tr>"

    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="table" role="group" aria-label="{escape(caption or head[0])}" tabindex="0">'
        f"<table>{top}<thead>{line('th', head)}</thead><tbody>{body}</tbody></table></div>"
    )


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """One paragraph per text."""
    mark = f' class="{kind}"' if kind else ""
    made = "".join(f"<p{mark}>{escape(text)}</p>" for text in texts)
    return _OPTIMUM.sub(_UNBROKEN, made.replace(" %", "\N{NO-BREAK SPACE}%"))


def folded(title: str, html: str) -> str:
    """A part of the page that is folded away."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def image(path: Path, caption: str) -> str:
    """A PNG inside the page, at about its printed size."""
    content = path.read_bytes()
    width = int.from_bytes(content[16:20], "big") * 11 // 20
    data, text = base64.b64encode(content).decode(), escape(caption)
    return (
        f'<figure class="picture"><img alt="{text}" src="data:image/png;base64,{data}" '
        f'width="{width}"><figcaption>{text}</figcaption></figure>'
    )
