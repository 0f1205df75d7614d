"""Single fields of what a site sends: each of the right type and in range, or a fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST = 200  # characters of a site's words that are repeated


class FaultError(Exception):
    """Why an answer does not count, in words."""


def shown(what: Any, longest: int = LONGEST) -> str:
    r"""Text from elsewhere, for a log or a terminal: one line, short, printable characters only.

    >>> shown("all\x1b[31m red\nand more")
    'all [31m red and more'
    """
    text = what if isinstance(what, str) else repr(what)
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * longest]).split())
    return line if len(line) <= longest else line[:longest] + "..."


def mapping(record: Any) -> dict[str, Any]:
    """A record as a dictionary."""
    try:
        return {str(name): value for name, value in dict(record).items()}
    except (TypeError, ValueError) as trouble:
        raise FaultError(f"a part is malformed: {shown(str(trouble))}") from None


def whole_number(found: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number in a range."""
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FaultError(
            f"its {name} is {shown(value)}, not a whole number from {low:,} to {high:,}"
        )
    return value


def number(found: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """A finite number in a range."""
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FaultError(f"its {name} is {shown(value)}, not a number")
    if not (math.isfinite(value) and low <= value <= high):
        raise FaultError(f"its {name} is {value:g}, not from {low:g} to {high:g}")
    return float(value)


def word(found: Mapping[str, Any], name: str) -> str:
    """A string."""
    value = found.get(name)
    if not isinstance(value, str):
        raise FaultError(f"its {name} is {shown(value)}, not text")
    return value
