"""The progress of a deployed run: one line, in the server's log and in a file of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.storage import store

PROGRESS = "progress.txt"
SHOWN = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")  # the first that is there
STOPPED = "stopped: "


class Progress:
    """Prints each line once, and keeps the last one in the run folder for a rehearsal."""

    def __init__(self, out: Path | None, rounds: int = 0) -> None:
        self.out, self.rounds, self.said = out, rounds, ""

    def __call__(self, line: str) -> None:
        """Print a new line."""
        if line == self.said:
            return
        self.said = line
        print(line, flush=True)
        if self.out is not None:
            store.write_text(self.out / PROGRESS, line + "\n")

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Report a complete round."""
        self(round_line(number, self.rounds, values))

    def stopped(self, trouble: BaseException) -> None:
        """Report that the run ended before its last round."""
        text = str(trouble) if isinstance(trouble, FedtaperError) else repr(trouble)
        self(STOPPED + " ".join(text.split()))


def round_line(number: int, rounds: int, values: Mapping[str, float]) -> str:
    """A round as one line.

    >>> round_line(3, 5, {"answered": 3, "test_accuracy": 0.8214, "train_loss": 0.6})
    'round 3/5, 3 answered, test accuracy 0.821'
    """
    parts = [f"round {number}/{rounds}"]
    if "answered" in values:
        parts.append(f"{values['answered']:.0f} answered")
    name = next((name for name in SHOWN if name in values), None)
    if name is not None:
        parts.append(f"{name.replace('_', ' ')} {values[name]:.3g}")
    return ", ".join(parts)


def last_line(out: Path) -> str:
    """The last line in that run folder, if there is one."""
    with suppress(OSError):
        return (out / PROGRESS).read_text(encoding="utf-8").strip()
    return ""


def why_stopped(out: Path) -> str:
    """Why the run in that folder ended, if that was reported."""
    line = last_line(out)
    return line.removeprefix(STOPPED) if line.startswith(STOPPED) else ""
