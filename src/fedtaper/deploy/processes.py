"""Processes that are always cleaned up: each leads a group, and its descendants are known."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError


def start(
    command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """A process in a group of its own, its output in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[Any], patience: float = 5.0) -> None:
    """End a process with all its descendants: politely, then not."""
    members = {process.pid, *descendants(process.pid)}
    _signal(members, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)
    _signal(members | descendants(process.pid), signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill -9 a process with all its descendants at once."""
    _signal({process.pid, *descendants(process.pid)}, signal.SIGKILL)
    process.wait(timeout=10)


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


def command_line(pid: int) -> str:
    """A process's command."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now."""
    holds = [socket.socket() for _ in range(count)]
    try:
        for hold in holds:
            hold.bind(("127.0.0.1", 0))
        return [hold.getsockname()[1] for hold in holds]
    finally:
        for hold in holds:
            hold.close()


def is_free(port: int) -> bool:
    """Whether one can listen there."""
    with socket.socket() as probe, suppress(OSError, OverflowError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_for_port(port: int, process: subprocess.Popen[Any], log: Path, seconds: float) -> None:
    """Until something listens there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise FedtaperError(f"{process.args!r:.80} ended: {tail(log)}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise FedtaperError(f"nothing listens on port {port} after {seconds:g} s: {tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return "\n".join(text.splitlines()[-lines:])


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
