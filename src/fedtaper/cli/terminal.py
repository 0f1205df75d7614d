"""Tables, warnings and errors in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

# without markup: what is printed holds paths and names, in which [brackets] are brackets
console = Console(markup=False)
errors = Console(stderr=True, markup=False)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> None:
    """Print a table; the first ``left`` columns are words, the rest numbers."""
    made = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(head):
        made.add_column(
            name,
            justify="left" if number < left else "right",
            overflow="fold",
            no_wrap=number == 0 or number >= left,
        )
    for row in rows:
        made.add_row(*row)
    console.print(made)


def show_warning(message: Any, category: Any, *place: Any, **more: Any) -> None:
    """A warning as one line, without the line of code that caused it."""
    show("warning:", str(message), "yellow")


def show_error(message: str) -> None:
    """An error as one line."""
    show("error:", message, "red")


def show(word: str, text: str, style: str) -> None:
    """A coloured word and a plain text on standard error, in one line."""
    errors.print(word, style=style, end=" ")
    errors.print(" ".join(text.split()), highlight=False, soft_wrap=True)
