"""Runs that were started from the page: separate processes, so that they outlive it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.storage.config import from_toml
from fedtaper.storage.store import ARRAYS, CHECKPOINT, CONFIG, write_text
from fedtaper.ui import writers
from fedtaper.ui.folder import inside

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MOST = 8  # runs at once
TAIL = 2000  # characters of a run's output that are shown


class Jobs:
    """Starts ``fedtaper run`` in the folder, stops it as Ctrl-C does, and resumes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def alive(self, name: str) -> bool:
        """Whether a process that was started here is working on that run."""
        job = self._running.get(name)
        return job is not None and job.poll() is None

    def start(self, name: str, text: str, seeds: int | None = None) -> str:
        """Run what a TOML text describes, as ``name`` or a free name like it; returns the name."""
        if not NAME.fullmatch(name):
            raise FedtaperError("a run's name must consist of letters, digits, dots and hyphens")
        from_toml(text, folder=self.root)  # refused here rather than in a log file
        if seeds is not None and not 1 <= seeds <= 1000:
            raise FedtaperError(f"seeds must be a whole number from 1 to 1000, not {seeds}")
        with self._lock:
            free = self._free(name)
            file = self.root / f"{free}.toml"
            write_text(file, text)
            more = [] if seeds is None else ["--seeds", str(seeds)]
            self._spawn(free, [str(file), "--out", str(self.root / free), *more])
        return free

    def resume(self, name: str) -> None:
        """Resume a stopped run, with the seeds and the thinning that it was started with."""
        folder = inside(self.root, name)
        if self.alive(name) or writers.holder(folder, writers.held()) is not None:
            raise FedtaperError(f"{name} is already running")
        if (folder / ARRAYS).is_file() or not (folder / CHECKPOINT).is_file():
            raise FedtaperError(f"{name} is not an unfinished run")
        file = self.settings(name)
        with self._lock:
            more = [*_flags(folder / CHECKPOINT), "--resume"]
            self._spawn(name, [str(file), "--out", str(folder), *more])

    def settings(self, name: str) -> Path:
        """The file that a run was made from: its own settings, or the file beside it."""
        folder = inside(self.root, name)
        for path in (folder / CONFIG, folder.with_name(f"{folder.name}.toml")):
            if path.is_file():
                return path
        raise FedtaperError(
            f"{name} has no settings to resume from: resume it where it was started"
        )

    def stop(self, name: str) -> None:
        """Ask a run to stop, as Ctrl-C does: it writes a checkpoint first."""
        folder = inside(self.root, name)
        job = self._running.get(name)
        if job is not None and job.poll() is None:
            job.send_signal(signal.SIGINT)
            return
        pid = writers.holder(folder, writers.held())
        if not pid or pid == os.getpid():
            raise FedtaperError(f"{name} is not running here")
        try:
            os.kill(pid, signal.SIGINT)
        except OSError as trouble:
            raise FedtaperError(f"{name} cannot be stopped: {trouble.strerror}") from None

    def said(self, name: str) -> str:
        """The end of the output of a run that was started here."""
        if name not in self._running:
            return ""
        with suppress(OSError):
            return self._log(name).read_text(errors="replace")[-TAIL:]
        return ""

    def failed(self) -> dict[str, str]:
        """Runs that were started here and ended with an error, with its last line."""
        out = {}
        for name, job in self._running.items():
            if job.poll() not in (None, 0, 1, 130):  # 1: diverged, and stored
                lines = self.said(name).strip().splitlines()
                out[name] = lines[-1][:300] if lines else f"ended with code {job.returncode}"
        return out

    def _free(self, name: str) -> str:
        for number in range(1, 10_000):
            found = name if number == 1 else f"{name}-{number}"
            if not any((self.root / f"{found}{end}").exists() for end in ("", ".toml")):
                return found
        raise FedtaperError(f"there are too many runs named {name}: choose another name")

    def _log(self, name: str) -> Path:
        folder = inside(self.root, name)
        return folder.with_name(f".{folder.name}.log")

    def _spawn(self, name: str, words: list[str]) -> None:
        if sum(self.alive(other) for other in self._running) >= MOST:
            raise FedtaperError(f"{MOST} runs are already running: wait for one of them to end")
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedtaper", "run", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal ends the page, not the runs
            )


def _flags(path: Path) -> list[str]:
    """The options with which a stopped run was started, from its checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            seeds, rounds = saved["seeds"], saved["round"]
            updates = "updates" in saved.files
    except Exception as trouble:  # a damaged archive may lead to any error
        said = one_line(trouble)
        raise FedtaperError(f"its checkpoint cannot be read: {said}") from None
    flags = ["--updates"] if updates else []
    if len(seeds) > 1:
        if not np.array_equal(seeds, np.arange(len(seeds))):
            raise FedtaperError("its seeds are not 0, 1, 2, ...: resume it from Python")
        flags += ["--seeds", str(len(seeds))]
    if rounds[0] > 1:
        flags += ["--thin", str(int(rounds[0]))]
    return flags
