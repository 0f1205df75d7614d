"""An experiment as short texts by name, so that two can be compared setting by setting.

A run may be resumed only as the same experiment. So a checkpoint and a finished run keep the
fingerprint of their experiment: every setting, each client's schedule, the rules and behaviours,
the problem, and a digest of data that is not made from a seed. The user's own code counts by its
import path and its source; fedtaper's own code does not, so a newer version can resume a run.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import MOST_CLIENTS
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.problems.custom import Custom
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.storage.contents import SHORT, as_array, digest, digests_of
from fedtaper.storage.durable import array_digest
from fedtaper.storage.names import OWN, import_path

Fingerprint = dict[str, Any]
DEEP = 6  # levels of objects within objects
SHOWN = 6  # differences that a message names
DERIVED = {"client_samples", "arrays"}  # fields of problems that follow from others
_OLD_NAMES = {"OtherSchedule": "Tapers"}  # as in the folders that exist


def fingerprint(experiment: Experiment, data: bool = True) -> Fingerprint:
    """The experiment as plain values; ``data`` says whether to look at the clients' data too."""
    apart = {"problem", "schedules", "behaviours"}
    found: Fingerprint = {"kind": "experiment"}
    found["settings"] = {
        f.name: text(getattr(experiment, f.name)) for f in fields(experiment) if f.name not in apart
    }
    found["schedules"] = _runs([text(s) for s in experiment.schedules])
    found["behaviours"] = {str(i): text(b) for i, b in experiment.behaviours}
    found["problem"] = _problem(experiment.problem)
    found["sizes"] = _runs([str(int(size)) for size in experiment.problem.sizes])
    found["data"] = _runs(_data(experiment.problem)) if data else None
    problem = type(experiment.problem)
    usual: dict[str, Any] = _defaults(problem) if is_dataclass(problem) else {}
    found["defaults"] = _defaults(Experiment) | {f"problem: {k}": v for k, v in usual.items()}
    return found


def differences(stored: Fingerprint, now: Fingerprint, ignore: Sequence[str] = ()) -> list[str]:
    """What differs, one text for each setting, such as ``seed: 0 -> 1``."""
    usual = now["defaults"]
    out = _between("", stored["settings"], now["settings"], usual, ignore)
    out += _per_client("schedule", stored["schedules"], now["schedules"])
    out += _between("behaviour of client ", stored["behaviours"], now["behaviours"])
    out += _between("problem: ", stored["problem"], now["problem"], usual)
    sizes = _per_client("samples", stored["sizes"], now["sizes"])
    out += sizes
    if not sizes and None not in (stored["data"], now["data"]):
        out += _per_client("data", stored["data"], now["data"], hidden=True)
    return out


def checked(found: Any, path: Path) -> Fingerprint:
    """A fingerprint from a file, refused unless it has all parts that are compared."""

    def texts(part: Any) -> bool:
        return isinstance(part, dict) and all(isinstance(v, str) for v in part.values())

    def runs(part: Any) -> bool:
        rows: list[Any] = part if isinstance(part, list) else [None]
        pairs = all(isinstance(row, list) and [*map(type, row)] == [str, int] for row in rows)
        return pairs and all(0 < count <= MOST_CLIENTS for _, count in rows)

    fits = isinstance(found, dict)
    fits = fits and all(texts(found.get(name)) for name in ("settings", "behaviours", "problem"))
    fits = fits and all(runs(found.get(name)) for name in ("schedules", "sizes"))
    fits = fits and "data" in found and (found["data"] is None or runs(found["data"]))
    if not fits or not found["settings"].get("rounds", "").isdecimal():
        raise FedtaperError(f"{path} is damaged: its description of the experiment cannot be read")
    return dict(found)


def in_words(found: Sequence[str]) -> str:
    """Differences as one line.

    >>> in_words(["seed: 0 -> 1", "batch_size: 5 -> 6"])
    'seed: 0 -> 1; batch_size: 5 -> 6'
    """
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def text(value: Any, depth: int = 0) -> str:
    """A value as a short text that is the same in every process, and differs if the value does."""
    plain = _number(value)
    if plain is not None:
        return plain
    array = as_array(value)
    if array is not None:
        return f"array {array_digest(array)[:SHORT]}"
    if depth >= DEEP:
        return import_path(value)
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(text(v, depth + 1) for v in value) + ")"
    if isinstance(value, Mapping):
        pairs = sorted((text(k, depth + 1), text(v, depth + 1)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    return _code(value, depth) if _is_code(value) else _object(value, depth)


def _number(value: Any) -> str | None:
    """A number or a word; 1 and 1.0 are the same setting."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return str(int(number)) if abs(number) < 2**53 and number == int(number) else repr(number)
    return None


def _is_code(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, (type, functools.partial))


def _object(value: Any, depth: int) -> str:
    """An object by its class and its arguments."""
    if is_dataclass(value):  # defaults go without saying, so that a new one changes nothing
        held = {f.name: getattr(value, f.name) for f in fields(value)}
        usual = _defaults(type(value))
        held = {k: v for k, v in held.items() if text(v, depth + 1) != usual.get(k)}
    else:
        held = (
            {k: v for k, v in sorted(vars(value).items()) if _plain(v)} if _has_vars(value) else {}
        )
    inside = ", ".join(f"{k}={text(v, depth + 1)}" for k, v in held.items())
    cls = type(value)
    if cls.__module__.startswith(OWN):
        return f"{_OLD_NAMES.get(cls.__qualname__, cls.__qualname__)}({inside})"
    return f"{_code(cls, depth)}({inside})"


def _defaults(cls: Any) -> dict[str, str]:
    """The defaults of a dataclass's fields, as texts."""
    found = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    made = {f.name: f.default_factory for f in fields(cls) if f.default_factory is not MISSING}
    return {k: text(v) for k, v in found.items()} | {k: text(make()) for k, make in made.items()}


def _has_vars(value: Any) -> bool:
    # a user's value of any kind; numbers and slotted objects have no __dict__
    return isinstance(getattr(value, "__dict__", None), dict)


def _plain(value: Any) -> bool:
    """Whether an attribute is a setting, and not something that changes during use."""
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    kinds = (bool, int, float, str, np.number, np.ndarray)
    return value is None or isinstance(value, kinds) or inspect.isroutine(value)


def _code(thing: Any, depth: int) -> str:
    """A class or function: its import path, and a digest of its source unless it is fedtaper's."""
    if isinstance(thing, functools.partial):
        return f"partial({text([thing.func, thing.args, thing.keywords], depth + 1)})"
    path = import_path(thing)
    if path.startswith((OWN, "builtins:", "torch.")):
        return path
    inside = hashlib.sha256(_source(thing).encode()).hexdigest()[:8]
    cells = getattr(thing, "__closure__", None) or ()  # functions have one, classes do not
    names = thing.__code__.co_freevars if cells else ()
    held = []
    for name, cell in zip(names, cells, strict=True):
        try:
            caught = cell.cell_contents
        except ValueError:  # not set yet
            continue
        if _plain(caught) or as_array(caught) is not None:
            held.append(f"{name}={text(caught, depth + 1)}")
    return f"{path}#{inside}" + (f"[{', '.join(held)}]" if held else "")


def _source(thing: Any) -> str:
    """The source without comments and layout, or a substitute for it."""
    try:
        lines = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)  # functions have it, compiled ones do not
        return "" if code is None else repr((code.co_code, code.co_names, len(code.co_consts)))
    try:
        return ast.dump(ast.parse(lines))
    except (SyntaxError, ValueError):  # a lambda within a longer statement
        return "".join(lines.split())


def _problem(problem: Any) -> dict[str, str]:
    """The problem's settings."""
    found = {"class": _code(type(problem), 0) if not _ours(problem) else type(problem).__name__}
    if isinstance(problem, Custom):
        code = {
            f.name: text(getattr(problem, f.name))
            for f in fields(problem)
            if f.name != "client_data"
        }
        return found | code
    if not is_dataclass(problem):
        held = vars(problem) if _has_vars(problem) else {}
        texts = {k: text(v) for k, v in sorted(held.items()) if _plain(v)}
        lists = {k: digest(v) for k, v in sorted(held.items()) if _collected(v)}
        return found | texts | lists
    skip = set(DERIVED)
    if isinstance(problem, LinearRegression):
        skip |= {"samples"}  # compared client by client
        if problem.arrays is not None:  # what only makes data says nothing here
            skip |= {"feature_spread", "sigma_w", "true_w", "snr_db", "seed", "data"}
    if isinstance(problem, ImageClassification):
        skip |= {"data_dir"}  # where the file lies; what is in it is compared
    kept = [f for f in fields(problem) if f.name not in skip and not f.name.startswith("_")]
    return found | {f.name: text(getattr(problem, f.name)) for f in kept}


def _collected(value: Any) -> bool:
    """Whether an attribute is the clients' data: a list or a dictionary of arrays, or a table."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return bool(value) and all(as_array(v) is not None or _collected(v) for v in value)
    return hasattr(value, "to_numpy")  # users' data of any library


def _ours(problem: Any) -> bool:
    return type(problem).__module__.startswith(OWN)


def _data(problem: Any) -> list[str]:
    """A digest of each client's data, where it is not made from a seed."""
    if isinstance(problem, LinearRegression):
        if problem.arrays is None:
            return []
        return [_digests(xy) for xy in zip(problem.x, problem.y, strict=True)]
    if isinstance(problem, ImageClassification):
        data = problem.data
        return [_digests((data.train_x[p], data.train_y[p])) for p in problem.places]
    if isinstance(problem, Custom):
        return digests_of(problem.client_data)
    return []


def _digests(arrays: Any) -> str:
    joined = "".join(array_digest(array) for array in arrays)
    return hashlib.sha256(joined.encode()).hexdigest()[:SHORT]


def _runs(values: Sequence[str]) -> list[list[Any]]:
    """Equal neighbours once, with their count: federations may have thousands of clients."""
    out: list[list[Any]] = []
    for value in values:
        if out and out[-1][0] == value:
            out[-1][1] += 1
        else:
            out.append([value, 1])
    return out


def _each(runs: Sequence[Sequence[Any]]) -> list[str]:
    return [value for value, count in runs for _ in range(count)]


def _per_client(name: str, old: Any, new: Any, hidden: bool = False) -> list[str]:
    before, after = _each(old), _each(new)
    if len(before) != len(after):
        return [f"{name}: of {len(before)} -> {len(after)} clients"]
    changed: dict[tuple[str, str], list[int]] = {}
    for i, pair in enumerate(zip(before, after, strict=True)):
        if pair[0] != pair[1]:
            changed.setdefault(("", "") if hidden else pair, []).append(i)
    return [
        f"{name} of {_who(who)} differs" if hidden else _change(f"{name} of {_who(who)}", *pair)
        for pair, who in changed.items()
    ]


def _who(clients: list[int]) -> str:
    if len(clients) == 1:
        return f"client {clients[0]}"
    more = ", ..." if len(clients) > SHOWN else ""
    return "clients " + ", ".join(str(i) for i in clients[:SHOWN]) + more


def _between(
    head: str,
    old: Mapping[str, str],
    new: Mapping[str, str],
    usual: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> list[str]:
    """Settings that differ; one that the stored run does not know had its default."""
    out = []
    for name in dict.fromkeys([*old, *new]):
        missing = (usual or {}).get(f"{head}{name}", "none")
        before, after = old.get(name, missing), new.get(name, "none")
        if before != after and name not in ignore:
            out.append(_change(f"{head}{name}", before, after))
    return out


def _change(name: str, before: str, after: str) -> str:
    """``name: old -> new``; if two calls differ only in an argument, only that argument."""
    old, new = _arguments(before), _arguments(after)
    if old and new and old[0] == new[0]:
        names = dict.fromkeys([*old[1], *new[1]])
        pairs = [(k, old[1].get(k, "default"), new[1].get(k, "default")) for k in names]
        return f"{name}: " + ", ".join(f"{k} {a} -> {b}" for k, a, b in pairs if a != b)
    if before.partition("#")[0] == after.partition("#")[0] and "#" in before:
        return f"{name}: its code was changed"
    return f"{name}: {_cut(before)} -> {_cut(after)}"


def _cut(words: str) -> str:
    return words if len(words) <= 80 else words[:77] + "..."


def _arguments(call: str) -> tuple[str, dict[str, str]] | None:
    """The parts of a text such as ``Power(c=0.1, delta=0.8)``."""
    name, bracket, rest = call.partition("(")
    if not bracket or not name or not rest.endswith(")"):
        return None
    parts, depth = [""], 0
    for letter in rest[:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    pairs = [part.strip().partition("=") for part in parts if part.strip()]
    return (name, {key: value for key, _, value in pairs}) if all(p[1] for p in pairs) else None
