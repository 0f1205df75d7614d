"""``claims.json``: the rows of the claims judged so far, one folder for all of them.

A later study in the same folder replaces the rows of the claims that it judges and keeps the
others. Each row says with which seeds, options and version it was made; the file also lists the
claims that were asked for, so that a reader sees which are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.storage import durable, store
from fedtaper.storage.loading import CLAIMS

NEEDED = {"id": str, "verdict": str, "summary": str, "seconds": int | float}
Row = dict[str, Any]


def read(folder: Path) -> dict[str, Any]:
    """The file's contents, or those of an empty one."""
    path = folder / CLAIMS
    if not path.is_file():
        return {"provenance": {}, "claims": [], "wanted": []}
    try:
        page = json.loads(durable.text_of(path))
        for row in page["claims"]:
            if not all(isinstance(row[name], kind) for name, kind in NEEDED.items()):
                raise ValueError(f"a claim needs {', '.join(NEEDED)}")
        if not all(isinstance(one, str) for one in page.get("wanted", [])):
            raise ValueError("its list of wanted claims holds other things")
    except Exception as trouble:  # a damaged file may lead to any error
        raise FedtaperError(
            f"{path} is damaged ({one_line(trouble)}): move it away to judge its claims again"
        ) from None
    return {"wanted": [], **page}


def made_with(seeds: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a row depends on besides its claim."""
    found = store.environment()
    return {name: found[name] for name in ("fedtaper", "commit")} | {"seeds": seeds, **options}


def known(folder: Path, made: Mapping[str, Any]) -> dict[str, Row]:
    """The rows that were judged with the same seeds, options and version, by id."""
    return {row["id"]: row for row in read(folder)["claims"] if row.get("made") == made}


def write(
    folder: Path, rows: Iterable[Row], made: Mapping[str, Any], wanted: Sequence[str] = ()
) -> None:
    """Write rows to the file; those of other claims are kept."""
    page = read(folder)
    kept = {row["id"]: row for row in page["claims"]}
    kept |= {row["id"]: {**row, "made": dict(made)} for row in rows}
    asked = dict.fromkeys([*page["wanted"], *wanted, *kept])
    page = {
        "provenance": store.environment() | dict(made),
        "wanted": list(asked),
        "claims": list(kept.values()),
    }
    store.write_text(folder / CLAIMS, json.dumps(page, indent=2) + "\n")
