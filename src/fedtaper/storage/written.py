"""Experiment -> TOML: every setting resolved, the user's own code by its import path."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedtaper.core.checks import check_type
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.problems.custom import Custom
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.problems.recorded import Recorded
from fedtaper.rules.behaviours import BEHAVIOURS, After
from fedtaper.rules.staleness import Undiscounted
from fedtaper.storage import kinds
from fedtaper.storage.fingerprint import text
from fedtaper.storage.names import find, import_path
from fedtaper.storage.origins import origin

LARGEST_LIST = 10_000  # numbers of an array that go into a file


def to_toml(experiment: Experiment, data: str | None = None, stored: bool = False) -> str:
    """The experiment as TOML, every setting resolved; ``data`` names a file of its arrays.

    Rules, schedules and problems of your own are named by their import path
    (``kind = "my_module:MyRule"``), and a problem that a function of your own made by that
    function, if a file named it. With ``stored``, as in run folders, a problem whose data or
    code no file can hold is written by its sizes, which is enough for tables and reports, and by
    what it was made by.
    """
    check_type("to_toml", experiment, Experiment)
    if data is not None:
        check_type("data", data, str)
    problem = experiment.problem
    own_data = isinstance(problem, LinearRegression) and problem.arrays is not None
    if own_data and data is None and not stored and origin(problem) is None:
        raise FedtaperError("a problem with your own data needs a file to keep it in: give data=")
    apart = {"problem", "schedules", "local", "server", "behaviours", "challenges", "steering"}
    if isinstance(experiment.staleness, Undiscounted):
        apart |= {"staleness"}
    if not experiment.own_clock:
        apart |= {"own_clock"}
    tree: dict[str, Any] = {
        "experiment": _settings(experiment, apart),
        "problem": _problem(problem, data, stored),
        "local": named(experiment.local, kinds.LOCAL_RULES),
        "server": named(experiment.server, kinds.SERVER_RULES),
    }
    for name in ("challenges", "steering"):
        record = getattr(experiment, name)
        if record is not None:
            tree[name] = _settings(record, set())
    lines = []
    for name, table in tree.items():
        lines += [f"[{name}]", *value_lines(table), ""]
    for client, behaviour in experiment.behaviours:
        lines += [f"[behaviours.{client}]", *value_lines(_behaviour(behaviour)), ""]
    for table in schedule_tables(experiment.schedules):
        lines += ["[[schedules]]", *value_lines(table), ""]
    return "\n".join(lines)


def schedule_tables(schedules: Sequence[Any]) -> list[dict[str, Any]]:
    """A table for each run of equal neighbours."""
    return [_schedule(s) | {"clients": count} for s, count in _grouped(schedules)]


def value_lines(table: dict[str, Any]) -> list[str]:
    """The lines of a table."""
    return [f"{_key(name)} = {value(held)}" for name, held in table.items()]


def _problem(problem: Any, data: str | None, stored: bool) -> dict[str, Any]:
    """The table of a problem that can be rebuilt; otherwise its sizes, and what it was.

    A stored run is read without calling anybody's function, so it needs the sizes in any case.
    """
    if type(problem) is LinearRegression and (data or problem.arrays is None):
        made_up = {"num_clients", "dim", "samples"} if data else set()
        head = {"kind": "linear"} | ({"data": data} if data else {})
        return head | _settings(problem, {"arrays", *made_up})
    if type(problem) is ImageClassification and isinstance(problem.model, str):
        found = {"kind": "images"} | _settings(problem, set())
        return found | {"client_samples": problem.sizes.tolist()}
    if not isinstance(problem, (LinearRegression, ImageClassification, Custom, Recorded)):
        found = _own(problem)
        if "rebuild" not in found:
            return found
    made_by = origin(problem)
    if made_by is not None and not stored:
        return made_by
    sizes = np.asarray(problem.sizes).tolist()
    recorded = {"kind": "recorded", "client_samples": sizes, "parameters": int(problem.dim)}
    if isinstance(problem, Recorded):
        return recorded
    code: dict[str, Any] = {"of": import_path(problem)}
    if isinstance(problem, Custom):
        code |= {"loss": import_path(problem.loss), "init": import_path(problem.init)}
    if made_by is not None:
        code["made_by"] = made_by.pop("kind")
        code |= {"arguments": made_by} if made_by else {}
    return recorded | code


def _behaviour(behaviour: Any) -> dict[str, Any]:
    late = isinstance(behaviour, After)
    found = named(behaviour.then if late else behaviour, BEHAVIOURS)
    return found | ({"after": behaviour.round} if late else {})


def _schedule(schedule: Any) -> dict[str, Any]:
    """``kind`` is left out for the two plain schedules, which c and delta, or a, identify."""
    found = named(schedule, kinds.SCHEDULES)
    if found["kind"] in ("power", "constant"):
        del found["kind"]
    return found


def named(rule: Any, rules: dict[str, Any]) -> dict[str, Any]:
    """A rule as a table: its kind and its settings."""
    kind = next((k for k, v in rules.items() if type(rule) is v), None)
    return _own(rule) if kind is None else {"kind": kind} | _settings(rule, set())


def _settings(record: Any, skip: set[str]) -> dict[str, Any]:
    found = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in skip}
    return {k: _nested(v) for k, v in found.items() if v is not None}


def _nested(held: Any) -> Any:
    if isinstance(held, (tuple, list)):
        return [_nested(v) for v in held]
    if is_dataclass(held) and not isinstance(held, type):
        return named(held, kinds.NESTED)
    return import_path(held) if inspect.isfunction(held) else held


def _own(thing: Any) -> dict[str, Any]:
    """An object of the user's own class; ``rebuild = false`` where a file cannot hold it."""
    head = {"kind": import_path(thing)}
    try:
        found = head | {k: _nested(v) for k, v in _made_with(thing).items() if v is not None}
        for held in found.values():
            value(held)
        again = kinds.build_own(dict(found), "", find)
        if text(again) == text(thing):
            return found
    except Exception:  # the user's own code may raise anything: then it stays a name
        pass
    return head | {"rebuild": False}


def _made_with(thing: Any) -> dict[str, Any]:
    """The object's arguments: its fields, or the attributes its constructor names."""
    if is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in fields(thing) if f.init}
    if type(thing).__init__ is object.__init__:
        return {}
    return {name: getattr(thing, name) for name in inspect.signature(type(thing)).parameters}


def _grouped(schedules: Sequence[Any]) -> list[tuple[Any, int]]:
    out: list[tuple[Any, int]] = []
    for s in schedules:
        if out and type(out[-1][0]) is type(s) and out[-1][0] == s:
            out[-1] = (s, out[-1][1] + 1)
        else:
            out.append((s, 1))
    return out


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _quoted(name)


def _quoted(words: str) -> str:
    """A TOML string; control characters are escaped, and what UTF-8 cannot hold is replaced."""
    words = words.encode("utf-8", "replace").decode()
    out = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in out) + '"'


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: lambda v: "true" if v else "false",
    int: lambda v: str(int(v)),
    float: lambda v: repr(float(v)) if math.isfinite(v) else str(float(v)),
    str: _quoted,
    dict: lambda v: "{ " + ", ".join(f"{_key(str(k))} = {value(x)}" for k, x in v.items()) + " }",
}


def value(v: Any) -> str:
    """A value as it stands in TOML.

    >>> value([True, 2, 0.5, "a"])
    '[true, 2, 0.5, "a"]'
    """
    if isinstance(v, np.ndarray):
        if v.size > LARGEST_LIST:
            raise FedtaperError(f"an array of {v.size} numbers is too large for a TOML file")
        v = v.tolist()
    if isinstance(v, np.generic):
        v = v.item()
    for kind, write in _WRITERS.items():
        if isinstance(v, kind):
            return write(v)
    if isinstance(v, (tuple, list)):
        return "[" + ", ".join(value(x) for x in v) + "]"
    raise FedtaperError(f"{type(v).__name__} cannot be written as a TOML value")
