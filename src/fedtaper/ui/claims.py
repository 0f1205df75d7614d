"""Judged claims in the folder: the ledger, and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.core.tables import capital
from fedtaper.show.report_claims import beside
from fedtaper.storage.loading import CLAIMS
from fedtaper.ui.folder import Tree, inside

KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
LARGEST = 20 * 2**20  # bytes of a figure
TEXTS = ("id", "statement", "verdict", "summary", "measure", "refuted_by", "nearest")


def ledgers(root: Path) -> list[dict[str, Any]]:
    """Every folder with claims, by name; a damaged one is marked."""
    found = Tree(root, frozenset({CLAIMS})).holders()
    return [_ledger(name, Path(folder)) for name, folder in sorted(found.items())]


def _ledger(name: str, folder: Path) -> dict[str, Any]:
    out: dict[str, Any] = {"folder": name, "claims": [], "command": "", "trouble": ""}
    try:
        page = json.loads((folder / CLAIMS).read_text(encoding="utf-8"))
        out["command"] = str(page.get("provenance", {}).get("command", ""))
        out["claims"] = [_claim(row) for row in page["claims"]]
    except Exception as trouble:  # a damaged file may lead to any error
        out["trouble"] = one_line(trouble)
    return out


def _claim(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {name: str(row.get(name, "")) for name in TEXTS}
    out["summary"] = capital(out["summary"])
    out["beside"] = beside(out)
    out["seconds"] = row.get("seconds")
    out["figures"] = [str(f) for f in row.get("figures", []) if Path(str(f)).suffix in KINDS]
    names = ("name", "value", "low", "high", "threshold", "passed")
    out["numbers"] = [{n: check.get(n) for n in names} for check in row.get("numbers", [])]
    return out


def figure(root: Path, folder: str, name: str) -> tuple[bytes, str]:
    """A figure's bytes and kind, if a claim of that folder lists it."""
    place = inside(root, folder)
    listed = {f for claim in _ledger(folder, place)["claims"] for f in claim["figures"]}
    path = inside(root, name if folder == "." else f"{folder}/{name}")
    if name not in listed or not path.is_file():
        raise FedtaperError(f"{folder} has no figure {name}")
    if path.stat().st_size > LARGEST:
        raise FedtaperError(f"{name} is too large to show")
    return path.read_bytes(), KINDS[path.suffix]
