"""What commands print: tables and text, nothing (--quiet), or JSON (--json)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedtaper.core.errors import FedtaperError

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?$", re.IGNORECASE)


@dataclass
class Output:
    """How the current command prints, and what it has printed so far if that is JSON."""

    quiet: bool = False
    json: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def progress(self) -> bool | None:
        """The argument ``progress`` of ``ft.run``: no bar if nothing is printed."""
        return False if self.quiet or self.json else None


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
    except (FedtaperError, OSError) as problem:
        output.given["error"] = " ".join(str(problem).split())
        raise
    finally:
        if as_json:
            said = {"tables": output.tables, "notes": output.notes}
            print(json.dumps(_plain(output.given | said), indent=2, allow_nan=False))
        output.__init__()  # type: ignore[misc]  # others hold this object: reset in place


def give(**values: Any) -> None:
    """Give exact values for ``--json``, besides the tables."""
    output.given |= values


class _Silent:
    def update(self, text: Any) -> None:
        """Print nothing."""


@contextmanager
def status() -> Iterator[Any]:
    """A status line on standard error; its ``update`` changes it."""
    if output.quiet or output.json:
        yield _Silent()
        return
    with errors.status("") as shown:
        yield shown


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
    return int(number) if number == int(number) and "e" not in plain.lower() else number


def _keys(head: Sequence[str]) -> list[str]:
    """The heads of the columns, each once: the second "estimated" is "estimated 2"."""
    out: list[str] = []
    for number, name in enumerate(head):
        key = name.strip() or f"column {number + 1}"
        out.append(f"{key} {out.count(key) + 1}" if key in out else key)
    return out


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
    found = [list(row) for row in rows]
    for row in found:
        made.add_row(*row)
    if output.json:
        keys = _keys(head)
        kept = [dict(zip(keys, map(_cell, row), strict=True)) for row in found]
        output.tables.append({"title": title.strip(), "rows": kept})
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
