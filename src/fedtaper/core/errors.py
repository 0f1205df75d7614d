"""What can go wrong, as types: a user's mistake, and a broken assumption."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


class FedtaperError(ValueError):
    """A mistake that the user can fix; its text says what is wrong and where, in one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split("\n"))  # an array's repr has many


class OwnCodeError(FedtaperError):
    """The user's own code failed during a run: which part, at which client, in which round.

    Attributes:
        part: "loss", "evaluate", "data set", "gradient", "local rule" or "callback".
        client: the client's name, or None if it concerns no single client.
        round: the round, counted from 1, or None if it failed outside a round.
        run: the rounds completed before the failure, as a Run, or None if there are none.
    """

    def __init__(
        self, part: str, text: str, client: str | None = None, round_: int | None = None
    ) -> None:
        super().__init__(part, text, client, round_)
        self.part, self.text, self.client, self.round = part, text, client, round_
        self.after = ""  # what became of the rounds made, in words
        self.run: Any = None

    def __str__(self) -> str:
        where = [] if self.round is None else [f"round {self.round}"]
        where += [] if self.client is None else [self.client]
        head = f"{', '.join(where)}: " if where else ""
        return " ".join(f"{head}{self.text}{self.after}".split())


def one_line(trouble: BaseException, length: int = 200) -> str:
    """An exception in one short line.

    >>> one_line(KeyError())
    'KeyError'
    """
    # errors of the system have words of their own, others do not
    text = getattr(trouble, "strerror", None) or str(trouble) or type(trouble).__name__
    return " ".join(str(text).split())[:length]


@contextmanager
def own_code(part: str, client: str | None = None, round_: int | None = None) -> Iterator[None]:
    """Whatever the user's code raises inside becomes an error that names the part and the place."""
    try:
        yield
    except MemoryError:
        raise
    except OwnCodeError as trouble:
        raise OwnCodeError(
            trouble.part, trouble.text, client or trouble.client, trouble.round or round_
        ) from trouble.__cause__ or trouble
    except FedtaperError as trouble:
        raise OwnCodeError(part, str(trouble), client, round_) from trouble
    except Exception as trouble:
        text = f"{part} failed ({type(trouble).__name__}: {trouble})"
        raise OwnCodeError(part, text, client, round_) from trouble


class FedtaperWarning(UserWarning):
    """Something that runs, but may not behave as expected."""


class AssumptionWarning(FedtaperWarning):
    """An assumption (A1 to A5) of the convergence theorem does not hold."""


class StabilityWarning(FedtaperWarning):
    """A step size is too large for the curvature it meets."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'rounds'?``, or nothing.

    >>> nearest("ronuds", ["rounds", "seed"])
    "; did you mean 'rounds'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def warn(text: str, kind: type[FedtaperWarning] = FedtaperWarning) -> None:
    """Warn at the line of the user's own code that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def _ours(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("fedtaper", "contextlib", "functools")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses, such as a folder that is not there, becomes an error in one line."""
    try:
        yield
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be written: {trouble.strerror or trouble}") from None


@contextmanager
def quietly() -> Iterator[None]:
    """Silence fedtaper's own warnings inside: they were given when the object was first made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        yield
