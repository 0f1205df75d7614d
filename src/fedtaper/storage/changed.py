"""A TOML file with other rounds and step sizes; everything else stays as its author wrote it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtaper.experiment import Experiment
from fedtaper.storage import durable
from fedtaper.storage.names import is_import_path
from fedtaper.storage.written import schedule_tables, value_lines

WORK = ("local_steps", "local_epochs")  # a file has one of them


def with_steps(file: Path, made: Experiment, given: Mapping[str, Any]) -> str:
    """The file's text with the rounds and schedules of an experiment made from it.

    ``given`` are settings of [experiment] that were replaced too. Comments are not kept.
    """
    tree = _tree(file)
    settings = tree["experiment"]
    if any(name in given for name in WORK):
        settings = {name: held for name, held in settings.items() if name not in WORK}
    tree["experiment"] = settings | {"rounds": made.rounds} | given
    tree["schedules"] = schedule_tables(made.schedules)
    bare = {name: held for name, held in tree.items() if not isinstance(held, (dict, list))}
    lines = [*value_lines(bare), ""] if bare else []
    for name, held in tree.items():
        if isinstance(held, dict):
            lines += [f"[{name}]", *value_lines(held), ""]
    for table in tree["schedules"]:
        lines += ["[[schedules]]", *value_lines(table), ""]
    return "\n".join(lines)


def beside(file: Path) -> list[str]:
    """The files in the same folder that a TOML file names: modules of its code, and data."""
    found = []
    for words in _strings(_tree(file)):
        if is_import_path(words):
            module = words.partition(":")[0].partition(".")[0]
            found += [name for name in (f"{module}.py", module) if (file.parent / name).exists()]
    problem = _tree(file).get("problem")
    data = problem.get("data") if isinstance(problem, dict) else None
    return list(dict.fromkeys([*found, *([data] if isinstance(data, str) else [])]))


def _tree(file: Path) -> dict[str, Any]:
    return tomllib.loads(durable.text_of(file))


def _strings(held: Any) -> Iterator[str]:
    if isinstance(held, str):
        yield held
    elif isinstance(held, (dict, list)):
        for inner in held.values() if isinstance(held, dict) else held:
            yield from _strings(inner)
