"""The files of the page, by the names under which it asks for them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
SHARED = ("charts.js", "style.css", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")


@cache
def pages() -> dict[str, tuple[bytes, str]]:
    """Contents and kind of every file; the charts are the report's."""
    own = files("fedtaper.ui") / "static"
    found = {entry.name: entry.read_bytes() for entry in own.iterdir() if entry.is_file()}
    shared = files("fedtaper.show") / "static"
    found |= {name: shared.joinpath(*name.split("/")).read_bytes() for name in SHARED}
    kinds = {name: KINDS.get(name[name.rfind(".") :]) for name in found}
    return {name: (found[name], kind) for name, kind in kinds.items() if kind is not None}
