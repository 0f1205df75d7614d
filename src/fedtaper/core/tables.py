"""Tables of words and numbers, as plain text and as HTML for notebooks; records in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import numpy as np

Rows = Sequence[Sequence[str]]
SHOWN = 10  # numbers of an array that a line has room for


class Brief:
    """A dataclass whose repr is one line: of large arrays it shows the shape only.

    >>> from dataclasses import dataclass
    >>> @dataclass(repr=False)
    ... class Found(Brief):
    ...     n: float
    ...     p: np.ndarray
    ...     w: np.ndarray
    >>> Found(1e6, np.array([1, 0.12345678]), np.zeros((40, 3)))
    Found(n=1e+06, p=[1, 0.1235], w=array of 40 x 3)
    """

    def __repr__(self) -> str:
        record: Any = self  # a dataclass
        shown = [f"{f.name}={_brief(getattr(self, f.name))}" for f in fields(record) if f.repr]
        return f"{type(self).__name__}({', '.join(shown)})"


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, np.ndarray):
        text = repr(value)
        return text if len(text) <= 200 else text[:197] + "..."
    if value.ndim == 1 and value.size <= SHOWN and value.dtype.kind in "fiub":
        return f"[{', '.join(f'{x:.4g}' for x in value)}]"
    return f"array of {' x '.join(map(str, value.shape))}"


def plain(rows: Rows, left: bool = False) -> list[str]:
    """The table's lines, its columns aligned; the first row is the heading.

    >>> plain([["client", "p"], ["north", "0.5"]])
    ['client    p', ' north  0.5']
    """
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    place = str.ljust if left else str.rjust
    lines = ["  ".join(map(place, row, widths)) for row in rows]
    return [line.rstrip() for line in lines] if left else lines


def html(title: str, rows: Rows, notes: Iterable[str] = ()) -> str:
    """The table as HTML, which a notebook shows.

    >>> html("Two & more", [["a"], ["1"]])
    '<p><b>Two &amp; more</b></p><table><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    """
    head, *body = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in (head, *body))
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(title)}</b></p><table>{lines}</table>{below}"


def label(names: Sequence[str] | None, client: int) -> str:
    """A client in a table's cell: its name, or its number.

    >>> label(("north", "south"), 1), label(None, 1)
    ('south', '1')
    """
    return names[client] if names else str(client)


def capital(text: str) -> str:
    """The text with a capital first letter, to start a sentence or a title.

    >>> capital("client 3")
    'Client 3'
    """
    return text[:1].upper() + text[1:]
