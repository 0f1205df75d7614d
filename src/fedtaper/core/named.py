"""Clients by their names, in rules and constraints that a user writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

_AFTER = r"(?= counts |'s loss |’s loss | (?:is |stays )?below | from \d| to \d)"


def numbered(text: str, names: Sequence[str] | None) -> str:
    r"""A rule about a client by its name, which may be quoted, as one about its number.

    >>> numbered("South counts 3x", ("north", "south"))
    'client 1 counts 3x'
    >>> numbered('fade "St. Mary\'s" to 30% by round 80', ("St. Mary's", "west"))
    'fade client 0 to 30% by round 80'
    """
    if not names:
        return text
    longest = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found = re.match(rf"\s*(fade |the )?([\"“']?)({longest})[\"”']?{_AFTER}", text, re.IGNORECASE)
    if found is None:
        return text
    same = [i for i, name in enumerate(names) if name == found[3]]
    alike = [i for i, name in enumerate(names) if name.casefold() == found[3].casefold()]
    verb = "fade " if (found[1] or "").lower() == "fade " else ""
    return f"{verb}client {(same or alike)[0]}{text[found.end() :]}"


def known_names(names: Sequence[str] | None) -> str:
    """The names, for the end of an error; nothing without any."""
    if not names:
        return ""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"; the clients are {', '.join(names[:6])}{more}"
