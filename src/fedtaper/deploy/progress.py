"""The progress of a deployed run: one line, in the server's log and in a file of its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.simulation.recorder import WATCHED
from fedtaper.storage import store

PROGRESS = "progress.txt"
ASIDE = ("answered", "seconds", "change")  # shown only if nothing else measures the model
STOPPED = "stopped: "


def print_line(text: str) -> None:
    """Print a line at once, for the server's log."""
    print(text, flush=True)


class Progress:
    """Prints each line once, and keeps the last one in the run folder for a rehearsal.

    With a ``bar``, which shows the rounds already, they are not printed as well.
    """

    def __init__(
        self,
        out: Path | None,
        rounds: int = 0,
        say: Callable[[str], None] = print_line,
        bar: bool = False,
    ) -> None:
        self.out, self.rounds, self.said = out, rounds, ""
        self.say, self.bar = say, bar

    def __call__(self, line: str, shown: bool = False) -> None:
        """Print a new line, unless it is ``shown`` in another way."""
        if line == self.said:
            return
        self.said = line
        if not shown:
            self.say(line)
        if self.out is not None:
            store.write_text(self.out / PROGRESS, line + "\n")

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Report a complete round."""
        self(round_line(number, self.rounds, values), shown=self.bar)

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
    own = [name for name in values if name not in ASIDE]
    name = next((name for name in WATCHED if name in own), own[0] if own else "change")
    if name in values:
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
