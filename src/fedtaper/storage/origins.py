"""Which table of a file a problem was made from: what the user's own function returns does not say.

Kept beside the problem, by identity, so that a problem may be of any class.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

_TABLES: dict[int, dict[str, Any]] = {}


def remember(problem: Any, table: Mapping[str, Any]) -> None:
    """Keep the table: the import path of a function as ``kind``, and its arguments."""
    try:
        weakref.finalize(problem, _TABLES.pop, id(problem), None)
    except TypeError:  # the user's class has slots, so nobody could tell when the object is gone
        return
    _TABLES[id(problem)] = dict(table)


def origin(problem: Any) -> dict[str, Any] | None:
    """The table that a problem was made from, if that was a function named in a file.

    >>> origin("anything else") is None
    True
    """
    found = _TABLES.get(id(problem))
    return None if found is None else dict(found)
