"""Processes that are always cleaned up: each leads a process group with known descendants."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy import keeper
from fedtaper.deploy.keeper import descendants, signal_all

__all__ = ["descendants"]


def start(
    command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in its own group, with its output in a file."""
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
    """End a process with all its descendants: first with SIGTERM, then with SIGKILL."""
    members = {process.pid, *descendants(process.pid)}
    signal_all(members, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)
    signal_all(members | descendants(process.pid), signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)


class Keeper:
    """A process that ends all processes with a mark in their environment when this one ends."""

    def __init__(self, mark: str) -> None:
        command = [sys.executable, "-S", "-E", keeper.__file__, mark]
        kept = {name: value for name, value in os.environ.items() if f"{name}={value}" != mark}
        self.mark = mark
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=kept, start_new_session=True
        )

    def close(self) -> None:
        """End them now."""
        keeper.end_marked(self.mark)
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2 * keeper.PATIENCE)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process with all its descendants at once (SIGKILL)."""
    signal_all({process.pid, *descendants(process.pid)}, signal.SIGKILL)
    process.wait(timeout=10)


def command_line(pid: int) -> str:
    """A process's command."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nothing listens now."""
    holds = [socket.socket() for _ in range(count)]
    try:
        for hold in holds:
            hold.bind(("127.0.0.1", 0))
        return [hold.getsockname()[1] for hold in holds]
    finally:
        for hold in holds:
            hold.close()


def is_free(port: int) -> bool:
    """Whether the port is free to listen on."""
    with socket.socket() as probe, suppress(OSError, OverflowError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_for_port(port: int, process: subprocess.Popen[Any], log: Path, seconds: float) -> None:
    """Wait until something listens on the port."""
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
