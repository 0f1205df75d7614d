"""Ends a rehearsal's processes when the program that started them has ended in any way.

Run as a separate program, ``python keeper.py MARK``, with a pipe as its input: when the other
end of the pipe closes, every process whose environment contains MARK is ended. A program that is
killed cannot clean up after itself, but its pipes are closed. Only the standard library is
imported here: this starts fast, and survives a broken installation.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 5.0  # seconds between asking politely and not


def marked(mark: str) -> set[int]:
    """This user's processes whose environment has that entry."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found - {os.getpid()}


def descendants(pid: int) -> set[int]:
    """Children of a process, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    queue = [pid]
    while queue:
        new = [child for child in parents.get(queue.pop(), []) if child not in found]
        found.update(new)
        queue += new
    return found


def signal_all(pids: set[int], number: int) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_marked(mark: str, patience: float = PATIENCE) -> None:
    """End every process with that mark: first with SIGTERM, then with SIGKILL."""
    signal_all(marked(mark), signal.SIGTERM)
    end = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    signal_all(left, signal.SIGKILL)


def main() -> None:
    """Wait for the end of the input, then end the marked processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
