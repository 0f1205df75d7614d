"""Which engines there are: fedtaper's own, and those of other packages.

A package adds an engine through the entry point group ``fedtaper.engines``; its name is the
engine's name, and it points at an object that fulfils :class:`fedtaper.core.protocols.Engine`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.core.protocols import Engine

GROUP = "fedtaper.engines"
BUILT_IN = {
    "reference": "fedtaper.engines.reference",
    "compiled": "fedtaper.engines.compiled",
    "events": "fedtaper.engines.events",
    "cpu": "fedtaper.engines.cpu",
    "cuda": "fedtaper.engines.cuda.engine",
    "flower": "fedtaper.engines.flower.engine",
}
NEEDS = {"torch": "torch", "flwr": "flower", "ray": "flower"}  # package: extra


def names() -> tuple[str, ...]:
    """All engines by name, fedtaper's own first."""
    return (*BUILT_IN, *(e.name for e in _offered() if e.name not in BUILT_IN))


def get(name: str) -> Engine:
    """The engine of that name; importing it may take a moment (torch)."""
    if name in BUILT_IN:
        try:
            found = importlib.import_module(BUILT_IN[name]).ENGINE
        except ModuleNotFoundError as missing:
            extra = NEEDS.get(str(missing.name).partition(".")[0])
            if extra is None:
                raise
            raise FedtaperError(
                f"the engine {name!r} needs {missing.name}: pip install 'fedtaper[{extra}]'"
            ) from None
        return _checked(name, found)
    for entry in _offered():
        if entry.name == name:
            return _checked(name, entry.load())
    known = names()
    raise FedtaperError(
        f"there is no engine {name!r}: use {', '.join(known)}{nearest(name, known)}"
    )


def _offered() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _checked(name: str, found: object) -> Engine:
    if not isinstance(found, Engine):
        raise FedtaperError(
            f"the engine {name!r} is a {type(found).__name__}, which lacks parts of "
            "fedtaper.core.protocols.Engine: run fedtaper.testing.check_engine on it"
        )
    return found
