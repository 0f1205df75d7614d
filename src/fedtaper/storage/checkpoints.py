"""Checkpoints: the state of an unfinished run, the last one and the one before it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, one_line, warn
from fedtaper.storage import durable

CHECKPOINT, PREVIOUS = "checkpoint.npz", "checkpoint.previous.npz"
NEEDED = (
    "state_round",
    "state_w",
    "seconds",
    "seeds",
    "round",
    "dead_round",
    "dead_client",
    "norms",
)


def save_checkpoint(
    out: str | Path,
    values: dict[str, Any],
    fingerprint: dict[str, Any] | None = None,
    failed: str | None = None,
) -> None:
    """Write the state of a run; the checkpoint before it is kept.

    ``failed`` names the part of the user's code that ended the run: that part may be fixed.
    """
    path = Path(out) / CHECKPOINT
    beside = path.with_name(f".{CHECKPOINT}.new{durable.PART}")
    notes = {"fingerprint": fingerprint} | ({"failed": failed} if failed else {})
    durable.write_arrays(beside, values, notes)
    try:
        if path.is_file():
            path.replace(path.with_name(PREVIOUS))
        beside.replace(path)
        durable.settle(path.parent)
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be written: {one_line(trouble)}") from None


def load_checkpoint(out: str | Path) -> dict[str, Any] | None:
    """What :func:`save_checkpoint` wrote last, or None; with its "fingerprint", if it has one.

    If the last one is damaged, the one before it is used, with a warning.
    """
    troubles = []
    for name in (CHECKPOINT, PREVIOUS):
        path = Path(out) / name
        if not path.is_file():
            continue
        try:
            found = _read(path)
        except FedtaperError as trouble:
            troubles.append(str(trouble))
            continue
        if troubles:
            warn(f"{troubles[0]}; continuing from the checkpoint before it")
        return found
    if troubles:
        raise FedtaperError(
            f"{troubles[0]}; there is no other checkpoint: remove {out} and run again"
        )
    return None


def _read(path: Path) -> dict[str, Any]:
    values, notes = durable.read_arrays(path)
    for name in NEEDED:
        if name not in values:
            raise FedtaperError(f"{path} is damaged: it has no {name}")
    _shapes(values, path)
    about = notes or {}
    return values | {"fingerprint": about.get("fingerprint"), "failed": about.get("failed")}


def _shapes(values: dict[str, Any], path: Path) -> None:
    """Refuse arrays that do not fit together: a checkpoint may come from anywhere."""
    seeds = values["seeds"].shape[0] if values["seeds"].ndim == 1 else -1
    norms, rounds = values["norms"], values["round"]
    fits = norms.ndim == 3 and norms.shape[0] == seeds and rounds.ndim == 1
    fits = fits and norms.shape[1] <= rounds.shape[0] and values["state_round"].ndim == 0
    fits = fits and values["state_w"].ndim == 2 and values["state_w"].shape[0] == seeds
    for name, array in values.items():
        if name.startswith("memory_"):
            fits = fits and array.shape[:1] == (seeds,)
        if name.startswith("metric_") or name in ("w", "updates"):
            fits = fits and array.shape[:2] == norms.shape[:2]
        if name.startswith("dead_"):
            fits = fits and array.shape == (seeds,)
    if not fits:
        raise FedtaperError(f"{path} is damaged: its arrays do not fit together")


class Checkpoints:
    """Writes checkpoints, in the background if wanted: one at a time, the last one completely."""

    def __init__(self, out: str | Path | None, fingerprint: dict[str, Any] | None = None) -> None:
        self.out = out
        self.fingerprint = fingerprint
        self.writer: threading.Thread | None = None
        self.waiting: dict[str, Any] | None = None  # the next to be written
        self.failed: str | None = None
        self.trouble: BaseException | None = None
        self.lock = threading.Lock()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, *trouble: object) -> None:
        self._wait(quiet=kind is not None)

    def save(self, values: dict[str, Any], behind: bool = False, failed: str | None = None) -> None:
        """Write; with ``behind`` in the background, so the arrays must not change from then on.

        If the disk is slower than the work, a checkpoint that still waits is skipped in favour
        of the next.
        """
        if self.out is None:
            return
        self._raise()
        with self.lock:
            self.waiting, self.failed = values, failed
            if self.writer is None:
                self.writer = threading.Thread(target=self._write, args=(self.out,))
                self.writer.start()
        if not behind:
            self._wait()

    def _write(self, out: str | Path) -> None:
        while True:
            with self.lock:
                values, self.waiting, failed = self.waiting, None, self.failed
                if values is None:
                    self.writer = None
                    return
            try:
                save_checkpoint(out, values, self.fingerprint, failed)
            except BaseException as trouble:  # raised again where the work goes on
                self.trouble = trouble

    def _wait(self, quiet: bool = False) -> None:
        writer = self.writer
        if writer is not None:
            writer.join()
        self._raise(quiet)

    def _raise(self, quiet: bool = False) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None and not quiet:
            raise trouble
