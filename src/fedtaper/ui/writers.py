"""Which process is writing a run folder: the one that holds its lock."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from fedtaper.storage.durable import LOCK

LOCKS = Path("/proc/locks")
FRESH = 45.0  # seconds: where the system lists no locks, a folder this fresh counts as live


def holder(folder: Path, listed: dict[tuple[int, int, int], int] | None) -> int | None:
    """The process that holds the folder's lock; 0 if it is not known which; None if none.

    Some file systems list their locks under a different device than their files.
    """
    try:
        found = (folder / LOCK).stat()
    except OSError:
        return None
    if listed is None:
        return 0 if time.time() - folder.stat().st_mtime < FRESH else None
    place = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    if place in listed:
        return listed[place]
    return 0 if any(inode == found.st_ino for _, _, inode in listed) else None


def held() -> dict[tuple[int, int, int], int] | None:
    """Every lock on this machine: device and file to process; None if they are not listed."""
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    out = {}
    for line in lines:
        words = line.split()
        with suppress(ValueError, IndexError):
            if words[1] == "FLOCK":
                major, minor, inode = words[5].split(":")
                out[int(major, 16), int(minor, 16), int(inode)] = int(words[4])
    return out
