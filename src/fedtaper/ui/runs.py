"""All runs of a folder, read again only if something changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtaper.storage.store import ARRAYS, CHECKPOINT, CONFIG, PROVENANCE
from fedtaper.ui import writers
from fedtaper.ui.folder import Tree
from fedtaper.ui.rows import Row, read_row

FILES = frozenset({ARRAYS, CHECKPOINT, PROVENANCE, writers.LOCK})
AT_MOST = 0.5  # seconds between two scans, however many pages ask
AT_ONCE = 0.35  # seconds that one look may spend on reading; the rest is read in the next


GOING = ("unfinished", "running")  # by whether a process writes it


class Runs:
    """The rows of a folder's runs. ``scan`` is fast, and faster if nothing changed."""

    def __init__(self, root: Path, ours: Callable[[str], bool] = lambda name: False) -> None:
        self.root, self.ours = root, ours
        self.rows: dict[str, Row] = {}
        self._folders: dict[str, str] = {}
        self._seen: dict[str, Any] = {}
        self._tree = Tree(root, FILES)
        self._scanned = -AT_MOST
        self._lock = threading.Lock()
        self._changed: dict[str, int] = {}  # the version in which a row was last another one
        self.version = 0

    def scan(self, seconds: float = AT_ONCE, again: bool = False) -> None:
        """Bring the rows up to date; ``again`` even if that was done just now."""
        with self._lock:
            now = time.monotonic()
            if now - self._scanned < AT_MOST and not again and not self.waiting:
                return  # another page has just asked
            before = dict(self.rows)
            self._look_around()
            self._read(now + seconds)
            self._scanned = time.monotonic()
            names = before.keys() | self.rows.keys()
            other = [n for n in names if before.get(n) != self.rows.get(n)]
            self.version += bool(other)
            self._changed |= dict.fromkeys(other, self.version)

    def changes(self, since: int) -> tuple[int, dict[str, Row | None]]:
        """The version, and what changed after ``since``: None for a run that is gone."""
        with self._lock:
            names = [name for name, version in self._changed.items() if version > since]
            return self.version, {name: self.rows.get(name) for name in names}

    def listed(self) -> list[Row]:
        """Live runs first, then the newest."""
        return sorted(self.rows.values(), key=lambda r: (not r.live, -r.when, r.id))

    @property
    def waiting(self) -> bool:
        """Whether some rows have not been read yet."""
        return any(not row.read for row in self.rows.values())

    @property
    def busy(self) -> bool:
        """Whether any run is running."""
        return any(row.live for row in self.rows.values())

    def _look_around(self) -> None:
        self._folders = self._tree.holders()
        for name in set(self.rows) - set(self._folders):
            self.rows.pop(name)
            self._seen.pop(name, None)
        for name, folder in self._folders.items():
            if name not in self.rows and _is_run(folder):
                now = mark(folder)
                self.rows[name] = Row(name, "finished" if now[2] else "unfinished", now[0] / 1e9)

    def _read(self, until: float) -> None:
        locks = writers.held() if any(r.state in GOING for r in self.rows.values()) else None
        order = sorted(self.rows.values(), key=lambda r: (r.read, not r.live, -r.when))
        for row in order:
            folder = self._folders[row.id]
            now = mark(folder)
            if self._seen.get(row.id) != now and time.monotonic() < until:
                row = read_row(row.id, Path(folder), now[0] / 1e9)
                self._seen[row.id] = now
            if row.state in GOING:
                live = self.ours(row.id) or writers.holder(Path(folder), locks) is not None
                row = replace(row, live=live, state=GOING[live])
            self.rows[row.id] = row


def mark(folder: str) -> tuple[int, ...]:
    """Changes whenever a run's files do: files are moved into their place, or grow."""
    out = []
    for path in (folder, _file(folder, ARRAYS), _file(folder, CHECKPOINT)):
        try:
            found = os.stat(path)  # noqa: PTH116 - called for every run
            out += [found.st_mtime_ns, found.st_size]
        except OSError:
            out += [0, 0]
        if len(out) == 4 and out[2]:
            break  # a finished run has no other file that counts
    return tuple(out)


def _file(folder: str, name: str) -> str:
    return f"{folder}{os.sep}{name}"


def _is_run(folder: str) -> bool:
    """Whether the folder is that of a run: a claims or data folder may have provenance, too."""
    names = (ARRAYS, CHECKPOINT, CONFIG, writers.LOCK)
    return any(Path(folder, name).exists() for name in names)
