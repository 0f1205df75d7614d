"""``fedtaper engines``: what each engine can do."""

from __future__ import annotations

from fedtaper.cli.terminal import say, table
from fedtaper.engines.gate import not_ready
from fedtaper.engines.gate import table as options

WORDS = ("devices", "precisions", "ways")  # rows that hold words, not yes or no


def engines() -> None:
    """Show what each engine can do: options by engine.

    By default the engine follows from the problem, the rules and the device; choose one with
    ``fedtaper run FILE --engine NAME``. Example: fedtaper engines
    """
    head, *rows = options()
    table("Options by engine", ["option", *head[1:]], [row for row in rows if row[0] not in WORDS])
    named = {row[0]: row[1:] for row in rows if row[0] in WORDS}
    each = zip(head[1:], *(named[name] for name in WORDS), strict=True)
    table("\nWhere and how networks run", ["engine", *WORDS], each, left=1 + len(WORDS))
    say("")
    for name, reason in not_ready().items():
        say(f"{name} cannot run here: {reason}")
    say(
        "Another package can add an engine: see the entry point group fedtaper.engines in "
        "CONTRIBUTING.md."
    )
