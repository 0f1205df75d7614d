"""What commands print: tables and text, nothing (--quiet), or JSON (--json)."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?$", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # a file's name may have any
GAP = 2  # spaces between two columns
READABLE = 16  # a column of words is not made narrower


@dataclass
class Output:
    """How the current command prints, and what it has printed so far if that is JSON."""

    quiet: bool = False
    json: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: str = "stopped"  # what Ctrl-C leaves, in words

    @property
    def silent(self) -> bool:
        """Whether nothing is printed while a command works."""
        return self.quiet or self.json

    @property
    def progress(self) -> bool | None:
        """The argument ``progress`` of ``ft.run``: no bar if nothing is printed."""
        return False if self.silent else None


output = Output()


class _Console(Console):
    def print(self, *objects: Any, **how: Any) -> None:
        """Print, keep for the JSON, or say nothing."""
        if output.json:
            output.notes += [o.strip() for o in objects if isinstance(o, str) and o.strip()]
        elif not output.quiet:
            super().print(*objects, **how)


# without markup: what is printed holds paths and names, in which [brackets] are brackets
console = _Console(markup=False)
errors = Console(stderr=True, markup=False)


@contextmanager
def speaking(quiet: bool, as_json: bool) -> Iterator[None]:
    """During one command: print as usual, only errors, or one JSON object at its end."""
    output.__init__(quiet, as_json)  # type: ignore[misc]  # others hold this object: reset in place
    try:
        yield
    finally:
        if as_json:
            print_json(output.given | {"tables": output.tables, "notes": output.notes})
        output.__init__()  # type: ignore[misc]  # others hold this object: reset in place


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(_plain(values), indent=2, allow_nan=False), flush=True)


def fail(text: str) -> None:
    """Show what went wrong, and give it as ``error`` for ``--json``."""
    give(error=" ".join(text.split()))
    show_error(text)


def give(**values: Any) -> None:
    """Give exact values for ``--json``, besides the tables."""
    output.given |= values


class _Lines:
    """A status where no line can be changed in place: each new text is a line of its own."""

    def __init__(self, print_: Callable[[str], None]) -> None:
        self.print, self.said = print_, ""

    def update(self, text: str) -> None:
        """Print a new text."""
        if text != self.said:
            self.said = text
            self.print(text)


class _Spinner:
    """A status line that changes in place; it is plain text, in which [brackets] are brackets."""

    def __init__(self, shown: Progress) -> None:
        self.shown, self.task = shown, shown.add_task("", text="")

    def update(self, text: str) -> None:
        """Change the line."""
        self.shown.update(self.task, text=text)


@contextmanager
def status(doing: str = "") -> Iterator[_Lines | _Spinner]:
    """What a long command does now and for how long, on standard error; ``update`` changes it.

    What it is ``doing`` at first is shown only on a terminal.
    """
    if output.silent:
        yield _Lines(lambda text: None)
    elif not errors.is_terminal:
        yield _Lines(aside)
    else:
        with Progress(
            SpinnerColumn(table_column=Column(no_wrap=True, min_width=1)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            TextColumn("{task.fields[text]}", markup=False),
            console=errors,
            transient=True,
        ) as shown:
            made = _Spinner(shown)
            made.update(doing)
            yield made


def aside(text: str) -> None:
    """A line about the progress, on standard error, where it is not mixed with the results."""
    if not output.silent:
        _line(errors, text)


def say(text: str, style: str | None = None) -> None:
    """A sentence: on a terminal it is broken between words, elsewhere it stays one line."""
    if output.json:
        output.notes.append(text.strip())
        return
    if text.startswith("\n"):
        console.print()
    _line(console, text.strip(), style)


def _line(where: Console, text: str, style: str | None = None, used: int = 0) -> None:
    """Print a text; words longer than the terminal stay whole, so that paths can be copied."""
    text = _printable(text)
    if where.is_terminal:
        lines = textwrap.wrap(
            text,
            where.width,
            initial_indent=" " * used,
            break_long_words=False,
            break_on_hyphens=False,
        )
        text = "\n".join(lines)[used:]
    where.print(text, style=style, highlight=False, soft_wrap=True)


def _printable(text: str) -> str:
    """The text with control characters written out: they would move the cursor, or worse."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _plain(value: Any) -> Any:
    """The value in JSON's types; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def _cell(text: Any) -> Any:
    """A table's cell, as a number if it is one."""
    plain = str(text)
    if not _NUMBER.match(plain):
        return plain
    number = float(plain.replace(",", ""))
    if not math.isfinite(number):
        return plain
    return int(number) if number == int(number) and "e" not in plain.lower() else number


def _keys(head: Sequence[str]) -> list[str]:
    """The heads of the columns, each once: the second "estimated" is "estimated 2"."""
    out: list[str] = []
    for number, name in enumerate(head):
        key = name.strip() or f"column {number + 1}"
        out.append(f"{key} {out.count(key) + 1}" if key in out else key)
    return out


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> None:
    """Print a table; the first ``left`` columns are words, the rest numbers.

    Where it is too wide, each row becomes a paragraph: no number is cut off.
    """
    found = [list(row) for row in rows]
    if output.json:
        keys = _keys(head)
        kept = [dict(zip(keys, map(_cell, row), strict=True)) for row in found]
        output.tables.append({"title": title.strip(), "rows": kept})
        return
    if title:
        say(title, style="italic")
    head = [_printable(name) for name in head]
    found = [[_printable(c) if isinstance(c, str) else c for c in row] for row in found]
    broken = [False] + [number < left for number in range(1, len(head))]  # columns of words
    for wraps in (broken, [True, *broken[1:]]):
        if _narrowest(head, found, wraps) <= console.width:
            console.print(_grid(head, found, left, wraps))
            return
    for row in found:
        console.print(_paragraph(head, row), soft_wrap=True)


def _grid(
    head: Sequence[str], rows: Sequence[Sequence[Any]], left: int, wraps: Sequence[bool]
) -> Table:
    made = Table(header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(head):
        side: Any = "left" if number < left else "right"
        made.add_column(name, justify=side, overflow="fold", no_wrap=not wraps[number])
    for row in rows:
        made.add_row(*row)
    return made


def _narrowest(head: Sequence[str], rows: Sequence[Sequence[Any]], wraps: Sequence[bool]) -> int:
    """The width below which a table would break a number, or words too often to be read."""
    total = GAP * (len(head) - 1)
    for number, wrapped in enumerate(wraps):
        cells = [head[number], *(str(row[number]) for row in rows)]
        width = max(map(cell_len, cells))
        if wrapped:
            longest = max(cell_len(word) for cell in cells for word in (cell.split() or [""]))
            width = min(width, max(longest, READABLE))
        total += width
    return total


def _paragraph(head: Sequence[str], row: Sequence[Any]) -> Text:
    """A row under its first cells, those without a head: one line per further column."""
    width = max(map(cell_len, head))
    first = [f"{head[0]} {row[0]}" if _NUMBER.match(str(row[0])) else str(row[0])]
    further = list(zip(head, row, strict=True))[1:]
    first += [str(cell) for name, cell in further if not name]
    out = Text.assemble((" ".join(first).strip(), "bold"))
    for name, cell in further:
        if name and str(cell):
            out.append(f"\n  {name:<{width}}  ").append(cell)
    return out


def show_warning(message: Any, category: Any, *place: Any, **more: Any) -> None:
    """A warning as one line, without the line of code that caused it."""
    show("warning:", str(message), "yellow")


def show_error(message: str) -> None:
    """An error as one line."""
    show("error:", message, "red")


def show(word: str, text: str, style: str) -> None:
    """A coloured word and a plain text on standard error."""
    errors.print(word, style=style, end=" ")
    _line(errors, " ".join(text.split()), used=len(word) + 1)
