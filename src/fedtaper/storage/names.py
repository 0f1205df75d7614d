"""Code by its import path: ``module:Name`` of a class or a function, and back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError, nearest, one_line

OWN = "fedtaper."


def import_path(thing: Any) -> str:
    """The import path of a class, a function, or an object's class.

    >>> from fedtaper.core.schedules import Power
    >>> import_path(Power), import_path(Power(0.1, 0.8))
    ('fedtaper.core.tapers:Power', 'fedtaper.core.tapers:Power')
    """
    # a class or function has a qualified name, an object its class's
    named = thing if isinstance(thing, type) or hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def is_import_path(text: Any) -> bool:
    """Whether a text looks like ``module:Name``.

    >>> is_import_path("my_rules:Clipped"), is_import_path("average")
    (True, False)
    """
    if not isinstance(text, str):
        return False
    module, colon, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    return bool(colon) and all(part.isidentifier() or part == "<locals>" for part in parts)


def find(path: str, what: str, folder: Path | None = None) -> Any:
    """What an import path names; ``folder`` is searched first, if given, then the current one.

    ``what`` says in an error what is missing, such as "the local rule".
    """
    module, _, name = path.partition(":")
    if "<locals>" in name or module == "__main__":
        raise FedtaperError(
            f"{what} {path} is not importable: move it to the top of a module, "
            "or pass the experiment, as in ft.load(folder, experiment=...)"
        )
    try:
        with _also(folder):
            found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as trouble:  # an import runs any code
        text = f"{what} {path} cannot be imported ({type(trouble).__name__}: {one_line(trouble)})"
        raise FedtaperError(text + _hint(trouble, module, folder)) from None
    return found


def _hint(trouble: Exception, module: str, folder: Path | None) -> str:
    """What helps: for a run that is loaded other than for a file that names the code."""
    if folder is None:
        return (
            ": put it where Python finds it, or pass the experiment, as in "
            "ft.load(folder, experiment=...)"
        )
    first = module.partition(".")[0]
    if not isinstance(trouble, ModuleNotFoundError) or trouble.name != first:
        return ""  # it was found, and fails itself
    places = dict.fromkeys(place.resolve() for place in (folder, Path()))
    beside = [file.stem for place in places for file in place.glob("*.py")]
    where = " and ".join(map(str, places))
    return f": {first}.py is looked for in {where}{nearest(first, beside)}"


@contextmanager
def _also(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    places = [str(folder.resolve()), str(Path().resolve())]
    sys.path[:0] = places
    try:
        yield
    finally:
        for place in places:
            if place in sys.path:
                sys.path.remove(place)
