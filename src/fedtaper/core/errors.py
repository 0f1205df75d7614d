"""What can go wrong, as types: a user's mistake, and a broken assumption."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FedtaperError(ValueError):
    """A mistake that the user can mend; its text says what, where and how."""


class FedtaperWarning(UserWarning):
    """Something that runs, but perhaps not as hoped."""


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
    """Warn at the caller's caller's line, where the user's own code usually is."""
    warnings.warn(text, kind, stacklevel=3)


@contextmanager
def quietly() -> Iterator[None]:
    """No warnings of ours inside: what is made again was warned about before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedtaperWarning)
        yield
