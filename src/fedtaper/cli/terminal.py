"""Tables, warnings and errors in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console()
errors = Console(stderr=True)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
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
    errors.print(f"[yellow]warning:[/] {message}", highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    """An error as one line."""
    errors.print("[red]error:[/] ", end="")
    errors.print(message, markup=False, highlight=False, soft_wrap=True)
