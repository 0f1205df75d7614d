"""Tables of words and numbers: as plain text, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Rows = Sequence[Sequence[str]]


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
