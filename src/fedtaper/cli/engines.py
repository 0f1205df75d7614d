"""``fedtaper engines``: what each engine can do."""

from __future__ import annotations

from fedtaper.cli.terminal import console, table
from fedtaper.engines.gate import not_ready
from fedtaper.engines.gate import table as options


def engines() -> None:
    """Show what each engine can do: options by engine.

    By default the engine follows from the problem, the rules and the device; choose one with
    ``fedtaper run FILE --engine NAME``.
    """
    head, *rows = options()
    table("Options by engine", head, rows)
    for name, reason in not_ready().items():
        console.print(f"{name} cannot run here: {reason}", highlight=False, soft_wrap=True)
    console.print(
        "Another package can add an engine: see the entry point group fedtaper.engines in "
        "CONTRIBUTING.md.", highlight=False, soft_wrap=True,
    )  # fmt: skip
