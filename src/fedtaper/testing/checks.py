"""Named checks, run one after another, and what failed in one error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Check = Callable[[Any], None]


class ContractError(AssertionError):
    """An object breaks its protocol; the text has one line per check that failed."""


def run_checks(thing: Any, checks: Sequence[Check]) -> list[str]:
    """Run all checks; the names of those that passed, or a :class:`ContractError`."""
    passed, failed = [], []
    for check in checks:
        name = check.__name__.removeprefix("_")
        try:
            check(thing)
        except Exception as trouble:
            said = str(trouble).strip().split("\n")[0] or type(trouble).__name__
            failed.append(f"{name}: {said}")
        else:
            passed.append(name)
    if failed:
        raise ContractError(
            f"{type(thing).__name__} fails {len(failed)} of {len(checks)} checks\n"
            + "\n".join(failed)
        )
    return passed


def need(fact: object, words: str) -> None:
    """An assertion that also holds under ``python -O``."""
    if not fact:
        raise AssertionError(words)
