"""The folder that the page shows: what is in it, and nothing outside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedtaper.core.errors import FedtaperError

DEEP = 3  # levels of folders within folders that are looked at
MOST = 20_000  # folders that are looked at
SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv"}


def inside(root: Path, name: str) -> Path:
    """The path of ``name`` within ``root``; refused if it leads out of it."""
    parts = name.split("/")
    if name != "." and (
        "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts)
    ):
        raise FedtaperError(f"{name!r} is not a valid name in the folder")
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise FedtaperError(f"{name!r} is outside the folder")
    return path


@dataclass(frozen=True)
class _Seen:
    """A folder at some time: the folders in it, and the wanted files."""

    changed: int
    below: tuple[str, ...]
    files: frozenset[str]


class Tree:
    """Folders that hold one of these files. Unchanged folders are not listed again.

    Hidden folders and symbolic links are skipped.
    """

    def __init__(self, root: Path, files: frozenset[str]) -> None:
        self.root, self.files = str(root), files
        self._seen: dict[str, _Seen] = {}

    def holders(self) -> dict[str, str]:
        """Name within the root (the root may be one too) to path."""
        left = [(self.root, 0)]
        seen: dict[str, _Seen] = {}
        out = {}
        while left and len(seen) < MOST:
            path, depth = left.pop()
            found = self._look(path)
            if found is None:
                continue
            seen[path] = found
            if found.files:
                out[path[len(self.root) + 1 :].replace(os.sep, "/") or "."] = path
            if depth < DEEP:
                left += [(below, depth + 1) for below in found.below]
        self._seen = seen
        return out

    def _look(self, path: str) -> _Seen | None:
        known = self._seen.get(path)
        try:
            changed = os.stat(path).st_mtime_ns  # noqa: PTH116 - called for every folder
            if known is not None and known.changed == changed:
                return known
            with os.scandir(path) as entries:
                found = list(entries)
        except OSError:
            return None
        below = tuple(entry.path for entry in found if _wanted(entry))
        return _Seen(changed, below, frozenset(e.name for e in found) & self.files)


def _wanted(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in SKIPPED:
        return False
    return entry.is_dir(follow_symlinks=False)
