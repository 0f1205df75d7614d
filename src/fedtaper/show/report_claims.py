"""The claims that ``fedtaper reproduce`` judged, as sections of a page."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.core.tables import capital
from fedtaper.show.labels import number
from fedtaper.show.report_page import Section, folded, image, paragraphs, table
from fedtaper.storage.loading import CLAIMS

ITSELF = ("the setting itself", "this one", "the paper's own setting")  # nothing to add


def sections(folder: Path) -> list[Section]:
    """An overview, and one section per claim."""
    try:
        page = json.loads((folder / CLAIMS).read_text(encoding="utf-8"))
        claims = page["claims"]
        rows = [[c["id"], c["statement"], c["verdict"]] for c in claims]
        overview = table(["claim", "statement", "verdict"], rows)
        left = [one for one in page.get("wanted", []) if one not in {c["id"] for c in claims}]
        overview += _missing(left)
        found = [_claim(c, folder) for c in claims]
        notes = escape(json.dumps(page.get("provenance", {}), indent=2))
    except Exception as problem:  # a damaged file may lead to any error
        raise FedtaperError(f"{folder / CLAIMS} is damaged: {one_line(problem)}") from None
    overview += folded("Provenance", f"<pre tabindex='0'>{notes}</pre>")
    return [Section("The paper's claims", overview), *found]


def _missing(claims: list[str]) -> str:
    if not claims:
        return ""
    return (
        f"<p><b>Not judged yet:</b> {escape(', '.join(claims))}. The study stopped before them; "
        "continue it with <code>fedtaper reproduce --resume</code>.</p>"
    )


def _claim(c: dict[str, Any], folder: Path) -> Section:
    kind = "good" if c["verdict"] == "reproduced" else "other"
    rows = [
        [n["name"], number(n["value"]), number(n["low"]), number(n["high"]), n["threshold"],
         "yes" if n["passed"] else "no"]
        for n in c["numbers"]
    ]  # fmt: skip
    deciding = table(["measured", "value", "from", "to", "required", "met"], rows) if rows else ""
    pictures = "".join(
        image(folder / name, name) for name in c["figures"] if _is_own_figure(folder, name)
    )
    what, text = beside(c)
    said = f"<p><b>{what}:</b> {escape(text)}.</p>" if text else ""
    return Section(
        c["id"],
        f"<p class={kind}>{escape(c['verdict'])}</p>"
        f"{paragraphs([c['statement'], capital(c['summary'])])}"
        f"{said}{pictures}"
        + folded(
            "Deciding numbers",
            f"<p>{escape(c['measure'])} <b>Refuted by:</b> {escape(c['refuted_by'])}</p>{deciding}",
        ),
    )


def beside(claim: dict[str, Any]) -> tuple[str, str]:
    """What is said of settings: the nearest that shows a claim, or a note on one that is shown."""
    text = str(claim.get("nearest", ""))
    if claim.get("verdict") == "reproduced":
        return "Note", "" if text in ITSELF else text
    return "Nearest setting that shows it", text


def _is_own_figure(folder: Path, name: Any) -> bool:
    """Whether a name is that of a PNG in the folder itself: not a link to a file elsewhere."""
    if not isinstance(name, str) or Path(name).name != name:
        return False
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89PNG\r\n\x1a\n"
